"""What a block of query rows does in one tile of keys: scores, their exponentials, and the sum of weighted values.

Query rows lie in the lanes of vectors, so that maxima and sums over keys need no exchange between lanes, and keys and
values are read where they are, one number at a time for all lanes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from compilemask.lowering.descriptor_layout import KEYS, PATTERN_ROW_WORDS
from compilemask.lowering.tiling_to_scf.attention_frame import Frame
from compilemask.lowering.tiling_to_scf.builder import I32, Value, vector
from compilemask.lowering.tiling_to_scf.exponential import exp2


class State(NamedTuple):
    """Of each lane: the largest score so far, in powers of 2, and the sum of exponentials below it."""

    top: Value
    total: Value


class Tile(NamedTuple):
    """Where the rows of a head's keys and values begin, and how many keys are read."""

    key: Value
    value: Value
    count: Value


def list_all(frame: Frame, key_tile: Value) -> Value:
    """List all keys of a tile in `read_keys`; their number."""
    fb = frame.fb
    first = key_tile * KEYS
    with fb.for_loop(fb.constant(0), fb.constant(KEYS)) as loop:
        fb.store(first + loop.index, frame.read_keys, loop.index)
    return fb.constant(KEYS)


def list_visible(frame: Frame, key_tile: Value, pattern: Value, row: Value, rows: Value) -> Value:
    """List the keys of a partial tile that any of `rows` rows from `row` on sees, with their words; their number."""
    fb, lanes = frame.fb, frame.blocks.lanes
    zero, words = fb.constant(0), fb.constant(PATTERN_ROW_WORDS)
    start = frame.sizes["patterns"] + (pattern * frame.sizes["rows"] + row) * PATTERN_ROW_WORDS
    nothing = fb.constant(0, vector(lanes, I32))
    with fb.for_loop(zero, words) as loop:
        fb.store(nothing, frame.words, loop.index * lanes)
    with fb.for_loop(zero, rows) as of_row, fb.for_loop(zero, words) as of_word:
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


def attend(frame: Frame, state: State, tile: Tile, masked: bool) -> State:
    """The state behind a tile whose keys are listed; `masked` if lanes see only some of them."""
    fb = frame.fb
    top = _scores(frame, state.top, tile, masked)
    lowest = fb.constant(-math.inf, top.type)
    # Rows that saw nothing yet: -inf - 0 is -inf, where -inf - -inf would be NaN.
    shift = fb.select(fb.compare("oeq", top, lowest), frame.zeros(), top)
    fade = exp2(fb, state.top - shift)
    total = _exponentials(frame, shift, state.total * fade, tile.count)
    _weigh(frame, fade, tile)
    return State(top, total)


def _scores(frame: Frame, top: Value, tile: Tile, masked: bool) -> Value:
    """Store the scores of the listed keys; the largest ones so far."""
    fb, blocks, lanes = frame.fb, frame.blocks, frame.blocks.lanes
    with fb.for_loop(fb.constant(0), tile.count, blocks.keys, [top]) as block:
        (top,) = block.carried
        places = [block.index + number for number in range(blocks.keys)]
        starts = [tile.key + fb.load(frame.read_keys, place) * frame.sizes["key_row"] for place in places]
        initial = [frame.zeros()] * blocks.keys
        with fb.for_loop(fb.constant(0), fb.constant(frame.head_dim), 1, initial) as loop:
            query = fb.load(frame.query, loop.index * lanes, lanes)
            keys = [fb.splat(fb.load(fb.arg("key"), start + loop.index), lanes) for start in starts]
            loop.yield_(*(fb.fma(query, key, sum_) for key, sum_ in zip(keys, loop.carried, strict=True)))
        for place, score in zip(places, loop.results, strict=True):
            seen = _masked(frame, score, place) if masked else score
            top = fb.select(fb.compare("ogt", top, seen), top, seen)
            fb.store(seen, frame.weights, place * lanes)
        block.yield_(top)
    return block.results[0]


def _masked(frame: Frame, score: Value, place: Value) -> Value:
    """Scores of a listed key, -inf in lanes that do not see it."""
    fb, lanes = frame.fb, frame.blocks.lanes
    words = fb.load(frame.words, fb.load(frame.read_words, place), lanes)
    bit = fb.splat(fb.load(frame.read_bits, place), lanes)
    return fb.select(fb.compare("ne", words & bit, 0), score, fb.constant(-math.inf, score.type))


def _exponentials(frame: Frame, shift: Value, total: Value, count: Value) -> Value:
    """Replace scores by their exponentials; the sums, added to `total`."""
    fb, lanes = frame.fb, frame.blocks.lanes
    with fb.for_loop(fb.constant(0), count, 1, [total]) as loop:
        place = loop.index * lanes
        weight = exp2(fb, fb.load(frame.weights, place, lanes) - shift)
        fb.store(weight, frame.weights, place)
        loop.yield_(loop.carried[0] + weight)
    return loop.results[0]


def _weigh(frame: Frame, fade: Value, tile: Tile) -> None:
    """Fade the sums and add the weighted values, in blocks of the head dimension."""
    fb, dims = frame.fb, frame.blocks.dims
    whole, rest = frame.head_dim // dims * dims, frame.head_dim % dims
    if whole:
        with fb.for_loop(fb.constant(0), fb.constant(whole), dims) as block:
            _weigh_block(frame, fade, tile, [block.index + number for number in range(dims)])
    if rest:
        _weigh_block(frame, fade, tile, [fb.constant(whole + number) for number in range(rest)])


def _weigh_block(frame: Frame, fade: Value, tile: Tile, dims: Sequence[Value]) -> None:
    fb, lanes = frame.fb, frame.blocks.lanes
    initial = [fb.load(frame.sums, dim * lanes, lanes) * fade for dim in dims]
    with fb.for_loop(fb.constant(0), tile.count, 1, initial) as loop:
        weight = fb.load(frame.weights, loop.index * lanes, lanes)
        start = tile.value + fb.load(frame.read_keys, loop.index) * frame.sizes["value_row"]
        values = [fb.splat(fb.load(fb.arg("value"), start + dim), lanes) for dim in dims]
        loop.yield_(*(fb.fma(weight, value, sum_) for value, sum_ in zip(values, loop.carried, strict=True)))
    for dim, sum_ in zip(dims, loop.results, strict=True):
        fb.store(sum_, frame.sums, dim * lanes)
