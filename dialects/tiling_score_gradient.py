"""How gradients go back through a score region: the part of the `tiling` dialect that says so.

A `tiling.score_gradient` takes what the `tiling.score` takes, and behind the pair its *slope*, the gradient of the
score that was used:

    ^bb0(%score: f32, %b: i32, %h: i32, %q: i32, %kv: i32, %slope: f32, captured values ...):
      ...
      tiling.accumulate %of_entry into %table[%index] : memref<?xf32>
      tiling.yield %of_score : f32

It gives the gradient of the score that came in, and adds to those of captured tables, which are sums over all pairs.
`passes/score_gradient.py` derives it.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import MemRefType, f32, i32
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def
from xdsl.utils.exceptions import VerifyException

from compilemask.dialects.function import FunctionLike
from compilemask.dialects.narrowing import is_memref
from compilemask.dialects.tiling_score import SCORE_TYPES, is_table_type, verify_score_block

GRADIENT_TYPES: tuple[Attribute, ...] = (*SCORE_TYPES, f32)
"""Of the first arguments: those of a score region, and the slope."""


@irdl_op_definition
class AccumulateOp(IRDLOperation):
    """Adds a number of each visible pair to the gradient of a table's entry, the one that `tiling.read` would read."""

    name = "tiling.accumulate"
    value = operand_def(f32)
    table = operand_def(MemRefType)
    index = operand_def(i32)
    assembly_format = "$value `into` $table `[` $index `]` attr-dict `:` type($table)"

    def __init__(self, value: SSAValue, table: SSAValue, index: SSAValue) -> None:
        super().__init__(operands=[value, table, index])

    def verify_(self) -> None:
        table = self.table.type
        if not is_table_type(table) or (is_memref(table) and table.element_type == i32):
            raise VerifyException(f"tiling.accumulate takes memref<?xT> of f32, f16 or bf16, got {table}")
        if not isinstance(self.parent_op(), ScoreGradientOp):
            raise VerifyException("tiling.accumulate stands in tiling.score_gradient")


@irdl_op_definition
class ScoreGradientOp(FunctionLike):
    """(score, b, h, q, kv, slope, captured values...) -> the gradient of the score, which is 0 where the slope is."""

    name = "tiling.score_gradient"

    def verify_(self) -> None:
        what = f"{self.name} @{self.sym_name.data}"
        inputs, outputs = self.function_type.inputs.data, self.function_type.outputs.data
        if tuple(arg.type for arg in self.body.block.args) != tuple(inputs):
            raise VerifyException(f"{what}: block arguments do not match the function type")
        if tuple(outputs) != (f32,):
            raise VerifyException(f"{what} must return one f32")
        verify_score_block(what, self.body.block, AccumulateOp)
        if tuple(inputs[: len(GRADIENT_TYPES)]) != GRADIENT_TYPES:
            raise VerifyException(f"{what} takes (score: f32, b: i32, h: i32, q: i32, kv: i32, slope: f32, ...)")

    @property
    def accumulates(self) -> Sequence[AccumulateOp]:
        """What it adds to tables, in order."""
        return [op for op in self.body.block.ops if isinstance(op, AccumulateOp)]

    def captured_number(self, table: SSAValue) -> int:
        """Which of the captured values a table is."""
        return self.body.block.args.index(table) - len(GRADIENT_TYPES)


__all__ = ["GRADIENT_TYPES", "AccumulateOp", "ScoreGradientOp"]
