"""What a score region means, on numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Block, SSAValue

from compilemask.dialects.semantics import arith
from compilemask.dialects.semantics.arith import Value
from compilemask.dialects.tiling_score import ReadOp, YieldOp
from compilemask.dialects.tiling_score_gradient import GRADIENT_TYPES, AccumulateOp
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
    values = _evaluated(block, [scores], pairs, captured)
    return np.broadcast_to(values[_result(block)], scores.shape)


def pulled_back(
    block: Block,
    scores: Value,
    slopes: Value,
    pairs: Pairs,
    captured: Sequence[float | Value],
    sums: Sequence[Value | None],
    visible: Value | None = None,
) -> Value:
    """Gradients of `scores` from those of the scores that were used, by the body of a `tiling.score_gradient`.

    Adds to `sums`, of the shapes of captured tables, the gradients of tables for which it has one. Pairs that are not
    `visible` add nothing.
    """
    values = _evaluated(block, [scores, slopes], pairs, captured)
    for op in block.ops:
        if isinstance(op, AccumulateOp):
            total = sums[block.args.index(op.table) - len(GRADIENT_TYPES)]
            if total is not None:
                value = np.broadcast_to(values[op.value], scores.shape)
                value = value if visible is None else np.where(visible, value, 0)
                places = _entries(total.shape, np.broadcast_to(values[op.index], scores.shape), pairs)
                np.add.at(total, places, value)
    return np.broadcast_to(values[_result(block)], scores.shape)


def _evaluated(
    block: Block, scores: Sequence[Value], pairs: Pairs, captured: Sequence[float | Value]
) -> dict[SSAValue, Value]:
    """All values of a region whose floats are a score, and behind the pair a slope if there are two."""
    real = scores[0].dtype.type
    places = [np.asarray(x, dtype=np.int64) for x in (pairs.batch, pairs.head, pairs.query, pairs.key)]
    values: dict[SSAValue, Value] = {}
    for argument, value in zip(block.args, [scores[0], *places, *scores[1:], *captured], strict=True):
        values[argument] = _converted(value, real)
    for op in block.ops:
        if isinstance(op, ReadOp):
            table = values[op.table]
            entry = table[_entries(table.shape, values[op.index], pairs)]
            values[op.result] = entry.astype(np.int64) if isinstance(op.result.type, IntegerType) else entry
        elif not isinstance(op, AccumulateOp | YieldOp):
            values[op.results[0]] = arith.execute(op, [values[operand] for operand in op.operands], real)
    return values


def _result(block: Block) -> SSAValue:
    last = block.last_op
    if not isinstance(last, YieldOp):
        raise LoweringError("a score region ends in tiling.yield")
    return last.score


def _converted(value: float | Value, real: type[np.floating]) -> Value:
    """Floats in the type of the scores, integers as they are."""
    array = np.asarray(value)
    return array.astype(real, copy=False) if array.dtype.kind == "f" else array


def _entries(shape: tuple[int, ...], index: Value, pairs: Pairs) -> tuple[Any, ...]:
    """Where in tables of this shape entries of batches and heads lie; an index outside means the nearest one."""
    batches, heads, size = shape
    return pairs.batch if batches > 1 else 0, pairs.head if heads > 1 else 0, np.clip(index, 0, size - 1)


__all__ = ["Pairs", "pulled_back", "scored"]
