"""Which keys a tile of rows visits, as a descriptor says it, and which of them each row sees.

In the descriptor of a transposed mask rows are keys, and what is called keys here are queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from compilemask.lowering.descriptor_layout import KEYS, ORDER_WORDS, PATTERN_ROW_WORDS, TILE_WORDS
from compilemask.lowering.tiling_to_scf.attention_frame import Frame
from compilemask.lowering.tiling_to_scf.builder import F32, I32, Value, vector


class Visits(NamedTuple):
    """What a tile of rows visits: pairs of the descriptor."""

    first_pair: Value
    partial: Value
    """How many partial tiles there are; negative if the tile found no room."""
    runs: Value

    @classmethod
    def of(cls, frame: Frame, mask: Value, tile: Value) -> Visits:
        """From the record of a tile of a mask."""
        fb, sizes = frame.fb, frame.sizes
        place = sizes["records"] + (mask * sizes["tiles"] + tile) * TILE_WORDS
        first, partial, runs = (frame.word(place + number) for number in range(3))
        return cls(first, partial, fb.select(fb.compare("slt", partial, 0), fb.constant(0), runs))

    def fault(self, frame: Frame, number: Value) -> Value:
        """A number, or NaN if the tile found no room: whatever is multiplied with it is loud about that."""
        return frame.fb.select(frame.fb.compare("slt", self.partial, 0), frame.fb.constant(math.nan, F32), number)


class RowTile(NamedTuple):
    """A tile of rows."""

    number: Value
    first_row: Value
    rows: Value

    @classmethod
    def of(cls, frame: Frame, mask: Value, rank: Value) -> RowTile:
        """The tile of a rank in launch order."""
        sizes = frame.sizes
        number = frame.word(sizes["order"] + (mask * sizes["tiles"] + rank) * ORDER_WORDS)
        first_row = number * sizes["rows"]
        return cls(number, first_row, frame.fb.minimum(sizes["rows"], sizes["positions"] - first_row))


class LaneRows(NamedTuple):
    """The rows in the lanes: the first one within its tile, and how many there are."""

    first: Value
    size: Value


Visit = Callable[[Sequence[Value], Value, bool], Sequence[Value]]
"""From what is carried, the number of listed keys, and whether lanes see only some of them, to what is carried on."""


def follow(frame: Frame, visits: Visits, rows: LaneRows, initial: Sequence[Value], visit: Visit) -> list[Value]:
    """Visit what the descriptor names: partial tiles, then runs of full ones."""
    fb, zero = frame.fb, frame.fb.constant(0)
    with fb.for_loop(zero, visits.partial, 1, initial) as loop:
        pair = frame.sizes["visits"] + (visits.first_pair + loop.index) * 2
        count = _list_visible(frame, frame.word(pair), frame.word(pair + 1), rows)
        loop.yield_(*visit(loop.carried, count, True))
    with fb.for_loop(zero, visits.runs, 1, loop.results) as of_run:
        pair = frame.sizes["visits"] + (visits.first_pair + visits.partial + of_run.index) * 2
        with fb.for_loop(frame.word(pair), frame.word(pair + 1), 1, of_run.carried) as loop:
            loop.yield_(*visit(loop.carried, _list_all(frame, loop.index), False))
        of_run.yield_(*loop.results)
    return of_run.results


def sees(frame: Frame, place: Value) -> Value:
    """Which lanes see a listed key."""
    fb, lanes = frame.fb, frame.blocks.lanes
    words = fb.load(frame.words, fb.load(frame.read_words, place), lanes)
    bit = fb.splat(fb.load(frame.read_bits, place), lanes)
    return fb.compare("ne", words & bit, 0)


def _list_all(frame: Frame, key_tile: Value) -> Value:
    """List all keys of a tile in `read_keys`; their number."""
    fb = frame.fb
    first = key_tile * KEYS
    with fb.for_loop(fb.constant(0), fb.constant(KEYS)) as loop:
        fb.store(first + loop.index, frame.read_keys, loop.index)
    return fb.constant(KEYS)


def _list_visible(frame: Frame, key_tile: Value, pattern: Value, rows: LaneRows) -> Value:
    """List the keys of a partial tile that any of the lanes' rows sees, with their words; their number."""
    fb, lanes = frame.fb, frame.blocks.lanes
    zero, words = fb.constant(0), fb.constant(PATTERN_ROW_WORDS)
    start = frame.sizes["patterns"] + (pattern * frame.sizes["rows"] + rows.first) * PATTERN_ROW_WORDS
    nothing = fb.constant(0, vector(lanes, I32))
    with fb.for_loop(zero, words) as loop:
        fb.store(nothing, frame.words, loop.index * lanes)
    with fb.for_loop(zero, rows.size) as of_row, fb.for_loop(zero, words) as of_word:
        word = fb.load(fb.arg("descriptor"), start + of_row.index * PATTERN_ROW_WORDS + of_word.index)
        fb.store(word, frame.words, of_word.index * lanes + of_row.index)
    first, one = key_tile * KEYS, fb.constant(1, I32)
    seen = [fb.any_bit(fb.load(frame.words, fb.constant(word * lanes), lanes)) for word in range(PATTERN_ROW_WORDS)]
    count = zero
    # Bit 2 g + i of word w is key 8 g + 2 w + i.
    with fb.for_loop(zero, fb.constant(KEYS // 8), 1, [count]) as loop:
        (count,) = loop.carried
        for key in range(8):
            word, low = key >> 1, key & 1
            bit = fb.integer(loop.index * 2 + low)
            fb.store(first + loop.index * 8 + key, frame.read_keys, count)
            fb.store(fb.constant(word * lanes), frame.read_words, count)
            fb.store(one << bit, frame.read_bits, count)
            count = count + fb.index(seen[word] >> bit & one)
        loop.yield_(count)
    (count,) = loop.results
    _repeat_last(frame, count)
    return count


def _repeat_last(frame: Frame, count: Value) -> None:
    """Fill the last block of the list with its last key, which changes no maximum."""
    fb = frame.fb
    last = fb.select(fb.compare("eq", count, 0), count, count - 1)
    for memory in (frame.read_keys, frame.read_words, frame.read_bits):
        entry = fb.load(memory, last)
        for place in range(frame.blocks.keys - 1):
            fb.store(entry, memory, count + place)
