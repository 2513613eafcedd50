"""Operations of the `tt` dialect that compute: matrix products, reductions, scans, bit casts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import AnyFloat, BoolAttr, IntegerAttr, IntegerType, TensorType, i32
from xdsl.dialects.utils import AbstractYieldOperation
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    VarConstraint,
    base,
    irdl_op_definition,
    lazy_traits_def,
    operand_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsTerminator, Pure

from compilemask.dialects.narrowing import is_integer, is_tensor
from compilemask.dialects.triton.enums import INPUT_PRECISIONS, enum_attr, enum_name, parse_enum
from compilemask.dialects.triton.layouts import RegisterLayout, SliceLayout
from compilemask.dialects.triton.types import PointerType, element_of, like, require, shape_of, with_shape

_ANY_TENSOR = base(TensorType)


@irdl_op_definition
class BitcastOp(IRDLOperation):
    """The same bits read as another element type of equal width, elementwise; also between pointer types."""

    name = "tt.bitcast"
    src = operand_def(AnyAttr())
    result = result_def(AnyAttr())
    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"
    traits = traits_def(Pure())

    def __init__(self, src: SSAValue | Operation, result_type: Attribute) -> None:
        super().__init__(operands=[src], result_types=[result_type])

    def verify_(self) -> None:
        source, target = element_of(self.src.type), element_of(self.result.type)
        require(
            self.result.type == like(self.src.type, target),
            self,
            f"shapes of {self.src.type}, {self.result.type} differ",
        )
        require(_width(source) == _width(target), self, f"{source} and {target} have different widths")


def _width(element: Attribute) -> int | str:
    if isinstance(element, IntegerType | AnyFloat):
        return element.bitwidth
    return "pointer" if isinstance(element, PointerType) else "unknown"


@irdl_op_definition
class DotOp(IRDLOperation):
    """The matrix product a @ b + c: a [.., M, K] and b [.., K, N] of one element type, c and the result [.., M, N]."""

    name = "tt.dot"
    inputPrecision = prop_def(IntegerAttr, default_value=IntegerAttr(INPUT_PRECISIONS["ieee"], i32))
    maxNumImpreciseAcc = prop_def(IntegerAttr, default_value=IntegerAttr(0, i32))
    T: ClassVar = VarConstraint("T", _ANY_TENSOR)
    a = operand_def(_ANY_TENSOR)
    b = operand_def(_ANY_TENSOR)
    c = operand_def(T)
    result = result_def(T)
    traits = traits_def(Pure())

    def __init__(
        self,
        a: SSAValue | Operation,
        b: SSAValue | Operation,
        c: SSAValue | Operation,
        *,
        precision: str | IntegerAttr = "ieee",
        max_imprecise: int = 0,
    ) -> None:
        c = SSAValue.get(c)
        super().__init__(
            operands=[a, b, c],
            result_types=[c.type],
            properties={
                "inputPrecision": enum_attr(INPUT_PRECISIONS, precision) if isinstance(precision, str) else precision,
                "maxNumImpreciseAcc": IntegerAttr(max_imprecise, i32),
            },
        )

    def verify_(self) -> None:
        a, b, c = shape_of(self.a.type), shape_of(self.b.type), shape_of(self.c.type)
        fits = len(a) == len(b) == len(c) and len(a) in (2, 3) and a[:-2] == b[:-2] == c[:-2]
        require(
            fits and a[-1] == b[-2] and c[-2:] == (a[-2], b[-1]),
            self,
            f"{self.a.type} times {self.b.type} does not give {self.c.type}",
        )
        require(element_of(self.a.type) == element_of(self.b.type), self, "a and b differ in element type")
        enum_name(INPUT_PRECISIONS, self.inputPrecision)

    @classmethod
    def parse(cls, parser: Parser) -> DotOp:
        operands = [parser.parse_unresolved_operand()]
        for _ in range(2):
            parser.parse_punctuation(",")
            operands.append(parser.parse_unresolved_operand())
        precision: str | IntegerAttr = "ieee"
        if parser.parse_optional_punctuation(","):
            parser.parse_keyword("inputPrecision")
            parser.parse_punctuation("=")
            precision = parse_enum(parser, INPUT_PRECISIONS)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        a = parser.parse_type()
        parser.parse_punctuation("*")
        b = parser.parse_type()
        parser.parse_punctuation("->")
        resolved = parser.resolve_operands(operands, [a, b, parser.parse_type()], parser.pos)
        op = cls(*resolved, precision=precision)
        if is_integer(imprecise := attributes.get("maxNumImpreciseAcc")):
            op.maxNumImpreciseAcc = imprecise
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        if (precision := enum_name(INPUT_PRECISIONS, self.inputPrecision)) != "ieee":
            printer.print_string(f", inputPrecision = {precision}")
        if self.maxNumImpreciseAcc.value.data:
            printer.print_attr_dict({"maxNumImpreciseAcc": self.maxNumImpreciseAcc})
        printer.print_string(" : ")
        printer.print_attribute(self.a.type)
        printer.print_string(" * ")
        printer.print_attribute(self.b.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)


# ---------------------------------------------------------------- reductions and scans


def _verify_combine(op: Operation, axis: IntegerAttr, terminator: type[AbstractYieldOperation[Attribute]]) -> None:
    """Operands of one shape, an axis inside it, and a region that combines two tuples of their elements into one."""
    types = list(op.operand_types)
    require(bool(types) and all(isinstance(t, TensorType) for t in types), op, "operands must be tensors")
    shape = shape_of(types[0])
    require(all(shape_of(t) == shape for t in types), op, "operands differ in shape")
    require(axis.type == i32 and 0 <= axis.value.data < len(shape), op, f"axis {axis.value.data} is outside {shape}")
    elements = [element_of(t) for t in types]
    block = op.regions[0].blocks.first
    require(
        block is not None and list(block.arg_types) == elements * 2,
        op,
        "the region must take two values of each element type",
    )
    last = block.last_op if block is not None else None
    require(
        isinstance(last, terminator) and list(last.operand_types) == elements,
        op,
        f"the region must end in {terminator.name} with one value of each element type",
    )


@irdl_op_definition
class ReduceOp(IRDLOperation):
    """Elements along `axis` combined by the region, several tensors at once; the axis goes (rank 1 gives a scalar)."""

    name = "tt.reduce"
    axis = prop_def(IntegerAttr)
    srcs = var_operand_def(_ANY_TENSOR)
    results_ = var_result_def(AnyAttr())
    combine = region_def("single_block")
    traits = traits_def(Pure())

    def __init__(self, srcs: Sequence[SSAValue | Operation], axis: int, combine: Region) -> None:
        values = [SSAValue.get(src) for src in srcs]
        super().__init__(
            operands=[values],
            result_types=[[reduced_type(value.type, axis) for value in values]],
            properties={"axis": IntegerAttr(axis, i32)},
            regions=[combine],
        )

    def verify_(self) -> None:
        _verify_combine(self, self.axis, ReduceReturnOp)
        expected = [reduced_type(t, self.axis.value.data) for t in self.srcs.types]
        require(list(self.results_.types) == expected, self, f"results should be {', '.join(map(str, expected))}")


def reduced_type(type_: Attribute, axis: int) -> Attribute:
    """The type of a reduction of `type_` along `axis`; of a tensor with a layout, in the layout's slice."""
    shape = shape_of(type_)
    rest = (*shape[:axis], *shape[axis + 1 :])
    if rest and is_tensor(type_) and isinstance(type_.encoding, RegisterLayout):
        return TensorType(element_of(type_), rest, SliceLayout.of(axis, type_.encoding))
    return with_shape(element_of(type_), rest)


@irdl_op_definition
class ReduceReturnOp(AbstractYieldOperation[Attribute]):
    """Ends the region of `tt.reduce` with the combined values."""

    name = "tt.reduce.return"
    traits = lazy_traits_def(lambda: (IsTerminator(), HasParent(ReduceOp), Pure()))


@irdl_op_definition
class ScanOp(IRDLOperation):
    """Inclusive prefix combination along `axis` by the region, from the end if `reverse`; shapes stay."""

    name = "tt.scan"
    axis = prop_def(IntegerAttr)
    reverse = prop_def(BoolAttr)
    srcs = var_operand_def(_ANY_TENSOR)
    results_ = var_result_def(_ANY_TENSOR)
    combine = region_def("single_block")
    traits = traits_def(Pure())

    def __init__(
        self, srcs: Sequence[SSAValue | Operation], axis: int, combine: Region, *, reverse: bool = False
    ) -> None:
        values = [SSAValue.get(src) for src in srcs]
        super().__init__(
            operands=[values],
            result_types=[[value.type for value in values]],
            properties={"axis": IntegerAttr(axis, i32), "reverse": BoolAttr.from_bool(reverse)},
            regions=[combine],
        )

    def verify_(self) -> None:
        _verify_combine(self, self.axis, ScanReturnOp)
        require(list(self.results_.types) == list(self.srcs.types), self, "results must have the operands' types")


@irdl_op_definition
class ScanReturnOp(AbstractYieldOperation[Attribute]):
    """Ends the region of `tt.scan` with the combined values."""

    name = "tt.scan.return"
    traits = lazy_traits_def(lambda: (IsTerminator(), HasParent(ScanOp), Pure()))


COMPUTE_OPS: tuple[type[Operation], ...] = (BitcastOp, DotOp, ReduceOp, ReduceReturnOp, ScanOp, ScanReturnOp)
