"""The cleaner: one warp that zeroes, in partial tiles, the values of keys that no row of the query tile sees.

Such keys have the weight 0, but 0 times NaN or infinity is NaN, and memory that no query of the mask sees may hold
anything. If there is no such memory, as the tile's record says, the cleaner has nothing to do. A shared pattern knows
nothing of the end of the sequence, so that in a query tile that the sequence cuts off, the keys that are seen are
those of existing rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import i32

from compilemask.dialects.triton.layouts import BlockedLayout
from compilemask.dialects.triton.ttg_types import MemDescType
from compilemask.lowering.descriptor_layout import COLUMN_ROWS
from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_config import TILE
from compilemask.lowering.tiling_to_ttg.attention_frame import PATTERN_WORDS, Frame
from compilemask.lowering.tiling_to_ttg.attention_tile import Progress, Tile
from compilemask.lowering.tiling_to_ttg.builder import slice_of, tma_layout
from compilemask.lowering.tiling_to_ttg.builder_memory import Buffer

GROUP = 16
"""Keys cleaned at once: their bits are four neighbours in each of the four words."""
PANEL = 64
"""Columns of values side by side in shared memory."""
GROUP_LAYOUT = BlockedLayout.of([1, 8], [4, 8], [1, 1], [1, 0])
"""[16, 64] values in one warp, 16 bytes a thread and row."""
ROWS_AT_ONCE = 32
WORDS_LAYOUT = BlockedLayout.of([1, 4], [32, 1], [1, 1], [1, 0])
"""[32, 4] words of a pattern in one warp, a row a thread: one instruction combines those of all threads."""


def clean(frame: Frame, tile: Tile, progress: Progress) -> None:
    """Passes on the values of a tile's partial tiles, cleaned where needed."""
    kb = frame.kb
    pairs = tile.pairs(frame)
    with kb.for_loop(0, tile.cleaned(frame), 1) as partial:
        words = _seen(frame, tile, kb.load(pairs + partial.index * 2 + 1))
        place, phase = frame.value.place(kb, progress.visits + partial.index)
        frame.value.full[place].wait(phase)
        everybody = words[0] & words[1] & words[2] & words[3]
        with kb.if_else(everybody != -1) as branch, branch.then():
            _zero_unseen(frame, place, words, everybody)
            kb.fence_async_shared()
        frame.value.full[frame.value.cleaned_place(kb, progress.cleaned + partial.index)[0]].arrive()


def _seen(frame: Frame, tile: Tile, pattern: Value) -> tuple[Value, ...]:
    """The four words of keys that an existing row sees."""
    kb, rows = frame.kb, frame.config.rows
    words = _columns(frame, pattern)
    with kb.if_else(tile.number * rows + rows > kb.arg("queries")) as branch:
        with branch.then():
            branch.yield_(*_seen_by_rows(frame, kb.arg("queries") - tile.number * rows, pattern))
        with branch.otherwise():
            branch.yield_(*words)
    return branch.results


def _columns(frame: Frame, pattern: Value) -> list[Value]:
    """The words of keys that any row of a pattern sees: its columns are those of 64 rows each."""
    kb, groups = frame.kb, frame.config.rows // COLUMN_ROWS
    columns = kb.arg("columns") + pattern * (groups * PATTERN_WORDS)
    words = [kb.load(columns + word) for word in range(PATTERN_WORDS)]
    for group in range(1, groups):
        words = [word | kb.load(columns + (group * PATTERN_WORDS + i)) for i, word in enumerate(words)]
    return words


def _seen_by_rows(frame: Frame, rows: Value, pattern: Value) -> list[Value]:
    """The OR of the first `rows` rows of a pattern."""
    kb = frame.kb
    row = kb.arange(0, ROWS_AT_ONCE, slice_of(WORDS_LAYOUT, 1))[:, None]
    column = kb.arange(0, PATTERN_WORDS, slice_of(WORDS_LAYOUT, 0))[None, :]
    words = kb.zeros((ROWS_AT_ONCE, PATTERN_WORDS), i32, WORDS_LAYOUT)
    base = kb.arg("patterns") + pattern * (frame.config.rows * PATTERN_WORDS)
    with kb.for_loop(0, rows, ROWS_AT_ONCE, [words]) as loop:
        address = base + ((row + loop.index) * PATTERN_WORDS + column)
        loop.yield_(loop.carried[0] | kb.load(address, row + loop.index < rows, 0))
    by_word = kb.reduce(loop.results[0], 0, "or")
    index = kb.arange(0, PATTERN_WORDS, slice_of(WORDS_LAYOUT, 0))
    return [kb.reduce(kb.where(index == word, by_word, 0), 0, "or") for word in range(PATTERN_WORDS)]


def _zero_unseen(frame: Frame, place: Value, words: Sequence[Value], everybody: Value) -> None:
    """Zeroes the rows of a buffer of values whose bits are not set, a group at a time."""
    kb = frame.kb
    panels, bits = frame.head_dim // PANEL, GROUP // len(words)
    values = _groups(frame)
    row = kb.arange(0, GROUP, slice_of(GROUP_LAYOUT, 1))
    with kb.for_loop(0, TILE // GROUP, 1) as loop:
        shift, every = loop.index * bits, (1 << bits) - 1
        with kb.if_else(((everybody >> shift) & every) != every) as some, some.then():
            seen = _bits(frame, words, row, shift)[:, None]
            for panel in range(panels):
                group = values[(place * panels + panel) * (TILE // GROUP) + loop.index]
                group.store(kb.where(seen, group.load(GROUP_LAYOUT), 0.0))


def _groups(frame: Frame) -> Buffer:
    """All buffers of values as pieces of [16, 64], which lie in one piece: panel by panel, from the first row down."""
    count = frame.config.stages * (frame.head_dim // PANEL) * (TILE // GROUP)
    layout = tma_layout((GROUP, PANEL), frame.element_type)
    return frame.value.buffers.reinterpret(MemDescType.of((count, GROUP, PANEL), frame.element_type, layout))


def _bits(frame: Frame, words: Sequence[Value], row: Value, shift: Value) -> Value:
    """[16] i1: the bits of a group's keys, of which the first is bit `shift` of the first word."""
    kb = frame.kb
    lane = (row >> 1) & 3
    low, high = kb.where(lane == 0, words[0], words[1]), kb.where(lane == 2, words[2], words[3])
    word = kb.where(lane < 2, low, high)
    return (kb.shift_right_unsigned(word, ((row >> 3) << 1) + (row & 1) + shift) & 1) != 0
