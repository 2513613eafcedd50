"""What happens to scores in an attention: the part of the `tiling` dialect that says so.

A *score region* maps the score of one pair, and where the pair lies, to the number that is used in its place. It holds
operations of `arith` and `math` on single numbers, and reads of tables:

    ^bb0(%score: f32, %b: i32, %h: i32, %q: i32, %kv: i32, captured values ...):
      ...
      tiling.yield %result : f32

`tiling.score` gives such a region a name, with the way in which its results weigh values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    BFloat16Type,
    Float16Type,
    Float32Type,
    MemRefType,
    f32,
    i32,
)
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Block, Operation, Region, SpacedOpaqueSyntaxAttribute, SSAValue
from xdsl.irdl import IRDLOperation, irdl_attr_definition, irdl_op_definition, operand_def, result_def, traits_def
from xdsl.traits import IsTerminator, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from compilemask.dialects.function import FunctionLike
from compilemask.dialects.narrowing import is_memref

SCORE_ARGUMENTS = ("score", "b", "h", "q", "kv")
"""The first arguments of a score region: a score, its batch, query head, query and key."""
SCORE_TYPES: tuple[Attribute, ...] = (f32, i32, i32, i32, i32)
LARGEST_NUMBER = (2 - 2**-23) * 2.0**127
"""The largest finite f32: scores are of that type, and so are numbers that change them."""
ELEMENTWISE = ("arith", "math")
"""Dialects whose operations a score region may hold."""


class Weights(StrEnum):
    """How what a score region gives weighs values."""

    SOFTMAX = "softmax"
    """By its softmax over the visible keys of a row."""

    POINTWISE = "pointwise"
    """As it is: an invisible key weighs 0."""


@irdl_attr_definition
class WeightsAttr(EnumAttribute[Weights], SpacedOpaqueSyntaxAttribute):
    """`#tiling<weights softmax>` or `#tiling<weights pointwise>`."""

    name = "tiling.weights"


def is_table_type(ty: Attribute) -> bool:
    """Whether this is a table that a score region may read: `memref<?xT>`, T being f32, f16, bf16 or i32."""
    if not is_memref(ty) or ty.get_shape() != (DYNAMIC_INDEX,):
        return False
    return isinstance(ty.element_type, Float32Type | Float16Type | BFloat16Type) or ty.element_type == i32


def is_captured_type(ty: Attribute) -> bool:
    """Whether a score region may capture such a value: a number, `f32`, or a table, of a batch and query head."""
    return ty == f32 or is_table_type(ty)


def verify_score_block(name: str, block: Block, *others: type[Operation]) -> None:
    """Raise unless a block maps (score, b, h, q, kv, captured...) to a score by what a score region may hold.

    `others` are operations that it may hold besides.
    """
    types = [argument.type for argument in block.args]
    if tuple(types[: len(SCORE_TYPES)]) != SCORE_TYPES or not isinstance(block.last_op, YieldOp):
        raise VerifyException(
            f"{name}: a score region takes (score: f32, b: i32, h: i32, q: i32, kv: i32, captured values) and ends in "
            "tiling.yield"
        )
    for position, ty in enumerate(types[len(SCORE_TYPES) :], start=len(SCORE_TYPES)):
        if not is_captured_type(ty):
            raise VerifyException(
                f"{name}: argument {position} of the score region is {ty}; it captures f32, and memref<?xT> of f32, "
                "f16, bf16 or i32"
            )
    for op in block.ops:
        verify_scoring(name, op, block, *others)


def verify_scoring(name: str, op: Operation, block: Block, *others: type[Operation]) -> None:
    """Raise unless an operation may stand in a score region, and uses values of it only."""
    is_known = op.name.split(".")[0] in ELEMENTWISE and not op.regions
    if not is_known and not isinstance(op, (ReadOp, YieldOp, *others)):
        raise VerifyException(
            f"{name}: {op.name} in a score region; arith and math operations on numbers, and tiling.read, are known"
        )
    for operand in op.operands:
        owner = operand.owner
        if (owner.parent if isinstance(owner, Operation) else owner) is not block:
            raise VerifyException(f"{name}: {op.name} in a score region uses a value from outside of it")


@irdl_op_definition
class ReadOp(IRDLOperation):
    """The entry of a captured table at an index; an index outside the table reads the nearest entry."""

    name = "tiling.read"
    table = operand_def(MemRefType)
    index = operand_def(i32)
    result = result_def()
    assembly_format = "$table `[` $index `]` attr-dict `:` type($table) `->` type($result)"
    traits = traits_def(Pure())

    def __init__(self, table: SSAValue, index: SSAValue) -> None:
        assert is_memref(table.type)
        super().__init__(operands=[table, index], result_types=[table.type.element_type])

    def verify_(self) -> None:
        table = self.table.type
        if not is_table_type(table):
            raise VerifyException(f"tiling.read takes memref<?xT> of f32, f16, bf16 or i32, got {table}")
        assert is_memref(table)
        if self.result.type != table.element_type:
            raise VerifyException(f"tiling.read of {table} gives {table.element_type}, not {self.result.type}")


@irdl_op_definition
class YieldOp(IRDLOperation):
    """Ends a score region with the score that is used."""

    name = "tiling.yield"
    score = operand_def(f32)
    assembly_format = "$score attr-dict"
    traits = traits_def(IsTerminator())
    PARENTS: ClassVar = ("tiling.attention", "tiling.score", "tiling.score_gradient")

    def __init__(self, score: SSAValue) -> None:
        super().__init__(operands=[score])

    def verify_(self) -> None:
        parent = self.parent_op()
        if parent is None or parent.name not in self.PARENTS:
            raise VerifyException(f"tiling.yield ends a score region, which is one of {', '.join(self.PARENTS)}")


@irdl_op_definition
class ScoreOp(FunctionLike):
    """(score, b, h, q, kv, captured values...) -> the score that is used.

    Attributes: `weights` (`#tiling<weights ...>`, softmax if left out), and `sink`, the type of its logits, if the
    softmax has one more key per query head, with a logit of its own and the value 0.
    """

    name = "tiling.score"

    def verify_(self) -> None:
        what = f"{self.name} @{self.sym_name.data}"
        inputs, outputs = self.function_type.inputs.data, self.function_type.outputs.data
        if tuple(arg.type for arg in self.body.block.args) != tuple(inputs):
            raise VerifyException(f"{what}: block arguments do not match the function type")
        if tuple(outputs) != (f32,):
            raise VerifyException(f"{what} must return one f32")
        if not isinstance(self.attributes.get("weights", WeightsAttr(Weights.SOFTMAX)), WeightsAttr):
            raise VerifyException(f"{what}: weights must be #tiling<weights softmax> or #tiling<weights pointwise>")
        sink = self.attributes.get("sink")
        if sink is not None and not isinstance(sink, Float32Type | Float16Type | BFloat16Type):
            raise VerifyException(f"{what}: sink is the type of its logits, f32, f16 or bf16, not {sink}")
        if sink is not None and self.weights is not Weights.SOFTMAX:
            raise VerifyException(f"{what}: pointwise weights have no sink; it is a key of a softmax")
        verify_score_block(what, self.body.block)

    @property
    def weights(self) -> Weights:
        """How the result weighs values."""
        weights = self.attributes.get("weights")
        return weights.data if isinstance(weights, WeightsAttr) else Weights.SOFTMAX

    @property
    def sink(self) -> MemRefType | None:
        """The type of a table of the sink's logits; None without a sink."""
        element = self.attributes.get("sink")
        return None if element is None else MemRefType(element, [DYNAMIC_INDEX])

    @property
    def captured(self) -> Sequence[Attribute]:
        """Types of the captured values."""
        return self.function_type.inputs.data[len(SCORE_TYPES) :]

    @property
    def is_identity(self) -> bool:
        """Whether scores are used as they are."""
        last = self.body.block.last_op
        return isinstance(last, YieldOp) and last.score is self.body.block.args[0]


def score_attributes(weights: Weights, sink: Attribute | None) -> dict[str, Attribute]:
    """The attributes of a `tiling.score`, from the type of a sink's logits; a softmax is not mentioned."""
    attributes: dict[str, Attribute] = {}
    if weights is not Weights.SOFTMAX:
        attributes["weights"] = WeightsAttr(weights)
    if sink is not None:
        attributes["sink"] = sink
    return attributes


def region_of(score: ScoreOp) -> Region:
    """A copy of the region; empty if scores are used as they are."""
    return Region() if score.is_identity else score.body.clone()


__all__ = [
    "SCORE_ARGUMENTS",
    "SCORE_TYPES",
    "ReadOp",
    "ScoreOp",
    "Weights",
    "WeightsAttr",
    "YieldOp",
    "is_captured_type",
    "is_table_type",
    "region_of",
    "score_attributes",
    "verify_score_block",
]
