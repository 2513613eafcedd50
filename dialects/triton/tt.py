"""The `tt` dialect: Triton IR, the portable level that Triton's own compiler lowers to every GPU.

Only what CompileMask emits is defined. Property names, operand segments and enum numbers are those of Triton's own dialect, so the
generic form (`printing.print_generic`) is text that Triton parses; custom syntax is Triton's too. Shapes are static.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import (
    AnyFloat,
    ArrayAttr,
    BoolAttr,
    DenseArrayBase,
    DictionaryAttr,
    FunctionType,
    IntegerAttr,
    IntegerType,
    StringAttr,
    SymbolNameConstraint,
    TensorType,
    UnitAttr,
    i1,
    i32,
    i64,
)
from xdsl.dialects.utils import AbstractYieldOperation, parse_func_op_like, print_func_op_like
from xdsl.ir import Attribute, Block, Dialect, Operation, Region, SSAValue
from xdsl.irdl import (
    AnyAttr,
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    VarConstraint,
    base,
    eq,
    irdl_op_definition,
    lazy_traits_def,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsolatedFromAbove, IsTerminator, Pure, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from compilemask.dialects.triton.types import PointerType, element_of, like, pointee_of, shape_of

AXES = ("x", "y", "z")
CACHE_MODIFIERS = {"none": 1, "ca": 2, "cg": 3, "wb": 4, "cs": 5, "wt": 6, "cv": 7}
EVICTION_POLICIES = {"evict_normal": 1, "evict_first": 2, "evict_last": 3}
INPUT_PRECISIONS = {"tf32": 0, "tf32x3": 1, "ieee": 2}
RMW_OPS = {
    "and": 1,
    "or": 2,
    "xor": 3,
    "add": 4,
    "fadd": 5,
    "max": 6,
    "min": 7,
    "umax": 8,
    "umin": 9,
    "exch": 10,
}
MEM_SEMANTICS = {"relaxed": 1, "acquire": 2, "release": 3, "acq_rel": 4}
MEM_SCOPES = {"gpu": 1, "cta": 2, "sys": 3}

_ANY_TENSOR = base(TensorType)


def enum_name(names: dict[str, int], attr: IntegerAttr) -> str:
    """The keyword of an enum attribute, such as `acq_rel` for 4."""
    for name, number in names.items():
        if number == attr.value.data:
            return name
    raise VerifyException(f"{attr.value.data} is not one of {names}")


def _enum_attr(names: dict[str, int], name: str) -> IntegerAttr:
    if name not in names:
        raise VerifyException(f"'{name}' is not one of {', '.join(names)}")
    return IntegerAttr(names[name], i32)


def _parse_enum(parser: Parser, names: dict[str, int]) -> IntegerAttr:
    position = parser.pos
    name = parser.parse_identifier()
    if name not in names:
        parser.raise_error(f"expected one of {', '.join(names)}", position, parser.pos)
    return IntegerAttr(names[name], i32)


def _require(condition: bool, op: Operation, message: str) -> None:
    if not condition:
        raise VerifyException(f"{op.name}: {message}")


def _same_element(op: Operation, source: Attribute, result: Attribute) -> None:
    _require(element_of(source) == element_of(result), op, f"element types of {source} and {result} differ")


# ---------------------------------------------------------------- functions


@irdl_op_definition
class FuncOp(IRDLOperation):
    """A kernel: its arguments are scalars and pointers, argument attributes such as `tt.divisibility = 16 : i32` included."""

    name = "tt.func"
    body = region_def()
    sym_name = prop_def(SymbolNameConstraint())
    function_type = prop_def(FunctionType)
    sym_visibility = opt_prop_def(StringAttr)
    arg_attrs = opt_prop_def(ArrayAttr[DictionaryAttr])
    res_attrs = opt_prop_def(ArrayAttr[DictionaryAttr])
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface())

    def __init__(
        self,
        name: str,
        inputs: Sequence[Attribute],
        outputs: Sequence[Attribute] = (),
        region: Region | None = None,
        *,
        visibility: str | None = "public",
        arg_attrs: ArrayAttr[DictionaryAttr] | None = None,
        res_attrs: ArrayAttr[DictionaryAttr] | None = None,
    ) -> None:
        super().__init__(
            properties={
                "sym_name": StringAttr(name),
                "function_type": FunctionType.from_lists(inputs, outputs),
                "sym_visibility": None if visibility is None else StringAttr(visibility),
                "arg_attrs": arg_attrs,
                "res_attrs": res_attrs,
            },
            regions=[region if region is not None else Region(Block(arg_types=inputs))],
        )

    def verify_(self) -> None:
        inputs, outputs = self.function_type.inputs.data, self.function_type.outputs.data
        entry = self.body.blocks.first
        if entry is None:
            raise VerifyException(f"{self.name}: @{self.sym_name.data} has no body")
        _require(tuple(entry.arg_types) == inputs, self, "entry block arguments differ from the function type")
        if self.arg_attrs is not None:
            _require(len(self.arg_attrs) == len(inputs), self, "one attribute dictionary per argument is needed")
        returned = entry.last_op
        if isinstance(returned, ReturnOp):
            _require(tuple(returned.arguments.types) == outputs, self, "returned types differ from the function type")

    @classmethod
    def parse(cls, parser: Parser) -> FuncOp:
        visibility = parser.parse_optional_visibility_keyword()
        name, inputs, outputs, region, extra, arg_attrs, res_attrs = parse_func_op_like(
            parser, reserved_attr_names=("sym_name", "function_type", "sym_visibility", "arg_attrs", "res_attrs")
        )
        func = cls(
            name,
            inputs,
            outputs,
            region,
            visibility=visibility.data if isinstance(visibility, StringAttr) else visibility,
            arg_attrs=arg_attrs,
            res_attrs=res_attrs,
        )
        if extra is not None:
            func.attributes |= extra.data
        return func

    def print(self, printer: Printer) -> None:
        if self.sym_visibility is not None:
            printer.print_string(f" {self.sym_visibility.data}")
        print_func_op_like(
            printer,
            self.sym_name,
            self.function_type,
            self.body,
            self.attributes,
            arg_attrs=self.arg_attrs,
            res_attrs=self.res_attrs,
            reserved_attr_names=("sym_name", "function_type", "sym_visibility", "arg_attrs", "res_attrs"),
        )


@irdl_op_definition
class ReturnOp(AbstractYieldOperation[Attribute]):
    """Ends a `tt.func`; a kernel returns nothing."""

    name = "tt.return"
    traits = lazy_traits_def(lambda: (IsTerminator(), HasParent(FuncOp)))


# ---------------------------------------------------------------- the grid


class _GridOp(IRDLOperation):
    """Syntax and verification shared by the two questions about the grid."""

    axis = prop_def(IntegerAttr)
    result = result_def(i32)
    traits = traits_def(Pure())

    def __init__(self, axis: int) -> None:
        super().__init__(result_types=[i32], properties={"axis": IntegerAttr(axis, i32)})

    def verify_(self) -> None:
        _require(self.axis.type == i32 and 0 <= self.axis.value.data < 3, self, "axis must be 0, 1 or 2")

    @classmethod
    def parse(cls, parser: Parser):
        axis = _parse_enum(parser, {name: number for number, name in enumerate(AXES)})
        parser.parse_punctuation(":")
        parser.parse_type()
        return cls(axis.value.data)

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {AXES[self.axis.value.data]} : i32")


@irdl_op_definition
class GetProgramIdOp(_GridOp):
    """This program's index along a grid axis, i32."""

    name = "tt.get_program_id"


@irdl_op_definition
class GetNumProgramsOp(_GridOp):
    """The grid's size along an axis, i32."""

    name = "tt.get_num_programs"


# ---------------------------------------------------------------- making and shaping tensors


class _ShapeOp(IRDLOperation):
    """One tensor or scalar in, one out: `%src : type -> type`."""

    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())


@irdl_op_definition
class MakeRangeOp(IRDLOperation):
    """The integers start, start + 1, ..., end - 1 as tensor<(end - start) x i32>; a power of two many."""

    name = "tt.make_range"
    start = prop_def(IntegerAttr)
    end = prop_def(IntegerAttr)
    result = result_def(_ANY_TENSOR)
    assembly_format = "attr-dict `:` type($result)"
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())

    def __init__(self, start: int, end: int) -> None:
        properties = {"start": IntegerAttr(start, i32), "end": IntegerAttr(end, i32)}
        super().__init__(result_types=[TensorType(i32, [end - start])], properties=properties)

    def verify_(self) -> None:
        count = self.end.value.data - self.start.value.data
        _require(self.start.type == i32 and self.end.type == i32, self, "start and end must be i32")
        _require(count > 0 and count & (count - 1) == 0, self, f"{count} elements, a power of two is needed")
        _require(
            self.result.type == like(self.result.type, i32) and shape_of(self.result.type) == (count,),
            self,
            f"result {self.result.type} should be tensor<{count}xi32>",
        )


@irdl_op_definition
class SplatOp(_ShapeOp):
    """A tensor whose elements all equal a scalar."""

    name = "tt.splat"
    src = operand_def(AnyAttr())
    result = result_def(_ANY_TENSOR)

    def __init__(self, src: SSAValue | Operation, result_type: Attribute) -> None:
        super().__init__(operands=[src], result_types=[result_type])

    def verify_(self) -> None:
        _require(not isinstance(self.src.type, TensorType), self, "the source must be a scalar")
        _same_element(self, self.src.type, self.result.type)


@irdl_op_definition
class UnsplatOp(IRDLOperation):
    """The scalar in a tensor of one element."""

    name = "tt.unsplat"
    src = operand_def(_ANY_TENSOR)
    result = result_def(AnyAttr())
    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"
    traits = traits_def(Pure())

    def __init__(self, src: SSAValue | Operation) -> None:
        src = SSAValue.get(src)
        super().__init__(operands=[src], result_types=[element_of(src.type)])

    def verify_(self) -> None:
        _require(prod(shape_of(self.src.type)) == 1, self, f"{self.src.type} has more than one element")
        _require(element_of(self.src.type) == self.result.type, self, "the result must be the element type")


@irdl_op_definition
class ExpandDimsOp(_ShapeOp):
    """A dimension of size 1 inserted at `axis`."""

    name = "tt.expand_dims"
    axis = prop_def(IntegerAttr)
    src = operand_def(_ANY_TENSOR)
    result = result_def(_ANY_TENSOR)

    def __init__(self, src: SSAValue | Operation, axis: int) -> None:
        src = SSAValue.get(src)
        shape = shape_of(src.type)
        result = TensorType(element_of(src.type), (*shape[:axis], 1, *shape[axis:]))
        super().__init__(operands=[src], result_types=[result], properties={"axis": IntegerAttr(axis, i32)})

    def verify_(self) -> None:
        axis, shape = self.axis.value.data, shape_of(self.src.type)
        _require(self.axis.type == i32 and 0 <= axis <= len(shape), self, f"axis {axis} is outside rank {len(shape)}")
        _require(
            shape_of(self.result.type) == (*shape[:axis], 1, *shape[axis:]),
            self,
            f"{self.result.type} is not {self.src.type} with a 1 inserted at axis {axis}",
        )
        _same_element(self, self.src.type, self.result.type)


@irdl_op_definition
class BroadcastOp(_ShapeOp):
    """Dimensions of size 1 repeated up to the result's shape; the rank stays."""

    name = "tt.broadcast"
    src = operand_def(_ANY_TENSOR)
    result = result_def(_ANY_TENSOR)

    def __init__(self, src: SSAValue | Operation, shape: Sequence[int]) -> None:
        src = SSAValue.get(src)
        super().__init__(operands=[src], result_types=[TensorType(element_of(src.type), shape)])

    def verify_(self) -> None:
        source, target = shape_of(self.src.type), shape_of(self.result.type)
        _require(
            len(source) == len(target) and all(a in (1, b) for a, b in zip(source, target, strict=True)),
            self,
            f"{self.src.type} does not broadcast to {self.result.type}",
        )
        _same_element(self, self.src.type, self.result.type)


@irdl_op_definition
class ReshapeOp(_ShapeOp):
    """The same elements in row-major order under another shape; `allow_reorder` lets the compiler permute them."""

    name = "tt.reshape"
    allow_reorder = opt_prop_def(UnitAttr)
    efficient_layout = opt_prop_def(UnitAttr)
    src = operand_def(_ANY_TENSOR)
    result = result_def(_ANY_TENSOR)
    assembly_format = (
        "$src (`allow_reorder` $allow_reorder^)? (`efficient_layout` $efficient_layout^)? attr-dict"
        " `:` type($src) `->` type($result)"
    )

    def __init__(self, src: SSAValue | Operation, shape: Sequence[int], *, allow_reorder: bool = False) -> None:
        src = SSAValue.get(src)
        super().__init__(
            operands=[src],
            result_types=[TensorType(element_of(src.type), shape)],
            properties={"allow_reorder": UnitAttr() if allow_reorder else None},
        )

    def verify_(self) -> None:
        _require(
            prod(shape_of(self.src.type)) == prod(shape_of(self.result.type)),
            self,
            f"{self.src.type} and {self.result.type} differ in the number of elements",
        )
        _same_element(self, self.src.type, self.result.type)


@irdl_op_definition
class TransOp(_ShapeOp):
    """Dimensions permuted: result dimension i is source dimension order[i]."""

    name = "tt.trans"
    order = prop_def(DenseArrayBase)
    src = operand_def(_ANY_TENSOR)
    result = result_def(_ANY_TENSOR)

    def __init__(self, src: SSAValue | Operation, order: Sequence[int]) -> None:
        src = SSAValue.get(src)
        shape = shape_of(src.type)
        super().__init__(
            operands=[src],
            result_types=[TensorType(element_of(src.type), [shape[i] for i in order])],
            properties={"order": DenseArrayBase.from_list(i32, list(order))},
        )

    def verify_(self) -> None:
        order, shape = [int(i) for i in self.order.get_values()], shape_of(self.src.type)
        _require(sorted(order) == list(range(len(shape))), self, f"{order} does not permute {len(shape)} dimensions")
        _require(
            shape_of(self.result.type) == tuple(shape[i] for i in order),
            self,
            f"{self.result.type} is not {self.src.type} in the order {order}",
        )
        _same_element(self, self.src.type, self.result.type)


@irdl_op_definition
class JoinOp(IRDLOperation):
    """Two tensors of one shape interleaved along a new last dimension of size 2."""

    name = "tt.join"
    T = VarConstraint("T", _ANY_TENSOR)
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def(_ANY_TENSOR)
    assembly_format = "$lhs `,` $rhs attr-dict `:` type($lhs) `->` type($result)"
    traits = traits_def(Pure())

    def __init__(self, lhs: SSAValue | Operation, rhs: SSAValue | Operation) -> None:
        type_ = SSAValue.get(lhs).type
        super().__init__(operands=[lhs, rhs], result_types=[TensorType(element_of(type_), (*shape_of(type_), 2))])

    def verify_(self) -> None:
        _require(shape_of(self.result.type) == (*shape_of(self.lhs.type), 2), self, "the result must add a dimension of 2")
        _same_element(self, self.lhs.type, self.result.type)


@irdl_op_definition
class SplitOp(IRDLOperation):
    """The two halves of a tensor whose last dimension is 2; the inverse of `tt.join`."""

    name = "tt.split"
    T = VarConstraint("T", AnyAttr())
    src = operand_def(_ANY_TENSOR)
    outLHS = result_def(T)
    outRHS = result_def(T)
    assembly_format = "$src attr-dict `:` type($src) `->` type($outLHS)"
    traits = traits_def(Pure())

    def __init__(self, src: SSAValue | Operation) -> None:
        src = SSAValue.get(src)
        half = TensorType(element_of(src.type), shape_of(src.type)[:-1])
        super().__init__(operands=[src], result_types=[half, half])

    def verify_(self) -> None:
        _require(shape_of(self.src.type) == (*shape_of(self.outLHS.type), 2), self, "the last dimension must be 2")
        _same_element(self, self.src.type, self.outLHS.type)
