"""Queries of a step against a warpgroup's 64 keys: their products, weights, and slopes."""

from __future__ import annotations

import math

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import Frame, Numbers
from compilemask.lowering.tiling_to_ttg.attention_bits import only_visible
from compilemask.lowering.tiling_to_ttg.attention_softmax import LOG2_E
from compilemask.lowering.tiling_to_ttg.builder import dot_operand
from compilemask.lowering.tiling_to_ttg.builder_memory import Product


class Block:
    """The block of scores [64, queries] of the number-th step, and what comes of it."""

    def __init__(self, frame: Frame, part: int, number: Value) -> None:
        self.frame, self.part, self.number = frame, part, number
        self.place, _ = frame.place(number)
        self.query, self.grad = (frame.rows(source, self.place) for source in (frame.query, frame.grad))

    def scores(self) -> Product:
        """Starts the products of keys with queries [64, queries]."""
        keys = self.frame.own_rows(self.frame.key, self.part, self.number)
        return self.frame.kb.warp_group_dot(keys, self.query.transpose(), layout=self.frame.layouts.scores)

    def rises(self) -> Product:
        """Starts the products of values with gradients of outputs [64, queries]."""
        values = self.frame.own_rows(self.frame.value, self.part, self.number)
        return self.frame.kb.warp_group_dot(values, self.grad.transpose(), layout=self.frame.layouts.scores)

    def weights(self, scores: Value, words: Value | None) -> Value:
        """Of the pairs, 0 where they are not visible; the scale may be of any sign.

        `words` [64, 4] of a pattern say which are visible, with the step's bits first; all if None.
        """
        kb = self.frame.kb
        exponents = scores * (kb.arg("scale") * LOG2_E) - self._numbers(self.frame.shift)
        if words is not None:
            queries, layout = self.frame.config.queries, self.frame.layouts.scores
            exponents = only_visible(kb, exponents, words, layout, queries, -math.inf)
        return kb.exp2(exponents)

    def slopes(self, weights: Value, rises: Value) -> Value:
        """Gradients of the scores, as elements of the inputs' type."""
        return self.rounded(weights * (rises - self._numbers(self.frame.delta)))

    def rounded(self, x: Value) -> Value:
        """Numbers of the pairs as elements of the inputs' type."""
        kb, element = self.frame.kb, self.frame.element_type
        return kb.round_in_place(x, element) if self.frame.config.pin_rounding else kb.cast(x, element)

    def operand(self, rounded: Value) -> Value:
        """As the left operand of a product with rows of queries or gradients, in registers."""
        return self.frame.kb.convert_layout(rounded, dot_operand(self.frame.layouts.sums))

    def _numbers(self, source: Numbers) -> Value:
        """[1, queries]."""
        return self.frame.numbers(source, self.place).load(self.frame.layouts.columns)[None, :]
