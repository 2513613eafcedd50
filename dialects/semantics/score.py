"""What a score region means, on numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Block, SSAValue

from compilemask.dialects.semantics import arith
from compilemask.dialects.semantics.arith import Value
from compilemask.dialects.tiling_score import ReadOp, YieldOp
from compilemask.errors import LoweringError


@dataclass(frozen=True)
class Pairs:
    """Where scores lie: batch, query head, query and key, integers that broadcast to the shape of the scores."""

    batch: Value
    head: Value
    query: Value
    key: Value


def scored(block: Block, scores: Value, pairs: Pairs, captured: Sequence[float | Value]) -> Value:
    """The region's result for float32 or float64 `scores`, computed in their type and of their shape.

    Captured are numbers, and tables [B or 1, H or 1, n], of which each pair sees that of its batch and head.
    """
    real = scores.dtype.type
    places = [np.asarray(x, dtype=np.int64) for x in (pairs.batch, pairs.head, pairs.query, pairs.key)]
    values: dict[SSAValue, Value] = {}
    for argument, value in zip(block.args, [scores, *places, *captured], strict=True):
        values[argument] = _converted(value, real)
    for op in block.ops:
        if isinstance(op, YieldOp):
            return np.broadcast_to(values[op.score], scores.shape)
        if isinstance(op, ReadOp):
            entry = _read(values[op.table], values[op.index], places[0], places[1])
            values[op.result] = entry.astype(np.int64) if isinstance(op.result.type, IntegerType) else entry
        else:
            values[op.results[0]] = arith.execute(op, [values[operand] for operand in op.operands], real)
    raise LoweringError("a score region ends in tiling.yield")


def _converted(value: float | Value, real: type[np.floating]) -> Value:
    """Floats in the type of the scores, integers as they are."""
    array = np.asarray(value)
    return array.astype(real, copy=False) if array.dtype.kind == "f" else array


def _read(table: Value, index: Value, batch: Value, head: Value) -> Value:
    """Entries of the tables of batches and heads; an index outside reads the nearest one."""
    batches, heads, size = table.shape
    where = np.clip(index, 0, size - 1)
    return table[batch if batches > 1 else 0, head if heads > 1 else 0, where]


__all__ = ["Pairs", "scored"]
