"""The kernel `fill`: records, launch order, pairs, and the sources of stored patterns.

One program per query tile and mask: grid (NQ, G, 1), behind `count`. A program finds its place by summing the counts of
all earlier tiles, so that nothing depends on the order in which programs run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from compilemask.lowering.descriptor_layout import ORDER_WORDS, STATUS_OVERFLOW, tile_cost
from compilemask.lowering.tiling_to_tt.builder import Value, i32
from compilemask.lowering.tiling_to_tt.descriptor_bits import lowest_bit, popcount
from compilemask.lowering.tiling_to_tt.descriptor_kernel import DescriptorKernel, MaskFunctions, QueryTile
from compilemask.lowering.tiling_to_tt.row_sets import FAR
from compilemask.lowering.tiling_to_tt.shared_patterns import SharedPatterns
from compilemask.lowering.tiling_to_tt.tile_classes import WORD, WORDS, BlockClasses, TileClasses

N_PARTIAL, FIRST_KEY_TILE, FIRST_PATTERN, UNSEEN = 2, 5, 6, 7
"""Words of a record in launch order."""
COUNTED = (4, 5, 6, 7)
"""Words of a tile's record that `count` has written."""
RECORDS = 512
"""Records that a program looks at together."""
BITS = 4
"""Tiles of each word that are stored together: with all words one for each thread."""


class Counts(NamedTuple):
    """What `count` found in one query tile; scalars."""

    partial: Value
    runs: Value
    full: Value
    own: Value
    """Rows that see the key at their own position."""

    @property
    def cost(self) -> Value:
        """What the tile takes to compute, for the launch order."""
        return tile_cost(self.partial, self.full)


class Place(NamedTuple):
    """Where the visits of a query tile go: scalars."""

    first_pair: Value
    first_pattern: Value
    rank: Value
    """Position in the launch order of its mask."""
    own: Value
    """Rows of its mask that see the key at their own position."""


def fill_kernel(mask: MaskFunctions) -> DescriptorKernel:
    """The kernel for one mask."""
    kernel = DescriptorKernel("fill", mask)
    kb = kernel.kb
    m, g = kb.program_id(0), kb.program_id(1)
    t = g * kernel.query_tiles + m
    last = kb.arg("batch") * kernel.heads * kernel.query_tiles - 1
    counts, behind = _load_counts(kernel, t), _load_counts(kernel, kb.minimum(t + 1, last))
    place = _place(kernel, g, t, counts)
    fits = _fits(kernel, place, counts)
    record = {0: kb.where(fits, place.first_pair, 0), 1: kb.where(fits, counts.partial, -1)}
    record |= {2: kb.where(fits, counts.runs, 0), 3: kb.where(fits, counts.full, 0)}
    kernel.store_lanes(kernel.record(t), record, 4)
    launch = kernel.section("order") + (g * kernel.query_tiles + place.rank) * ORDER_WORDS
    unseen = kb.cast(place.own < kernel.count_keys(), i32)
    words = {0: m, **{1 + index: word for index, word in record.items()}, UNSEEN: unseen}
    _store_launch(kernel, launch, words, fits & (counts.partial + counts.runs > 0))
    _store_status(kernel, fits, t == last)
    _store_used(kernel, place, counts, behind, (t == 0, t == last))
    with kb.if_else(fits) as branch, branch.then():
        _Visits(kernel, QueryTile.of(kernel, m, g), t, place, counts, launch).store()
    return kernel


def _load_counts(kernel: DescriptorKernel, t: Value) -> Counts:
    record = kernel.record(t)
    return Counts(*(kernel.kb.load(record + word) for word in COUNTED))


def _place(kernel: DescriptorKernel, g: Value, t: Value, counts: Counts) -> Place:
    kb, lane = kernel.kb, kernel.kb.arange(0, RECORDS)
    own = g * kernel.query_tiles
    end = own + kernel.query_tiles
    zeros = kb.full((RECORDS,), 0, i32)
    with kb.for_loop(0, end, RECORDS, [zeros] * len(Place._fields)) as loop:
        pairs, patterns, ahead, seen = loop.carried
        other = loop.index + lane
        record, exists = kernel.record(other), other < end
        theirs = Counts(*(kb.load(record + word, mask=exists, other=0) for word in COUNTED))
        before, same_mask = other < t, exists & (other >= own)
        sooner = same_mask & ((theirs.cost > counts.cost) | ((theirs.cost == counts.cost) & (other > t)))
        loop.yield_(
            pairs + kb.where(before, theirs.partial + theirs.runs, 0),
            patterns + kb.where(before, theirs.partial, 0),
            ahead + kb.cast(sooner, i32),
            seen + kb.where(same_mask, theirs.own, 0),
        )
    return Place(*kb.reduce_many(loop.results, 0, lambda a, b: [x + y for x, y in zip(a, b, strict=True)]))


def _fits(kernel: DescriptorKernel, place: Place, counts: Counts) -> Value:
    fits = place.first_pair + counts.partial + counts.runs <= kernel.kb.arg("pair_capacity")
    if kernel.mask.shared:
        return fits
    return fits & (place.first_pattern + counts.partial <= kernel.kb.arg("pattern_capacity"))


def _store_launch(kernel: DescriptorKernel, launch: Value, words: Mapping[int, Value], visits_any: Value) -> None:
    """The record in launch order, but for the first visit of a tile that has one: who finds that visit stores it."""
    kb, lane = kernel.kb, kernel.kb.arange(0, ORDER_WORDS)
    record = kb.where(lane == FIRST_KEY_TILE, kernel.key_tiles, 0)
    for index, word in words.items():
        record = kb.where(lane == index, word, record)
    is_first = (lane == FIRST_KEY_TILE) | ((lane == FIRST_PATTERN) & (words[N_PARTIAL] > 0))
    kb.store(launch + lane, record, mask=~(is_first & visits_any))


def _store_status(kernel: DescriptorKernel, fits: Value, is_last: Value) -> None:
    """No tile behind one that does not fit fits, so the last tile knows whether all do."""
    kb = kernel.kb
    kb.store(kernel.descriptor + 14, kb.where(fits, 0, STATUS_OVERFLOW), mask=is_last)


def _store_used(
    kernel: DescriptorKernel, place: Place, counts: Counts, behind: Counts, is_end: tuple[Value, Value]
) -> None:
    """Pairs and patterns used: the last tile that fits knows, or the first tile if none does."""
    kb, (is_first, is_last) = kernel.kb, is_end
    fits = _fits(kernel, place, counts)
    end = place._replace(
        first_pair=place.first_pair + counts.partial + counts.runs, first_pattern=place.first_pattern + counts.partial
    )
    knows = (is_first & ~fits) | (fits & (is_last | ~_fits(kernel, end, behind)))
    used = kb.arg("pattern_capacity") if kernel.mask.shared else kb.where(fits, end.first_pattern, 0)
    kb.store(kernel.descriptor + 12, kb.where(fits, end.first_pair, 0), mask=knows)
    kb.store(kernel.descriptor + 13, used, mask=knows)


class _Visits:
    """Writes the pairs of one query tile."""

    def __init__(
        self, kernel: DescriptorKernel, tile: QueryTile, t: Value, place: Place, counts: Counts, launch: Value
    ) -> None:
        self.kernel, self.kb, self.launch = kernel, kernel.kb, launch
        self.tile, self.t, self.place, self.counts = tile, t, place, counts
        self.pairs = kernel.section("visits") + 2 * place.first_pair
        self.runs = self.pairs + 2 * counts.partial
        self.shared = SharedPatterns(kernel) if kernel.mask.shared else None
        self.diagonals = [] if self.shared is None else self.shared.diagonals(tile.mask)

    def store(self) -> None:
        """Partial tiles, then runs: the places where a run begins or has ended, in order, are its pairs."""
        kb, zero = self.kb, self.kb.constant(0, i32)
        classes = TileClasses(self.kernel, self.tile)
        begin, end = classes.blocks()
        with kb.for_loop(begin, end, 1, [zero, zero, zero, kb.constant(FAR, i32)]) as loop:
            partial, turns, inside, first = loop.carried
            block = classes.block(loop.index, inside)
            more_partial, more_turns = self._store_block(loop.index, block, partial, turns)
            inside = kb.reduce(classes.last_is_full(block), 0, "sum")
            first = kb.minimum(first, self._first_visit(loop.index, block))
            loop.yield_(partial + more_partial, turns + more_turns, inside, first)
        _, turns, inside, first = loop.results
        ends_open = (inside != 0) & (turns < 2 * self.counts.runs)
        kb.store(self.runs + turns, self.kernel.key_tiles, mask=ends_open)
        self._store_first(first)

    def _first_visit(self, index: Value, block: BlockClasses) -> Value:
        """The key tile of the first visit if it is in a block, else FAR: a partial tile, if the query tile has any."""
        kb, lane = self.kb, self.kb.arange(0, WORDS)
        words = kb.where(self.counts.partial > 0, block.partial, block.turns)
        tiles = (index * WORDS + lane) * WORD + lowest_bit(kb, words)
        return kb.reduce(kb.where(words != 0, tiles, FAR), 0, "min")

    def _store_first(self, first: Value) -> None:
        """The words that the record in launch order lacks."""
        kb, has_partial = self.kb, self.counts.partial > 0
        if self.shared is None:
            pattern = self.place.first_pattern
        else:
            pattern = self.shared.pattern(self.tile.mask, self.diagonals, self.tile.tile, first)
        kb.store(self.launch + FIRST_KEY_TILE, first, mask=has_partial | (self.counts.runs > 0))
        kb.store(self.launch + FIRST_PATTERN, pattern, mask=has_partial)

    def _store_block(self, index: Value, block: BlockClasses, partial: Value, turns: Value) -> tuple[Value, Value]:
        kb = self.kb
        # Neither count exceeds 1024 in a block: both fit one word.
        both = popcount(kb, block.partial) | (popcount(kb, block.turns) << 16)
        upto = kb.cumsum(both)
        before, total = upto - both, kb.reduce(both, 0, "sum")
        first = ((index * WORDS + kb.arange(0, WORDS)) * WORD)[:, None]
        with kb.while_loop([kb.reduce(block.partial | block.turns, 0, "or")]) as loop:
            with loop.condition() as (left,):
                loop.continue_if(left != 0, left)
            with loop.body() as (left,):
                shift = lowest_bit(kb, left) & -BITS
                bit = shift + kb.arange(0, BITS)[None, :]
                self._store_partial(first + bit, *self._ranks(block.partial, bit, partial + (before & 0xFFFF)))
                is_turn, rank = self._ranks(block.turns, bit, turns + (before >> 16))
                kb.store(self.runs + rank, first + bit, mask=is_turn & (rank < 2 * self.counts.runs))
                loop.yield_(left & ~(((1 << BITS) - 1) << shift))
        return total & 0xFFFF, total >> 16

    def _ranks(self, words: Value, bit: Value, before: Value) -> tuple[Value, Value]:
        """Which bits are set, and how many are before each: [WORDS, BITS]."""
        kb, words = self.kb, words[:, None]
        return ((words >> bit) & 1) != 0, before[:, None] + popcount(kb, words & ((1 << bit) - 1))

    def _store_partial(self, key_tile: Value, is_partial: Value, rank: Value) -> None:
        kb, kernel = self.kb, self.kernel
        is_partial = is_partial & (rank < self.counts.partial)
        if self.shared is not None:
            number = self.shared.pattern(self.tile.mask, self.diagonals, self.tile.tile, key_tile)
        else:
            number = self.place.first_pattern + rank
            source = kernel.section("sources") + 2 * number
            kb.store(source, self.t, mask=is_partial)
            kb.store(source + 1, key_tile, mask=is_partial)
        kb.store(self.pairs + 2 * rank, key_tile, mask=is_partial)
        kb.store(self.pairs + 2 * rank + 1, number, mask=is_partial)
