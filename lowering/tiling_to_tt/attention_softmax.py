"""One step of online softmax: a block of keys joins the running maximum, sum and output of the rows.

Everything is in base 2. Without a score region, scores are `product * |scale| * log2(e)`: the sign of the scale has
moved to the query. The factor is never negative, so the maximum can be taken before it is applied, and factor and
subtraction are one fused operation per element.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from compilemask.lowering.tiling_to_tt.attention_frame import Frame
from compilemask.lowering.tiling_to_tt.attention_score import scored
from compilemask.lowering.tiling_to_tt.builder import Value, f32

LOG2_E = math.log2(math.e)
SMALLEST_FACTOR = 2.0**-126


class State(NamedTuple):
    """Running values of the rows: maximum in base 2 and sum [block_q], output [block_q, padded], all f32."""

    peak: Value
    total: Value
    acc: Value


class Scale(NamedTuple):
    """`natural` scales products to scores before a score region, `factor` then turns scores to base 2."""

    natural: Value | None
    factor: Value


def initial_state(frame: Frame) -> State:
    """Rows that have seen nothing."""
    kb, rows = frame.kb, frame.config.block_q
    return State(kb.full((rows,), -math.inf, f32), kb.zeros((rows,), f32), kb.zeros((rows, frame.padded), f32))


def prepare(frame: Frame, query: Value) -> tuple[Value, Scale]:
    """The query and the scale as the steps use them."""
    kb, scale = frame.kb, frame.kb.arg("scale")
    if frame.op.score.blocks:
        return query, Scale(scale, kb.constant(LOG2_E, f32))
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
    if scale.natural is not None:
        scores = scored(frame, scores * scale.natural, first_key)
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
