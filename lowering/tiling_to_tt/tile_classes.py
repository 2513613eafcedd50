"""Which key tiles of a query tile are full and which partial, as bits: 32 tiles a word, 32 words at a time.

Extents decide most words in closed form, one lane each. What they leave open is evaluated, word by word: the visible
keys of 32 tiles are counted over all rows, or the predicate is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from compilemask.lowering.descriptor_layout import KEYS
from compilemask.lowering.tiling_to_tt.builder import KernelBuilder, Value, i1, i32
from compilemask.lowering.tiling_to_tt.descriptor_bits import bits_between, lowest_bit, popcount
from compilemask.lowering.tiling_to_tt.descriptor_kernel import DescriptorKernel, QueryTile
from compilemask.lowering.tiling_to_tt.row_sets import Extent, MaskRows

WORD = 32
"""Tiles of a word."""
GROUP = 16
"""Tiles whose visible pairs are counted together: what fits registers beside the rows."""
WORDS = 32
"""Words of a block."""
BLOCK = WORD * WORDS
"""Tiles of a block."""


class Decided(NamedTuple):
    """Words of tiles that extents show to be full or partial, and of those that they leave open."""

    full: Value
    partial: Value
    open: Value


class BlockClasses(NamedTuple):
    """One block, [WORDS] each: full tiles, partial tiles, and where a run of full tiles begins or has just ended."""

    full: Value
    partial: Value
    turns: Value


class TileClasses:
    """The classes of one query tile's key tiles."""

    def __init__(self, kernel: DescriptorKernel, tile: QueryTile) -> None:
        self.kernel = kernel
        self.kb: KernelBuilder = kernel.kb
        self.tile = tile
        scope = kernel.scope(tile.mask, tile.q, kernel.queries, kernel.keys)
        self.rows = MaskRows(scope, kernel.mask.intervals, kernel.keys)
        self.every = tile.count * KEYS
        self.inner = self.rows.inner.extents()
        self.outer = self.inner if self.rows.between is None else self.rows.outer.extents()

    def blocks(self) -> tuple[Value, Value]:
        """First and last + 1 of the blocks outside which every tile is empty."""
        kb, begin, end = self.kb, self.kb.constant(2**30, i32), self.kb.constant(0, i32)
        for extent in self.outer:
            some = extent.cover_begin < extent.cover_end
            begin = kb.minimum(begin, kb.where(some, extent.cover_begin, 2**30))
            end = kb.maximum(end, kb.where(some, extent.cover_end, 0))
        return kb.trunc_div(begin, BLOCK), kb.ceil_div(end, BLOCK)

    def block(self, index: Value, inside: Value) -> BlockClasses:
        """The classes of block `index`; `inside` is 1 if the last tile before it is full."""
        kb, lane = self.kb, self.kb.arange(0, WORDS)
        first = index * BLOCK
        known = self._decided(first + lane * WORD)
        before = self._in_core(first + (lane * WORD - 1))
        pending = kb.reduce(kb.where(known.open != 0, 1 << lane, 0), 0, "or")
        with kb.while_loop([pending, known.full, known.partial, before]) as loop:
            with loop.condition() as (pending, full, partial, before):
                loop.continue_if(pending != 0, pending, full, partial, before)
            with loop.body() as (pending, full, partial, before):
                which = lowest_bit(kb, pending)
                here = lane == which
                word = Decided(*(kb.reduce(kb.where(here, words, 0), 0, "or") for words in known))
                new_full, new_partial = self._evaluate(first + which * WORD, word)
                loop.yield_(
                    pending & (pending - 1),
                    kb.where(here, new_full, full),
                    kb.where(here, new_partial, partial),
                    kb.where(lane == which + 1, kb.shift_right_unsigned(new_full, WORD - 1), before),
                )
        _, full, partial, before = loop.results
        carry = kb.where(lane == 0, inside, before)
        return BlockClasses(full, partial, full ^ ((full << 1) | carry))

    def last_is_full(self, block: BlockClasses) -> Value:
        """Per lane, what sums to 1 if the last tile of the block is full, else to 0."""
        kb = self.kb
        return kb.where(kb.arange(0, WORDS) == WORDS - 1, kb.shift_right_unsigned(block.full, WORD - 1), 0)

    def own_positions(self) -> Value:
        """How many rows surely see the key at their own position."""
        kb = self.kb
        if not self.kernel.mask.sees_own_positions:
            return kb.constant(0, i32)
        sees = self.tile.exists & self.rows.inner.holds(self.tile.q)
        return kb.reduce(kb.cast(sees, i32), 0, "sum")

    # ---- from extents ----

    def _decided(self, first: Value) -> Decided:
        """What extents say about the 32 tiles from tile `first` [WORDS] on."""
        nothing = self.kb.full(first.shape, 0, i32)
        full = nothing
        for extent in self.inner:
            full = full | bits_between(self.kb, extent.core_begin - first, extent.core_end - first)
        once, twice, some = self._covers(self.outer, first)
        if self.rows.between is not None:
            return Decided(full, nothing, once & ~full)
        # One range alone fills a tile in its core only; where covers meet, ranges may fill a tile together.
        partial = once & ~twice & some & ~full
        return Decided(full, partial, once & ~full & ~partial)

    def _in_core(self, tile: Value) -> Value:
        """1 for tiles in a core, else 0."""
        found = self.kb.full(tile.shape, False, i1)
        for extent in self.inner:
            found = found | ((extent.core_begin <= tile) & (tile < extent.core_end))
        return self.kb.cast(found, i32)

    def _covers(self, extents: Sequence[Extent], first: Value) -> tuple[Value, Value, Value]:
        """Tiles in a cover, in at least two, and those that surely hold a visible pair."""
        once = twice = some = self.kb.full(first.shape, 0, i32)
        for extent in extents:
            cover = bits_between(self.kb, extent.cover_begin - first, extent.cover_end - first)
            twice = twice | (once & cover)
            once = once | cover
            some = some | self.kb.where(extent.connected, cover, 0)
        return once, twice, some

    # ---- by looking at every row ----

    def _evaluate(self, first: Value, known: Decided) -> tuple[Value, Value]:
        """Full and partial tiles among the 32 from tile `first` on. Looks at open ones, a group of tiles at a time."""
        kb = self.kb
        size, look = (GROUP, self._count) if self.rows.between is None else (1, self._ask)
        with kb.while_loop([*known]) as loop:
            with loop.condition() as (full, partial, left):
                loop.continue_if(left != 0, full, partial, left)
            with loop.body() as (full, partial, left):
                shift = lowest_bit(kb, left) & -size
                more_full, more_partial = look(first + shift)
                looked_at = ((1 << size) - 1) << shift
                loop.yield_(full | (more_full << shift), partial | (more_partial << shift), left & ~looked_at)
        return loop.results[0], loop.results[1]

    def _count(self, first: Value) -> tuple[Value, Value]:
        """Classes of a group by the number of visible pairs."""
        kb, lane = self.kb, self.kb.arange(0, GROUP)
        start = ((first + lane) * KEYS)[None, :]
        coverage = kb.broadcast_to(self.rows.inner.coverage(start), (self.rows.scope.rows, GROUP))
        seen = kb.reduce(kb.where(self.tile.exists[:, None], coverage, 0), 0, "sum")
        full, some = kb.where(seen == self.every, 1 << lane, 0), kb.where(seen > 0, 1 << lane, 0)
        full, some = (kb.reduce(bits, 0, "or") for bits in (full, some))
        return full, some & ~full

    def _ask(self, first: Value) -> tuple[Value, Value]:
        """The class of one tile by asking the predicate for each pair."""
        kb = self.kb
        words = popcount(kb, self.rows.words(first * KEYS))
        in_row = kb.reduce(kb.where(self.tile.exists[:, None], words, 0), 1, "sum")
        seen = kb.reduce(in_row, 0, "sum")
        full = seen == self.every
        return kb.cast(full, i32), kb.cast((seen > 0) & ~full, i32)
