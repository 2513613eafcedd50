"""Bit patterns of partial tiles: which pairs of a block are visible, and which positions are read at all.

Position c across a tile is bit 2 * (c >> 3) + (c & 1) of word (c >> 1) & 3 of its row (docs/descriptor.md). In a
tensor-core accumulator the lane alone decides the word and the register alone the bit, so that no shift is by a
variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compilemask.lowering.descriptor_layout import COLUMN_ROWS
from compilemask.lowering.tiling_to_tt.attention_config import TILE
from compilemask.lowering.tiling_to_tt.builder import KernelBuilder, Value

WORDS = 4
POSITIONS_PER_BIT = 4
"""Each of the four words holds a bit for every fourth position, on average."""


@dataclass(frozen=True)
class Patterns:
    """The patterns that a program reads: its rows of a tile against blocks of `width` positions across."""

    kb: KernelBuilder
    width: int
    rows: Value
    """[rows] inside the tile."""
    inside: Value
    """[rows] i1: the row exists."""
    cut_off: Value
    """i1: some rows of the tile do not exist."""
    end: Value
    """Number of positions across."""

    @property
    def steps_per_tile(self) -> int:
        """Blocks of one tile."""
        return TILE // self.width

    def seen(self, pattern: Value, first: Value) -> Value:
        """[rows, width] i1: the pairs of the rows with positions from `first` of the tile that are visible."""
        kb = self.kb
        rows = kb.arg("patterns") + (pattern * TILE + self.rows) * WORDS
        words = [self._from(kb.load(rows + word), first)[:, None] for word in range(WORDS)]
        return self._bits(words, kb.arange(0, self.width)[None, :]).named("seen")

    def read(self, pattern: Value, first: Value, at: Value) -> Value:
        """[width, 1] i1: positions that some row of the tile sees; `first` in the tile is `at` in the sequence."""
        words = [self._from(word, first) for word in self._column_words(pattern)]
        across = self.kb.arange(0, self.width)[:, None]
        return (self._bits(words, across) & (at + across < self.end)).named("read")

    def _column_words(self, pattern: Value) -> tuple[Value, ...]:
        """The pattern's columns; in a tile that the sequence cuts off, those of existing rows.

        A shared pattern knows nothing of the end of the sequence, so its columns may name what no existing row sees.
        """
        kb = self.kb
        columns = kb.arg("columns") + pattern * (TILE // COLUMN_ROWS * WORDS)
        # Loaded outside of the branch, so that the pipeline loads them ahead.
        upper, lower = (
            [kb.load(columns + (group * WORDS + i)) for i in range(WORDS)] for group in range(TILE // COLUMN_ROWS)
        )
        words = [a | b for a, b in zip(upper, lower, strict=True)]
        with kb.if_else(self.cut_off) as branch:
            with branch.then():
                rows = kb.arg("patterns") + (pattern * TILE + self.rows) * WORDS
                branch.yield_(*(kb.reduce(kb.load(rows + i, self.inside, 0), 0, "or") for i in range(WORDS)))
            with branch.otherwise():
                branch.yield_(*words)
        return branch.results

    def _from(self, word: Value, first: Value) -> Value:
        """The word without the bits of positions before `first`, a multiple of `width`."""
        if self.steps_per_tile == 1:
            return word
        return self.kb.shift_right_unsigned(word, self.kb.trunc_div(first, POSITIONS_PER_BIT))

    def _bits(self, words: Sequence[Value], across: Value) -> Value:
        """Whether the bit of each position is set, i1 in the broadcast shape of words and positions."""
        kb = self.kb
        lane = (across >> 1) & (WORDS - 1)
        low = kb.where(lane == 0, words[0], words[1])
        high = kb.where(lane == 2, words[2], words[3])
        word = kb.where(lane < 2, low, high)
        bit = (across >> 3) * 2 + (across & 1)
        return (kb.shift_right_unsigned(word, bit) & 1) != 0
