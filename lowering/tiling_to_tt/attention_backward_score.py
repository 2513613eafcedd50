"""From products to weights and slopes in the portable backward kernels.

With s the scores that are used, a slope is the gradient of a score: w * (d out . v - delta) for the softmax, d out . v
for pointwise weights. Where scores are modified, `tiling.score_gradient` carries slopes on to the scores that products
give, and to captured tables.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import AnyFloat, IntegerAttr
from xdsl.ir import SSAValue

from compilemask.dialects.tiling import AttentionOp, ScoreOp, Weights
from compilemask.dialects.tiling_score_gradient import GRADIENT_TYPES, AccumulateOp, ScoreGradientOp
from compilemask.lowering.tiling_to_tt import value as values
from compilemask.lowering.tiling_to_tt.attention import attention_module, attention_op
from compilemask.lowering.tiling_to_tt.attention_backward_config import Side
from compilemask.lowering.tiling_to_tt.attention_backward_frame import BackwardFrame
from compilemask.lowering.tiling_to_tt.attention_score import ScoreRegion, score_arguments
from compilemask.lowering.tiling_to_tt.attention_score_values import LOG2_E, RegionValues, of_head, plain, result_of
from compilemask.lowering.tiling_to_tt.attention_sum import Sum
from compilemask.lowering.tiling_to_tt.builder import Arg, KernelBuilder, Value, f32, i32, i64, ptr
from compilemask.passes.score_gradient import gradient_of


def constant_index(op: AccumulateOp) -> int | None:
    """The entry that all pairs of a head add to; None if it is not always the same."""
    constant = op.index.owner
    if not isinstance(constant, xdsl_arith.ConstantOp) or not isinstance(constant.value, IntegerAttr):
        return None
    return constant.value.value.data


def is_sum_of_head(op: AccumulateOp) -> bool:
    """Whether all pairs of a head add to the same entry, so that their sum needs no memory but its own."""
    return constant_index(op) is not None


@dataclass(frozen=True)
class Modification:
    """A score modification, and its gradient with regard to the score and to some captured tables."""

    op: AttentionOp
    gradient: ScoreGradientOp

    @classmethod
    def of(
        cls, head_dim: int, element_type: AnyFloat, score: ScoreOp | None, wanted: Collection[int] = ()
    ) -> Modification | None:
        """That of a structure, with regard to the captured values of some numbers; None without one."""
        if score is None:
            return None
        op = attention_op(attention_module(head_dim, element_type, score=score))
        return cls(op, gradient_of(score, wanted))

    def arguments(self) -> list[Arg]:
        """The last arguments of a kernel: what the region captures, and where sums go.

        `sum{n}` of the n-th `tiling.accumulate` is f32: if it is one of heads, [B, Hq, programs of a head], else a
        table of zeros, with strides of batches and heads, that all programs add to.
        """
        arguments = score_arguments(self.op)
        for number, accumulate in enumerate(self.gradient.accumulates):
            arguments.append(Arg(f"sum{number}", ptr(f32)))
            if not is_sum_of_head(accumulate):
                arguments += [Arg(f"sum{number}_{axis}", i64) for axis in "bh"]
        return arguments


class Pairs(NamedTuple):
    """A block of pairs [rows, width], before scores are known.

    `shift` and `delta` of its queries broadcast to it; `seen` says which pairs are visible, all if None.
    """

    products: Value
    rises: Value
    """Products of gradients of the output with values."""
    shift: Value
    delta: Value
    first: Value
    """The first position across."""
    seen: Value | None


class Slopes(NamedTuple):
    """Of a block of pairs: weights, gradients of products without the scale, and what sums of heads grow by [rows]."""

    weights: Value
    slopes: Value
    sums: Sequence[Value]


class Scores:
    """What becomes of a head's products. Made outside of the loops over what lies across."""

    def __init__(self, frame: BackwardFrame, modification: Modification | None, head: Value, side: Side) -> None:
        self.frame, self.modification = frame, modification
        self.factor = frame.kb.arg("scale") * LOG2_E
        if modification is None:
            return
        kb, rows_are_keys = frame.kb, side == "keys"
        place, approximate = (frame.batch, head), frame.config.approximate
        rows = (frame.first_row, kb.arange(0, frame.config.rows)[:, None])
        self.is_pointwise = modification.op.weights.data is Weights.POINTWISE
        self._region = ScoreRegion(
            kb,
            modification.op,
            place,
            rows,
            approximate=approximate,
            rows_are_keys=rows_are_keys,
            peeled=False,
        )
        self._gradient = _GradientRegion(kb, modification.gradient, place, rows, approximate, rows_are_keys)

    def slopes(self, pairs: Pairs) -> Slopes:
        """Of a block; 0 where pairs are not visible."""
        kb = self.frame.kb
        if self.modification is None:
            weights = kb.exp2(pairs.products * self.factor - pairs.shift)
            slopes, sums = weights * (pairs.rises - pairs.delta), []
        else:
            weights, slopes, sums = self._modified(pairs)
        if pairs.seen is not None:
            weights, slopes = (kb.where(pairs.seen, x, 0.0) for x in (weights, slopes))
        return Slopes(weights, slopes, sums)

    def _modified(self, pairs: Pairs) -> tuple[Value, Value, list[Value]]:
        kb, frame = self.frame.kb, self.frame
        position = kb.arange(0, frame.config.width)[None, :]
        scores = self._region.apply(pairs.products, pairs.first, position)
        if self.is_pointwise:
            weights, slopes = scores, pairs.rises
        else:
            weights = kb.exp2(scores - pairs.shift)
            slopes = weights * (pairs.rises - pairs.delta)
        exists = frame.inside[:, None]
        seen = exists if pairs.seen is None else pairs.seen & exists
        slopes, sums = self._gradient.apply(pairs.products, slopes, pairs.first, position, seen)
        return weights, slopes, sums


class _GradientRegion(RegionValues):
    """From slopes of the scores that are used to those of the scores that products give, and to captured tables."""

    def __init__(
        self,
        kb: KernelBuilder,
        op: ScoreGradientOp,
        place: tuple[Value, Value],
        rows: tuple[Value, Value],
        approximate: bool,
        rows_are_keys: bool,
    ) -> None:
        block = op.body.block
        super().__init__(
            kb, block, len(GRADIENT_TYPES), place, rows, approximate=approximate, rows_are_keys=rows_are_keys
        )
        self._slope = block.args[len(GRADIENT_TYPES) - 1]
        self._tables_of_sums = [
            None if is_sum_of_head(accumulate) else of_head(kb, f"sum{number}", *place)
            for number, accumulate in enumerate(op.accumulates)
        ]
        self._op = op

    def apply(
        self, products: Value, slopes: Value, first: Value, position: Value, seen: Value
    ) -> tuple[Value, list[Value]]:
        """Gradients of a block [R, C] of scores, and what sums of heads grow by [R]. Other sums are added to memory."""
        kb = self.kb
        given: dict[SSAValue, Value | Sum] = {self._score: Sum(products, kb.arg("scale")), self._slope: slopes}
        known = self.values(given, first, position)
        sums: list[Value] = []
        for accumulate, table in zip(self._op.accumulates, self._tables_of_sums, strict=True):
            value = values.broadcast_together(plain(known[accumulate.value]), products)[0]
            value = kb.where(seen, value, 0.0)
            if table is None:
                sums.append(kb.reduce(value, 1, "sum"))
            else:
                kb.atomic_add(table + self.nearest(accumulate.table, plain(known[accumulate.index])), value, seen)
        gradient = plain(known[result_of(self._block)])
        return values.broadcast_together(gradient, products)[0], sums


class Sums:
    """Gradients of captured tables in a program that owns rows of queries: [rows] each, as far as they are of heads."""

    def __init__(self, frame: BackwardFrame, modification: Modification | None, head: Value) -> None:
        self.frame, self.head = frame, head
        accumulates = () if modification is None else modification.gradient.accumulates
        self._of_heads = [n for n, accumulate in enumerate(accumulates) if is_sum_of_head(accumulate)]
        self._of_tables = [n for n, accumulate in enumerate(accumulates) if not is_sum_of_head(accumulate)]

    def start(self) -> list[Value]:
        """Sums of nothing."""
        return [self.frame.kb.zeros((self.frame.config.rows,), f32) for _ in self._of_heads]

    def store(self, sums: Sequence[Value], missing: Value) -> None:
        """Stores the program's part of each; NaN if visits were missing."""
        kb, frame = self.frame.kb, self.frame
        row = frame.batch * kb.arg("heads") + self.head
        part = kb.cast(row, i64) * kb.cast(kb.num_programs(0), i64) + kb.cast(kb.program_id(0), i64)
        for number, total in zip(self._of_heads, sums, strict=True):
            kb.store(kb.arg(f"sum{number}") + part, kb.where(missing == 0, kb.reduce(total, 0, "sum"), math.nan))
        for number in self._of_tables:
            first = of_head(kb, f"sum{number}", frame.batch, self.head)
            kb.atomic_add(first, kb.constant(math.nan, f32), missing != kb.constant(0, i32))
