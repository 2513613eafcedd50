"""One step of online softmax: a block of keys joins the running maximum, sum and output of the rows.

Everything is in base 2. Without a score region, scores are `product * |scale| * log2(e)`: the sign of the scale has
moved to the query. The factor is never negative, so the maximum can be taken before it is applied, and factor and
subtraction are one fused operation per element. A score region gives scores in base 2, or pointwise weights, which
need neither maximum nor sum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from compilemask.dialects.tiling import Weights
from compilemask.lowering.tiling_to_tt.attention_frame import Frame
from compilemask.lowering.tiling_to_tt.attention_score import LOG2_E, ScoreRegion, sink_logit
from compilemask.lowering.tiling_to_tt.builder import Value, f32

SMALLEST_FACTOR = 2.0**-126


class State(NamedTuple):
    """Running values of the rows: maximum in base 2 and sum [block_q], output [block_q, padded], all f32."""

    peak: Value
    total: Value
    acc: Value


class Scale(NamedTuple):
    """How products become scores in base 2: by the region if there is one, then times `factor`."""

    region: ScoreRegion | None
    factor: Value


def initial_state(frame: Frame) -> State:
    """Rows that have seen nothing but the sink."""
    kb, rows = frame.kb, frame.config.block_q
    acc = kb.zeros((rows, frame.padded), f32)
    logit = sink_logit(kb, frame.op, frame.batch, frame.head)
    if logit is None:
        return State(kb.full((rows,), -math.inf, f32), kb.zeros((rows,), f32), acc)
    return State(kb.full((rows,), logit), kb.full((rows,), kb.where(logit == -math.inf, 0.0, 1.0)), acc)


def prepare(frame: Frame, query: Value) -> tuple[Value, Scale]:
    """The query and the scale as the steps use them."""
    kb, scale = frame.kb, frame.kb.arg("scale")
    if frame.op.score.blocks:
        rows = (frame.first_row, kb.arange(0, frame.config.block_q)[:, None])
        place = (frame.batch, frame.head)
        region = ScoreRegion(kb, frame.op, place, rows, approximate=frame.config.approximate)
        return query, Scale(region, kb.constant(1.0, f32))
    if frame.config.negative_scale:
        query = kb.where(scale < 0.0, -query, query)
    # Not 0: what is not visible scores -inf, and -inf * 0 is NaN.
    return query, Scale(None, kb.maximum(kb.absolute(scale) * LOG2_E, SMALLEST_FACTOR, propagate_nan=True))


def step(
    frame: Frame,
    state: State,
    query: Value,
    scale: Scale,
    first_key: Value,
    key: Value,
    value: Value,
    seen: Value | None,
) -> State:
    """The state after `block_kv` keys from `first_key`; `seen` [block_q, block_kv] i1 says which pairs are visible."""
    kb = frame.kb
    precision = frame.op.precision.data.value
    scores = kb.dot(query, kb.trans(key), precision=precision).named("scores")
    if scale.region is not None:
        scores = scale.region.apply(scores, first_key, kb.arange(0, frame.config.block_kv)[None, :])
    if frame.op.weights.data is Weights.POINTWISE:
        weights = kb.cast(scores if seen is None else kb.where(seen, scores, 0.0), frame.element_type)
        return state._replace(acc=kb.dot(weights, value, state.acc, precision=precision))
    if seen is not None:
        scores = kb.where(seen, scores, -math.inf)
    peak = kb.maximum(state.peak, kb.reduce(scores, 1, "max") * scale.factor).named("peak")
    # A row that has seen nothing has the peak -inf, and -inf - -inf is NaN.
    shift = kb.where(peak == -math.inf, 0.0, peak)
    weights = kb.exp2(scores * scale.factor - shift[:, None]).named("weights")
    fade = kb.exp2(state.peak - shift).named("fade")
    total = state.total * fade + kb.reduce(weights, 1, "sum")
    acc = kb.dot(kb.cast(weights, frame.element_type), value, state.acc * fade[:, None], precision=precision)
    return State(peak, total, acc)
