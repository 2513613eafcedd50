"""The score region of `tiling.attention`, applied to a block of scores at once: each operation on tensors."""

from __future__ import annotations

from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import FloatAttr, IntegerAttr
from xdsl.ir import Operation, SSAValue

from compilemask.dialects.tiling import YieldOp
from compilemask.dialects.triton.types import with_shape
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt.attention_frame import Frame
from compilemask.lowering.tiling_to_tt.builder import Value

ELEMENTWISE = ("arith", "math")


def scored(frame: Frame, scores: Value, first_key: Value) -> Value:
    """The region's result for natural scores [block_q, block_kv] of this program's rows and keys from `first_key`."""
    kb, shape = frame.kb, scores.shape
    block = frame.op.score.block
    rows = (frame.first_row + kb.arange(0, shape[0]))[:, None]
    keys = (first_key + kb.arange(0, shape[1]))[None, :]
    values: dict[SSAValue, Value] = dict(zip(block.args, (scores, rows, keys), strict=True))
    for op in block.ops:
        if isinstance(op, YieldOp):
            return kb.broadcast_to(values[op.score], shape)
        for result, value in zip(op.results, _on_tensors(frame, op, values, shape), strict=True):
            values[result] = value
    raise LoweringError("a score region ends in tiling.yield")


def _on_tensors(frame: Frame, op: Operation, values: dict[SSAValue, Value], shape: tuple[int, ...]) -> list[Value]:
    kb = frame.kb
    if isinstance(op, xdsl_arith.ConstantOp) and isinstance(op.value, IntegerAttr | FloatAttr):
        return [kb.constant(op.value.value.data, op.result.type)]
    if op.name.split(".")[0] not in ELEMENTWISE or op.regions:
        raise LoweringError(f"{op.name} in a score region; arith and math operations on numbers are known")
    missing = [operand for operand in op.operands if operand not in values]
    if missing:
        raise LoweringError(f"{op.name} in a score region uses a value from outside of it")
    operands = [kb.broadcast_to(values[operand], shape).ssa for operand in op.operands]
    results = [with_shape(result.type, shape) for result in op.results]
    copy = type(op).create(
        operands=operands, result_types=results, properties=dict(op.properties), attributes=dict(op.attributes)
    )
    return [Value(kb, result.type, ssa=result) for result in kb.emit_op(copy).results]
