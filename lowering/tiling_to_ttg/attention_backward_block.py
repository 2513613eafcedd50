"""Queries of a step against a warpgroup's 64 keys: the products of a block, its weights, and their slopes.

A block is the whole step, or one half of 128 queries: a masked step of them computes one half after the other, as
whole ones would need more registers than there are.
"""

from __future__ import annotations

import math

from xdsl.dialects.builtin import f32

from compilemask.dialects.triton.layouts import NvmmaSharedLayout
from compilemask.dialects.triton.ttg_types import MemDescType
from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import Frame, Numbers
from compilemask.lowering.tiling_to_ttg.attention_bits import BITS_PER_HALF, lanes_of, only_visible
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS
from compilemask.lowering.tiling_to_ttg.attention_softmax import LOG2_E
from compilemask.lowering.tiling_to_ttg.builder import dot_operand, slice_of, wgmma
from compilemask.lowering.tiling_to_ttg.builder_memory import Buffer, Product


class Block:
    """The queries of the step in a place of the rings, or the 64 of its half `half`."""

    def __init__(self, frame: Frame, part: int, place: Value, half: int | None = None) -> None:
        self.frame, self.part, self.place, self.half = frame, part, place, half
        self.queries = frame.config.queries if half is None else ROWS
        self.layout = frame.layouts.scores if half is None else wgmma(ROWS)
        self.query, self.grad = (self._rows(frame.rows(source, place)) for source in (frame.query, frame.grad))

    def _rows(self, buffer: Buffer) -> Buffer:
        return buffer if self.half is None else buffer.part((self.half * ROWS, 0), (ROWS, buffer.shape[1]))

    def scores(self) -> Product:
        """Starts the products of keys with queries [64, queries]."""
        keys = self.frame.own_rows(self.frame.key, self.part)
        return self.frame.kb.warp_group_dot(keys, self.query.transpose(), layout=self.layout)

    def rises(self) -> Product:
        """Starts the products of values with gradients of outputs [64, queries]."""
        values = self.frame.own_rows(self.frame.value, self.part)
        return self.frame.kb.warp_group_dot(values, self.grad.transpose(), layout=self.layout)

    def weights(self, scores: Value, words: Value | None) -> Value:
        """Of the pairs, 0 where they are not visible; the scale may be of any sign.

        `words` [64, 4] of a pattern say which are visible, with the step's bits first; all if None.
        """
        kb = self.frame.kb
        exponents = scores * (kb.arg("scale") * LOG2_E) - self._numbers(self.frame.shift)
        if words is not None:
            if self.half:
                words = kb.shift_right_unsigned(words, BITS_PER_HALF)
            words = kb.convert_layout(words, lanes_of(self.layout, self.queries))
            exponents = only_visible(kb, exponents, words, self.layout, self.queries, -math.inf)
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

    def leave(self, slopes: Value, exchanged: Buffer) -> None:
        """Stores slopes where both warpgroups read them, once they have come to the barrier."""
        exchanged.part((self.part * ROWS, (self.half or 0) * ROWS), (ROWS, self.queries)).store(slopes)

    def _numbers(self, source: Numbers) -> Value:
        """[1, queries]."""
        if self.half is None:
            buffer = self.frame.numbers(source, self.place)
        else:
            form = (2 * self.frame.config.stages, 1, ROWS)
            halves = MemDescType.of(form, f32, NvmmaSharedLayout.of(f32.bitwidth, swizzle=0))
            buffer = source.buffer.reinterpret(halves)[self.place * 2 + self.half].reshape(ROWS)
        return buffer.load(slice_of(self.layout, 0))[None, :]
