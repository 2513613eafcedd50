"""The `arith` dialect, with comparisons, selects and casts that take tensors.

xDSL's definitions of `cmpi`, `cmpf`, `select` and the casts accept scalars only; Triton IR needs them on tensors.
This module defines those operations again with MLIR's syntax and semantics, and exports `ARITH`: xDSL's dialect with
these in place of its own. All other operations (`addi`, `mulf`, `constant`, ...) are xDSL's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.arith import Arith, ArithConstantMaterializationInterface, FastMathFlagsAttr
from xdsl.dialects.builtin import (
    AnyFloat,
    AnyFloatConstr,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    TensorType,
    VectorType,
    container_of,
    i1,
    i64,
)
from xdsl.interfaces import HasFolderInterface
from xdsl.ir import Attribute, Dialect, Operation, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    VarConstraint,
    base,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import ConstantLike, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa
from xdsl.utils.type import get_element_type_or_self, have_compatible_shape

from compilemask.dialects.narrowing import is_integer_type

CMPI_PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
CMPF_PREDICATES = (
    "false",
    "oeq",
    "ogt",
    "oge",
    "olt",
    "ole",
    "one",
    "ord",
    "ueq",
    "ugt",
    "uge",
    "ult",
    "ule",
    "une",
    "uno",
    "true",
)

_BOOL_LIKE = container_of(i1)
_INT_LIKE = container_of(base(IntegerType) | base(IndexType))
_FIXED_INT_LIKE = container_of(base(IntegerType))
_FLOAT_LIKE = container_of(AnyFloatConstr)
_NO_FAST_MATH = FastMathFlagsAttr("none")


def with_element_type(container: Attribute, element: Attribute) -> Attribute:
    """`container` with its element type replaced; a scalar becomes `element` itself."""
    if isinstance(container, TensorType):
        return TensorType(element, container.get_shape(), container.encoding)
    if isinstance(container, VectorType):
        return VectorType(element, container.get_shape(), container.scalable_dims)
    return element


def _scalar_constant(value: SSAValue) -> IntegerAttr | None:
    constant = ConstantLike.get_constant_value(value)
    return constant if isa(constant, IntegerAttr) else None


def _check_same_shape(op: IRDLOperation, lhs: Attribute, rhs: Attribute) -> None:
    if isinstance(lhs, TensorType | VectorType) != isinstance(
        rhs, TensorType | VectorType
    ) or not have_compatible_shape(lhs, rhs):
        raise VerifyException(f"{op.name}: shapes of {lhs} and {rhs} differ")


# ---------------------------------------------------------------- comparisons


class _Comparison(IRDLOperation):
    """Syntax and verification shared by `cmpi` and `cmpf`."""

    PREDICATES: ClassVar[tuple[str, ...]]

    def _checks(self, lhs: Attribute, result: Attribute, predicate: IntegerAttr) -> None:
        if predicate.type != i64:
            # The short form names the predicate alone: it has to be the whole attribute.
            raise VerifyException(f"{self.name}: the predicate is {predicate.type}, not i64")
        if not 0 <= predicate.value.data < len(self.PREDICATES):
            raise VerifyException(f"{self.name}: predicate {predicate.value.data} is not one of {len(self.PREDICATES)}")
        expected = with_element_type(lhs, i1)
        if result != expected:
            raise VerifyException(f"{self.name}: result type {result} should be {expected}")


def _predicate_attr(predicate: int | str, names: tuple[str, ...]) -> IntegerAttr:
    if isinstance(predicate, str):
        if predicate not in names:
            raise VerifyException(f"unknown comparison predicate '{predicate}'")
        predicate = names.index(predicate)
    return IntegerAttr(predicate, i64)


def _parse_comparison(parser: Parser, names: tuple[str, ...]) -> tuple[SSAValue, SSAValue, str, FastMathFlagsAttr]:
    position = parser.pos
    name = parser.parse_identifier()
    if name not in names:
        parser.raise_error(f"unknown comparison predicate '{name}'", position, parser.pos)
    parser.parse_punctuation(",")
    lhs = parser.parse_unresolved_operand()
    parser.parse_punctuation(",")
    rhs = parser.parse_unresolved_operand()
    flags = _NO_FAST_MATH
    if names is CMPF_PREDICATES and parser.parse_optional_keyword("fastmath"):
        flags = FastMathFlagsAttr(FastMathFlagsAttr.parse_parameter(parser))
    parser.parse_punctuation(":")
    type_ = parser.parse_type()
    return parser.resolve_operand(lhs, type_), parser.resolve_operand(rhs, type_), name, flags


def _print_comparison(
    printer: Printer, name: str, lhs: SSAValue, rhs: SSAValue, flags: FastMathFlagsAttr | None
) -> None:
    printer.print_string(f" {name}, ")
    printer.print_ssa_value(lhs)
    printer.print_string(", ")
    printer.print_ssa_value(rhs)
    if flags is not None and flags != _NO_FAST_MATH:
        printer.print_string(" fastmath")
        flags.print_parameter(printer)
    printer.print_string(" : ")
    printer.print_attribute(lhs.type)


@irdl_op_definition
class CmpiOp(_Comparison, HasFolderInterface):
    """Elementwise integer comparison: i1, or a tensor of i1 with the shape of the operands."""

    name = "arith.cmpi"
    PREDICATES: ClassVar[tuple[str, ...]] = CMPI_PREDICATES
    T: ClassVar = VarConstraint("T", _INT_LIKE)

    predicate = prop_def(IntegerAttr)
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def(_BOOL_LIKE)
    traits = traits_def(Pure())

    def __init__(self, lhs: Operation | SSAValue, rhs: Operation | SSAValue, predicate: int | str) -> None:
        lhs = SSAValue.get(lhs)
        super().__init__(
            operands=[lhs, rhs],
            result_types=[with_element_type(lhs.type, i1)],
            properties={"predicate": _predicate_attr(predicate, CMPI_PREDICATES)},
        )

    @property
    def predicate_name(self) -> str:
        """The predicate's mnemonic, such as `slt`."""
        return CMPI_PREDICATES[self.predicate.value.data]

    def verify_(self) -> None:
        self._checks(self.lhs.type, self.result.type, self.predicate)

    @classmethod
    def parse(cls, parser: Parser) -> CmpiOp:
        lhs, rhs, name, _ = _parse_comparison(parser, CMPI_PREDICATES)
        return cls(lhs, rhs, name)

    def print(self, printer: Printer) -> None:
        _print_comparison(printer, self.predicate_name, self.lhs, self.rhs, None)

    def fold(self) -> Sequence[SSAValue | Attribute] | None:
        if self.result.type != i1:
            return None
        if self.lhs is self.rhs:
            return (IntegerAttr.from_bool(self.predicate_name in ("eq", "sle", "sge", "ule", "uge")),)
        lhs, rhs = _scalar_constant(self.lhs), _scalar_constant(self.rhs)
        if lhs is None or rhs is None:
            return None
        return (IntegerAttr.from_bool(compare_integers(self.predicate_name, lhs, rhs)),)


def compare_integers(predicate: str, lhs: IntegerAttr, rhs: IntegerAttr) -> bool:
    """The value of `arith.cmpi predicate` on two scalar constants of one type."""
    a, b = lhs.value.data, rhs.value.data
    if predicate.startswith("s") or predicate.startswith("u"):
        width = lhs.type.width.data if isinstance(lhs.type, IntegerType) else 64
        a, b = a % (1 << width), b % (1 << width)
        if predicate.startswith("s"):
            sign = 1 << (width - 1)
            a, b = (a ^ sign) - sign, (b ^ sign) - sign
    relation = predicate if predicate in ("eq", "ne") else predicate[1:]
    return {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[relation]


@irdl_op_definition
class CmpfOp(_Comparison):
    """Elementwise float comparison; `o` predicates are false on NaN, `u` predicates are true on NaN."""

    name = "arith.cmpf"
    PREDICATES: ClassVar[tuple[str, ...]] = CMPF_PREDICATES
    T: ClassVar = VarConstraint("T", _FLOAT_LIKE)

    predicate = prop_def(IntegerAttr)
    fastmath = prop_def(FastMathFlagsAttr, default_value=_NO_FAST_MATH)
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def(_BOOL_LIKE)
    traits = traits_def(Pure())

    def __init__(
        self,
        lhs: Operation | SSAValue,
        rhs: Operation | SSAValue,
        predicate: int | str,
        fastmath: FastMathFlagsAttr = _NO_FAST_MATH,
    ) -> None:
        lhs = SSAValue.get(lhs)
        super().__init__(
            operands=[lhs, rhs],
            result_types=[with_element_type(lhs.type, i1)],
            properties={"predicate": _predicate_attr(predicate, CMPF_PREDICATES), "fastmath": fastmath},
        )

    @property
    def predicate_name(self) -> str:
        """The predicate's mnemonic, such as `ogt`."""
        return CMPF_PREDICATES[self.predicate.value.data]

    def verify_(self) -> None:
        self._checks(self.lhs.type, self.result.type, self.predicate)

    @classmethod
    def parse(cls, parser: Parser) -> CmpfOp:
        return cls(*_parse_comparison(parser, CMPF_PREDICATES))

    def print(self, printer: Printer) -> None:
        _print_comparison(printer, self.predicate_name, self.lhs, self.rhs, self.fastmath)


@irdl_op_definition
class SelectOp(IRDLOperation, HasFolderInterface):
    """`lhs` where the condition holds, else `rhs`; the condition is one i1, or a tensor of i1 in their shape."""

    name = "arith.select"
    T: ClassVar = VarConstraint("T", AnyAttr())

    cond = operand_def(_BOOL_LIKE)
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def(T)
    traits = traits_def(Pure())

    def __init__(self, cond: Operation | SSAValue, lhs: Operation | SSAValue, rhs: Operation | SSAValue) -> None:
        lhs = SSAValue.get(lhs)
        super().__init__(operands=[cond, lhs, rhs], result_types=[lhs.type])

    def verify_(self) -> None:
        if self.cond.type != i1 and self.cond.type != with_element_type(self.result.type, i1):
            raise VerifyException(f"{self.name}: condition {self.cond.type} does not fit values {self.result.type}")

    @classmethod
    def parse(cls, parser: Parser) -> SelectOp:
        cond = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        lhs = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        rhs = parser.parse_unresolved_operand()
        parser.parse_punctuation(":")
        cond_type: Attribute = i1
        type_: Attribute = parser.parse_type()
        if parser.parse_optional_punctuation(","):
            cond_type, type_ = type_, parser.parse_type()
        return cls(
            parser.resolve_operand(cond, cond_type),
            parser.resolve_operand(lhs, type_),
            parser.resolve_operand(rhs, type_),
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list((self.cond, self.lhs, self.rhs), printer.print_ssa_value)
        printer.print_string(" : ")
        if self.cond.type != i1:
            printer.print_attribute(self.cond.type)
            printer.print_string(", ")
        printer.print_attribute(self.result.type)

    def fold(self) -> Sequence[SSAValue | Attribute] | None:
        if self.lhs is self.rhs:
            return (self.lhs,)
        condition = _scalar_constant(self.cond)
        if condition is None:
            return None
        return (self.lhs if condition.value.data else self.rhs,)


# ---------------------------------------------------------------- casts


class _Cast(IRDLOperation):
    """Syntax and verification shared by the casts: the shape stays, the element type changes."""

    assembly_format = "$input attr-dict `:` type($input) `to` type($result)"
    traits = traits_def(Pure())

    def __init__(self, value: SSAValue | Operation, target_type: Attribute) -> None:
        super().__init__(operands=[value], result_types=[target_type])

    def verify_(self) -> None:
        source, target = self.operands[0].type, self.results[0].type
        _check_same_shape(self, source, target)
        self._check_elements(get_element_type_or_self(source), get_element_type_or_self(target))

    def _check_elements(self, source: Attribute, target: Attribute) -> None:
        """Raise if the element types do not fit this cast."""


def _bitwidth(type_: Attribute) -> int | None:
    return type_.bitwidth if isinstance(type_, IntegerType | AnyFloat) else None


class _Widening(_Cast):
    def _check_elements(self, source: Attribute, target: Attribute) -> None:
        if not (_bitwidth(target) or 0) > (_bitwidth(source) or 0):
            raise VerifyException(f"{self.name}: {target} is not wider than {source}")


class _Narrowing(_Cast):
    def _check_elements(self, source: Attribute, target: Attribute) -> None:
        if not (_bitwidth(target) or 0) < (_bitwidth(source) or 0):
            raise VerifyException(f"{self.name}: {target} is not narrower than {source}")


class _IntegerWidening(_Widening, HasFolderInterface):
    """Constant folding shared by `extsi` and `extui`."""

    SIGNED: ClassVar[bool]

    def fold(self) -> Sequence[SSAValue | Attribute] | None:
        constant, target = _scalar_constant(self.operands[0]), self.results[0].type
        if constant is None or not is_integer_type(constant.type) or not is_integer_type(target):
            return None
        width = constant.type.width.data
        value = constant.value.data % (1 << width)
        if self.SIGNED and value >> (width - 1):
            value -= 1 << width
        return (IntegerAttr(value, target, truncate_bits=True),)


@irdl_op_definition
class ExtSIOp(_IntegerWidening):
    """Sign extension of integers, elementwise."""

    name = "arith.extsi"
    SIGNED: ClassVar[bool] = True
    input = operand_def(_FIXED_INT_LIKE)
    result = result_def(_FIXED_INT_LIKE)


@irdl_op_definition
class ExtUIOp(_IntegerWidening):
    """Zero extension of integers, elementwise."""

    name = "arith.extui"
    SIGNED: ClassVar[bool] = False
    input = operand_def(_FIXED_INT_LIKE)
    result = result_def(_FIXED_INT_LIKE)


@irdl_op_definition
class TruncIOp(_Narrowing, HasFolderInterface):
    """The low bits of integers, elementwise."""

    name = "arith.trunci"
    input = operand_def(_FIXED_INT_LIKE)
    result = result_def(_FIXED_INT_LIKE)

    def fold(self) -> Sequence[SSAValue | Attribute] | None:
        constant, target = _scalar_constant(self.input), self.result.type
        if constant is None or not isinstance(target, IntegerType):
            return None
        return (IntegerAttr(constant.value.data, target, truncate_bits=True),)


@irdl_op_definition
class SIToFPOp(_Cast):
    """Signed integers to floats, rounded to nearest even, elementwise."""

    name = "arith.sitofp"
    input = operand_def(_FIXED_INT_LIKE)
    result = result_def(_FLOAT_LIKE)


@irdl_op_definition
class UIToFPOp(_Cast):
    """Unsigned integers to floats, rounded to nearest even, elementwise."""

    name = "arith.uitofp"
    input = operand_def(_FIXED_INT_LIKE)
    result = result_def(_FLOAT_LIKE)


@irdl_op_definition
class FPToSIOp(_Cast):
    """Floats to signed integers, rounded towards zero, elementwise; out of range is undefined."""

    name = "arith.fptosi"
    input = operand_def(_FLOAT_LIKE)
    result = result_def(_FIXED_INT_LIKE)


@irdl_op_definition
class FPToUIOp(_Cast):
    """Floats to unsigned integers, rounded towards zero, elementwise; out of range is undefined."""

    name = "arith.fptoui"
    input = operand_def(_FLOAT_LIKE)
    result = result_def(_FIXED_INT_LIKE)


@irdl_op_definition
class ExtFOp(_Widening):
    """Floats to a wider float type, exactly, elementwise."""

    name = "arith.extf"
    input = operand_def(_FLOAT_LIKE)
    result = result_def(_FLOAT_LIKE)


@irdl_op_definition
class TruncFOp(_Narrowing):
    """Floats to a narrower float type, rounded to nearest even, elementwise."""

    name = "arith.truncf"
    input = operand_def(_FLOAT_LIKE)
    result = result_def(_FLOAT_LIKE)


@irdl_op_definition
class BitcastOp(_Cast):
    """The same bits read as another type of equal width, elementwise."""

    name = "arith.bitcast"
    input = operand_def(container_of(base(IntegerType) | base(IndexType) | AnyFloatConstr) | base(MemRefType))
    result = result_def(container_of(base(IntegerType) | base(IndexType) | AnyFloatConstr) | base(MemRefType))

    def _check_elements(self, source: Attribute, target: Attribute) -> None:
        if isinstance(source, IndexType) or isinstance(target, IndexType):
            return
        if _bitwidth(source) != _bitwidth(target):
            raise VerifyException(f"{self.name}: {source} and {target} have different widths")


REDEFINED: tuple[type[Operation], ...] = (
    CmpiOp,
    CmpfOp,
    SelectOp,
    ExtSIOp,
    ExtUIOp,
    TruncIOp,
    SIToFPOp,
    UIToFPOp,
    FPToSIOp,
    FPToUIOp,
    ExtFOp,
    TruncFOp,
    BitcastOp,
)
_REDEFINED_NAMES = {op.name for op in REDEFINED}

ARITH = Dialect(
    "arith",
    [*(op for op in Arith.operations if op.name not in _REDEFINED_NAMES), *REDEFINED],
    list(Arith.attributes),
    [ArithConstantMaterializationInterface()],
)
