"""Lists of tiles that are inexact: the peak that a row has kept lies too far from its scores.

A consumer that finds such a tile stores no rows of it and puts it on its list: a tile's entry stands where the
log-sum-exp of the first of those rows will, so that lists take no memory, and names the consumer's tile before. Entries
are positions in the launch order plus 1, 0 ends a list; a program takes positions in rising order, so that the largest
head of all is the next tile. `attention_again.py` computes what stands on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from xdsl.dialects.builtin import f32, i32, i64

from compilemask.dialects.triton.layouts import WARP_SIZE, BlockedLayout, RegisterLayout
from compilemask.dialects.triton.ttg_specialize import WARPGROUP
from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS
from compilemask.lowering.tiling_to_ttg.attention_frame import LIST_WORDS, PATTERN_WORDS, Frame
from compilemask.lowering.tiling_to_ttg.attention_softmax import pattern_words
from compilemask.lowering.tiling_to_ttg.attention_tile import Progress, Tile

SMALLEST_SUM, LARGEST_SUM = 2.0**-30, 2.0**100
"""Of a row's weights, whose peak was kept: below, products with small values may vanish, above, they may overflow."""
SAFE_SUM = 2.0**10
"""Up to it, weighed values are finite if no value is larger than 2^117: they are looked at beyond it only."""


def is_doubtful(frame: Frame, part: int, tile: Tile, total: Value) -> Value:
    """i32, not 0: a row of a consumer has a sum [64] for which it may be inexact. Needs no weighed values."""
    kb = frame.kb
    doubtful = kb.where((total >= SMALLEST_SUM) & (total <= SAFE_SUM), 0, kb.cast(_exists(frame, part, tile), i32))
    return kb.reduce(doubtful, 0, "max")


def is_inexact(frame: Frame, part: int, tile: Tile, total: Value, acc: Value) -> Value:
    """i32, not 0: the sum [64] or the weighed values [64, D] of a consumer's row left the range in which they are
    exact: its scores lie too far from the peak that was kept.
    """
    kb, layout = frame.kb, frame.layouts.rows
    # Infinity and NaN times 0 are NaN.
    finite = kb.convert_layout(kb.reduce(acc * 0.0, 1, "sum"), layout) == 0.0
    exact = (total <= LARGEST_SUM) & (total >= SMALLEST_SUM) & finite
    inexact = kb.where(exact, 0, kb.cast(_exists(frame, part, tile), i32))
    # In rows that see nothing, a sum of 0 is exact.
    with kb.if_else(tile.n_full == 0) as branch:
        with branch.then():
            seen = kb.cast(_seen(frame, part, tile) != 0, i32)
            branch.yield_(kb.where(total == 0.0, inexact & seen, inexact))
        with branch.otherwise():
            branch.yield_(inexact)
    return kb.reduce(branch.results[0], 0, "max")


def _exists(frame: Frame, part: int, tile: Tile) -> Value:
    """[64] i1: a consumer's rows that exist."""
    return _positions(frame, part, tile, frame.layouts.rows) < frame.queries.length


def _seen(frame: Frame, part: int, tile: Tile) -> Value:
    """[64]: not 0 in the rows of a consumer that see something in a partial tile."""
    kb, exists = frame.kb, frame.kb.constant(1) != 0
    nothing = kb.zeros((ROWS, PATTERN_WORDS), i32, frame.layouts.lanes)
    with kb.for_loop(0, tile.n_partial, 1, [nothing]) as loop:
        number = kb.load(tile.pairs(frame) + loop.index * 2 + 1)
        loop.yield_(loop.carried[0] | pattern_words(frame, part, number, exists))
    return kb.convert_layout(kb.reduce(loop.results[0], 1, "or"), frame.layouts.rows)


def put_on_list(frame: Frame, part: int, tile: Tile, head: Value) -> Value:
    """The head of a consumer's list behind a tile of which rows exist."""
    frame.kb.store(_entry(frame, part, tile, frame.layouts.rows), frame.kb.bitcast(head, f32))
    return tile.position + 1


class Lists(NamedTuple):
    """Those of a program that has done all its tiles."""

    heads: Sequence[Value]
    """Of each consumer's list."""
    progress: Progress
    """What the program has done."""

    @property
    def name_tiles(self) -> Value:
        """i1: something is inexact."""
        return reduce(Value.__or__, self.heads) != 0


def publish(frame: Frame, part: int, head: Value, progress: Progress) -> None:
    """Leaves the head of a consumer's complete list to what comes behind the warp specialization."""
    kb, layout = frame.kb, _words_layout()
    assert frame.inexact is not None
    index, words = kb.arange(0, LIST_WORDS, layout), kb.full((LIST_WORDS,), head, i32, layout)
    for number, word in enumerate(progress, 1):
        words = kb.where(index == number, word, words)
    frame.inexact[part].store(words)


def published(frame: Frame) -> Lists:
    """What the consumers have left."""
    kb, layout = frame.kb, _words_layout()
    assert frame.inexact is not None
    index = kb.arange(0, LIST_WORDS, layout)
    loaded = [frame.inexact[part].load(layout) for part in range(frame.config.consumers)]

    def word(words: Value, number: int) -> Value:
        return kb.reduce(kb.where(index == number, words, 0), 0, "sum")

    progress = Progress(*(word(loaded[0], number) for number in range(1, LIST_WORDS)))
    return Lists([word(words, 0) for words in loaded], progress)


def next_position(frame: Frame, heads: Sequence[Value]) -> Value:
    """In the launch order, of the next tile of the lists; -1 if they are empty."""
    return reduce(frame.kb.maximum, heads) - 1


def parts_of(frame: Frame, heads: Sequence[Value], tile: Tile) -> Value:
    """Bits of the consumers on whose lists a tile is next."""
    kb = frame.kb
    bits = [kb.cast(head == tile.position + 1, i32) << part for part, head in enumerate(heads)]
    return reduce(Value.__or__, bits)


def take_off(frame: Frame, heads: Sequence[Value], tile: Tile) -> list[Value]:
    """The heads behind a tile that is next; read by one warp, before the tile's rows are stored."""
    kb, layout = frame.kb, _rows_layout()
    behind: list[Value] = []
    for part, head in enumerate(heads):
        is_listed = head == tile.position + 1
        entry = kb.load(_entry(frame, part, tile, layout), is_listed, 0.0)
        behind.append(kb.where(is_listed, kb.bitcast(entry, i32), head))
    return behind


def _entry(frame: Frame, part: int, tile: Tile, layout: RegisterLayout) -> Value:
    """Address of a tile's entry in a consumer's list."""
    kb = frame.kb
    first = kb.reduce(_positions(frame, part, tile, layout), 0, "min")
    return kb.arg("lse") + (kb.cast(tile.head, i64) * kb.cast(frame.queries.length, i64) + kb.cast(first, i64))


def _positions(frame: Frame, part: int, tile: Tile, layout: RegisterLayout) -> Value:
    """[64] positions of a consumer's rows; the length or more where there is none."""
    first = tile.number * frame.config.rows + part * ROWS
    return frame.queries.positions(first, frame.kb.arange(0, ROWS, layout))


def _words_layout() -> BlockedLayout:
    """Every thread of a warpgroup holds the words of a list."""
    return BlockedLayout.of([LIST_WORDS], [WARP_SIZE], [WARPGROUP], [0])


def _rows_layout() -> BlockedLayout:
    """[64] in one warp."""
    return BlockedLayout.of([ROWS // WARP_SIZE], [WARP_SIZE], [1], [0])
