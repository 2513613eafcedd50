"""Operations of the `tt` dialect that ask about the grid, make tensors and change shapes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar, Self

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, TensorType, UnitAttr, i32
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    ParsePropInAttrDict,
    VarConstraint,
    base,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure

from compilemask.dialects.triton.enums import parse_enum
from compilemask.dialects.triton.layouts import LinearLayout, SliceLayout
from compilemask.dialects.triton.layouts_linear import permuted
from compilemask.dialects.triton.types import (
    element_of,
    encoding_of,
    like,
    require,
    require_same_element,
    shape_of,
    with_shape,
)

AXES = ("x", "y", "z")
_ANY_TENSOR = base(TensorType)

# ---------------------------------------------------------------- the grid


class _GridOp(IRDLOperation):
    """Syntax and verification shared by the two questions about the grid."""

    axis = prop_def(IntegerAttr)
    result = result_def(i32)
    traits = traits_def(Pure())

    def __init__(self, axis: int) -> None:
        super().__init__(result_types=[i32], properties={"axis": IntegerAttr(axis, i32)})

    def verify_(self) -> None:
        require(self.axis.type == i32 and 0 <= self.axis.value.data < 3, self, "axis must be 0, 1 or 2")

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        axis = parse_enum(parser, {name: number for number, name in enumerate(AXES)})
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

    def __init__(self, start: int, end: int, encoding: Attribute | None = None) -> None:
        properties = {"start": IntegerAttr(start, i32), "end": IntegerAttr(end, i32)}
        super().__init__(result_types=[with_shape(i32, [end - start], encoding)], properties=properties)

    def verify_(self) -> None:
        count = self.end.value.data - self.start.value.data
        require(self.start.type == i32 and self.end.type == i32, self, "start and end must be i32")
        require(count > 0 and count & (count - 1) == 0, self, f"{count} elements, a power of two is needed")
        require(
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
        require(not isinstance(self.src.type, TensorType), self, "the source must be a scalar")
        require_same_element(self, self.src.type, self.result.type)


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
        require(prod(shape_of(self.src.type)) == 1, self, f"{self.src.type} has more than one element")
        require(element_of(self.src.type) == self.result.type, self, "the result must be the element type")


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
        layout = encoding_of(src.type)
        if isinstance(layout, SliceLayout) and layout.dim.data == axis:
            layout = layout.parent
        result = with_shape(element_of(src.type), (*shape[:axis], 1, *shape[axis:]), layout)
        super().__init__(operands=[src], result_types=[result], properties={"axis": IntegerAttr(axis, i32)})

    def verify_(self) -> None:
        axis, shape = self.axis.value.data, shape_of(self.src.type)
        require(self.axis.type == i32 and 0 <= axis <= len(shape), self, f"axis {axis} is outside rank {len(shape)}")
        require(
            shape_of(self.result.type) == (*shape[:axis], 1, *shape[axis:]),
            self,
            f"{self.result.type} is not {self.src.type} with a 1 inserted at axis {axis}",
        )
        require_same_element(self, self.src.type, self.result.type)
        source, result = encoding_of(self.src.type), encoding_of(self.result.type)
        if source is not None:
            fits = isinstance(source, SliceLayout) and source.dim.data == axis and source.parent == result
            require(fits, self, f"the layout of {self.src.type} is not the slice of {result} along {axis}")


@irdl_op_definition
class BroadcastOp(_ShapeOp):
    """Dimensions of size 1 repeated up to the result's shape; the rank stays."""

    name = "tt.broadcast"
    src = operand_def(_ANY_TENSOR)
    result = result_def(_ANY_TENSOR)

    def __init__(self, src: SSAValue | Operation, shape: Sequence[int]) -> None:
        src = SSAValue.get(src)
        result = with_shape(element_of(src.type), shape, encoding_of(src.type))
        super().__init__(operands=[src], result_types=[result])

    def verify_(self) -> None:
        source, target = shape_of(self.src.type), shape_of(self.result.type)
        require(
            len(source) == len(target) and all(a in (1, b) for a, b in zip(source, target, strict=True)),
            self,
            f"{self.src.type} does not broadcast to {self.result.type}",
        )
        require_same_element(self, self.src.type, self.result.type)


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

    def __init__(
        self,
        src: SSAValue | Operation,
        shape: Sequence[int],
        *,
        allow_reorder: bool = False,
        encoding: Attribute | None = None,
    ) -> None:
        src = SSAValue.get(src)
        super().__init__(
            operands=[src],
            result_types=[with_shape(element_of(src.type), shape, encoding)],
            properties={"allow_reorder": UnitAttr() if allow_reorder else None},
        )

    def verify_(self) -> None:
        require(
            prod(shape_of(self.src.type)) == prod(shape_of(self.result.type)),
            self,
            f"{self.src.type} and {self.result.type} differ in the number of elements",
        )
        require_same_element(self, self.src.type, self.result.type)


@irdl_op_definition
class TransOp(_ShapeOp):
    """Dimensions permuted: result dimension i is source dimension order[i]. A linear layout is permuted with them."""

    name = "tt.trans"
    order = prop_def(DenseArrayBase.constr(i32))
    src = operand_def(_ANY_TENSOR)
    result = result_def(_ANY_TENSOR)

    def __init__(self, src: SSAValue | Operation, order: Sequence[int]) -> None:
        src = SSAValue.get(src)
        shape, layout = shape_of(src.type), encoding_of(src.type)
        if isinstance(layout, LinearLayout):
            layout = permuted(layout, order)
        super().__init__(
            operands=[src],
            result_types=[with_shape(element_of(src.type), [shape[i] for i in order], layout)],
            properties={"order": DenseArrayBase.from_list(i32, list(order))},
        )

    def verify_(self) -> None:
        order, shape = [int(i) for i in self.order.get_values()], shape_of(self.src.type)
        require(sorted(order) == list(range(len(shape))), self, f"{order} does not permute {len(shape)} dimensions")
        require(
            shape_of(self.result.type) == tuple(shape[i] for i in order),
            self,
            f"{self.result.type} is not {self.src.type} in the order {order}",
        )
        require_same_element(self, self.src.type, self.result.type)
        source, result = encoding_of(self.src.type), encoding_of(self.result.type)
        if source is not None:
            require(isinstance(source, LinearLayout), self, f"the layout of {self.src.type} is not linear")
            fits = isinstance(source, LinearLayout) and permuted(source, order) == result
            require(fits, self, f"the layout of {self.result.type} is not that of {self.src.type} in the order {order}")


@irdl_op_definition
class JoinOp(IRDLOperation):
    """Two tensors of one shape interleaved along a new last dimension of size 2."""

    name = "tt.join"
    T: ClassVar = VarConstraint("T", _ANY_TENSOR)
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def(_ANY_TENSOR)
    assembly_format = "$lhs `,` $rhs attr-dict `:` type($lhs) `->` type($result)"
    traits = traits_def(Pure())

    def __init__(self, lhs: SSAValue | Operation, rhs: SSAValue | Operation) -> None:
        type_ = SSAValue.get(lhs).type
        super().__init__(operands=[lhs, rhs], result_types=[TensorType(element_of(type_), (*shape_of(type_), 2))])

    def verify_(self) -> None:
        require(
            shape_of(self.result.type) == (*shape_of(self.lhs.type), 2), self, "the result must add a dimension of 2"
        )
        require_same_element(self, self.lhs.type, self.result.type)


@irdl_op_definition
class SplitOp(IRDLOperation):
    """The two halves of a tensor whose last dimension is 2; the inverse of `tt.join`."""

    name = "tt.split"
    T: ClassVar = VarConstraint("T", AnyAttr())
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
        require(shape_of(self.src.type) == (*shape_of(self.outLHS.type), 2), self, "the last dimension must be 2")
        require_same_element(self, self.src.type, self.outLHS.type)


TENSOR_OPS: tuple[type[Operation], ...] = (
    GetProgramIdOp,
    GetNumProgramsOp,
    MakeRangeOp,
    SplatOp,
    UnsplatOp,
    ExpandDimsOp,
    BroadcastOp,
    ReshapeOp,
    TransOp,
    JoinOp,
    SplitOp,
)
