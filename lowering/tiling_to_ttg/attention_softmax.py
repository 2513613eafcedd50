"""A block of scores [64, 128] of one warpgroup: masked by bits, and the step of online softmax (base 2) on it.

Key c of a tile is bit 2 * (c >> 3) + (c & 1) of word (c >> 1) & 3 of its row (docs/descriptor.md): a thread holds the
columns of one word per row, so that masking moves nothing between threads. Sums stay per thread until the tile ends.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from xdsl.dialects.builtin import f32

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_bits import only_visible
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS, TILE
from compilemask.lowering.tiling_to_ttg.attention_frame import PATTERN_WORDS, Frame
from compilemask.lowering.tiling_to_ttg.builder import dot_operand, slice_of

LOG2_E = math.log2(math.e)
SMALLEST_FACTOR = 2.0**-126


class Softmax(NamedTuple):
    """Of the rows so far: largest score in base 2 [64], of the first visit if peaks are kept, and the sum of weights
    per lane of the row's quad [64, 4].
    """

    peak: Value
    total: Value


def factor(frame: Frame) -> Value:
    """What turns products into scores in base 2; not 0, because what is not visible scores -inf."""
    kb = frame.kb
    return kb.maximum(kb.arg("scale") * LOG2_E, SMALLEST_FACTOR, propagate_nan=True)


def start(frame: Frame, logit: Value | None = None) -> Softmax:
    """Of rows that have seen nothing, or a sink with a logit in base 2; the four lanes of a row share its weight."""
    kb, layouts = frame.kb, frame.layouts
    peak = kb.full((ROWS,), -math.inf if logit is None else logit, f32, layouts.rows)
    if logit is None:
        return Softmax(peak, kb.zeros((ROWS, PATTERN_WORDS), f32, layouts.lanes))
    weight = kb.where(logit == -math.inf, 0.0, 1.0 / PATTERN_WORDS)
    return Softmax(peak, kb.full((ROWS, PATTERN_WORDS), weight, f32, layouts.lanes))


def pattern_words(frame: Frame, part: int, pattern: Value, exists: Value, other: Value | int = 0) -> Value:
    """[64, 4] words of a warpgroup's rows of a pattern; if it does not exist, `other` in all of them."""
    kb, layout = frame.kb, frame.layouts.lanes
    row = kb.arange(0, ROWS, slice_of(layout, 1))
    lane = kb.arange(0, PATTERN_WORDS, slice_of(layout, 0))
    base = kb.arg("patterns") + (pattern * (frame.config.rows * PATTERN_WORDS) + part * (ROWS * PATTERN_WORDS))
    address = base + (row[:, None] * PATTERN_WORDS + lane[None, :])
    return kb.load(address, exists, other)


def masked(frame: Frame, scores: Value, words: Value, hidden: float = -math.inf) -> Value:
    """Scores where the pair is visible, else `hidden`."""
    return only_visible(frame.kb, scores, words, frame.layouts.scores, TILE, hidden, frame.config.tests_together)


def advance(
    frame: Frame, before: Softmax, scores: Value, scale: Value, *, is_masked: bool
) -> tuple[Softmax, Value, Value]:
    """The state after products [64, 128], their weights in f32, and the factor [64] by which earlier sums fade."""
    kb = frame.kb
    largest = kb.reduce(scores, 1, "max") * scale
    if frame.config.slack == 0:
        peak = kb.maximum(before.peak, largest)
    else:
        peak = kb.where(largest > before.peak + frame.config.slack, largest, before.peak)
    # A row that has seen nothing has the peak -inf, and -inf - -inf is NaN.
    shift = kb.where(peak == -math.inf, 0.0, peak) if is_masked else peak
    weights = kb.exp2(scores * scale - shift[:, None])
    fade = kb.exp2(before.peak - shift)
    by_lane = kb.convert_layout(fade, slice_of(frame.layouts.lanes, 1))[:, None]
    return Softmax(peak, before.total * by_lane + _by_lane(frame, weights)), weights, fade


def advance_below_peak(frame: Frame, before: Softmax, scores: Value, scale: Value) -> tuple[Softmax, Value]:
    """The state after products [64, 128] where the peak stays, and their weights in f32."""
    kb = frame.kb
    weights = kb.exp2(scores * scale - before.peak[:, None])
    return Softmax(before.peak, before.total + _by_lane(frame, weights)), weights


def _by_lane(frame: Frame, weights: Value) -> Value:
    """Sums [64, 4] of weights [64, 128] by the lane of a row's quad that holds them."""
    kb = frame.kb
    return kb.reduce(kb.reduce(kb.reshape(weights, (ROWS, TILE // 8, 4, 2)), 3, "sum"), 1, "sum")


def as_operand(frame: Frame, weights: Value) -> Value:
    """Weights as the left operand of their product with the values, in registers."""
    kb = frame.kb
    rounded = (
        kb.round_in_place(weights, frame.element_type)
        if frame.config.pin_rounding
        else kb.cast(weights, frame.element_type)
    )
    return kb.convert_layout(rounded, dot_operand(frame.layouts.output))
