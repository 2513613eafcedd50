"""From products to weights in a warpgroup of the Hopper kernel: the score region, the sink, softmax or pointwise."""

from __future__ import annotations

import math

from xdsl.dialects.builtin import f32

from compilemask.dialects.tiling import Weights
from compilemask.lowering.tiling_to_tt.attention_score import ScoreRegion, sink_logit
from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS, TILE
from compilemask.lowering.tiling_to_ttg.attention_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_softmax import (
    Softmax,
    advance,
    advance_below_peak,
    factor,
    masked,
    start,
)
from compilemask.lowering.tiling_to_ttg.attention_tile import Tile
from compilemask.lowering.tiling_to_ttg.builder import slice_of


class Scoring:
    """What becomes of the products of a warpgroup's rows of a tile. Made outside of the loops over keys."""

    def __init__(self, frame: Frame, part: int, tile: Tile) -> None:
        self.frame = frame
        self.is_pointwise = frame.op.weights.data is Weights.POINTWISE
        place = tile.batch_and_head(frame) if frame.op.score.blocks or frame.op.sink is not None else None
        self.logit = None if place is None else sink_logit(frame.kb, frame.op, *place)
        self.region: ScoreRegion | None = None
        if place is not None and frame.op.score.blocks:
            row = frame.kb.arange(0, ROWS, frame.layouts.rows)[:, None]
            rows = (tile.number * frame.config.rows + part * ROWS, row)
            self.region = ScoreRegion(frame.kb, frame.op, place, rows, approximate=True)

    @property
    def needs_keys(self) -> bool:
        """Whether weights depend on where keys lie."""
        return self.region is not None and self.region.needs_keys

    def output_factor(self) -> Value:
        """What the output of pointwise weights is multiplied with in the end."""
        factor = None if self.region is None else self.region.output_factor
        return self.frame.kb.constant(1.0, f32) if factor is None else factor

    def start(self) -> Softmax:
        """Of rows that have seen nothing but the sink."""
        return start(self.frame, self.logit)

    def scored(self, products: Value, key_tile: Value | None, words: Value | None) -> Value:
        """Scores, or pointwise weights, of products [64, 128] with a tile of keys, known where `needs_keys`.

        `words` of a pattern say which pairs are visible, all if None.
        """
        frame, scores = self.frame, products
        if self.region is not None:
            key = frame.kb.arange(0, TILE, slice_of(frame.layouts.scores, 0))[None, :]
            first_key = frame.kb.constant(0) if key_tile is None else key_tile * TILE
            scores = self.region.apply(products, first_key, key)
        if words is None:
            return scores
        return masked(frame, scores, words, 0.0 if self.is_pointwise else -math.inf)

    def weigh_below_peak(self, before: Softmax, scores: Value) -> tuple[Softmax, Value]:
        """The softmax after scores that leave the peak where it is, and their weights in f32."""
        return advance_below_peak(self.frame, before, scores, factor(self.frame))

    def weigh(self, before: Softmax, scores: Value, *, is_masked: bool) -> tuple[Softmax, Value, Value | None]:
        """The softmax after scores, their weights in f32, and what earlier sums fade by [64], if they do."""
        if self.is_pointwise:
            return before, scores, None
        if self.region is None:
            return advance(self.frame, before, scores, factor(self.frame), is_masked=is_masked)
        # A region gives scores in base 2, and may hide a key too.
        return advance(self.frame, before, scores, self.frame.kb.constant(1.0, f32), is_masked=True)
