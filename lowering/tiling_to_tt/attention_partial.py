"""Partial tiles: a bit pattern says which pairs are visible, and a column pattern which keys are read at all.

Key c of a tile is bit 2 * (c >> 3) + (c & 1) of word (c >> 1) & 3 of its row (docs/descriptor.md). In a tensor-core
accumulator the lane alone decides the word and the register alone the bit, so that no shift is by a variable.
"""

from __future__ import annotations

from collections.abc import Sequence

from compilemask.lowering.tiling_to_tt.attention_config import TILE
from compilemask.lowering.tiling_to_tt.attention_frame import Frame
from compilemask.lowering.tiling_to_tt.attention_softmax import Scale, State, step
from compilemask.lowering.tiling_to_tt.builder import Value

WORDS = 4
KEYS_PER_BIT = 4
"""Each of the four words holds a bit for every fourth key, on average."""


def partial_tiles(frame: Frame, state: State, query: Value, scale: Scale) -> State:
    """The state after all partial tiles of the query tile, each in steps of `block_kv` keys."""
    kb, config = frame.kb, frame.config
    keys, values = (frame.origin(name, name, frame.key_head) for name in ("k", "v"))
    pairs = kb.arg("visits") + frame.first_pair * 2
    steps = frame.n_partial * config.steps_per_tile
    with kb.for_loop(0, steps, 1, state, num_stages=config.num_stages) as loop:
        pair = pairs + kb.trunc_div(loop.index, config.steps_per_tile) * 2
        key_tile, pattern = kb.load(pair).named("key_tile"), kb.load(pair + 1).named("pattern")
        in_tile = kb.trunc_rem(loop.index, config.steps_per_tile) * config.block_kv
        at = (key_tile * TILE + in_tile).named("first_key")
        read = _keys_to_read(frame, pattern, in_tile, at)
        key = kb.load(frame.block(keys, "k", at, config.block_kv), frame.with_dims(read), 0.0).named("key")
        value = kb.load(frame.block(values, "v", at, config.block_kv), frame.with_dims(read), 0.0).named("value")
        seen = _seen(frame, pattern, in_tile).named("seen")
        loop.yield_(*step(frame, State(*loop.carried), query, scale, at, key, value, seen))
    return State(*loop.results)


def _seen(frame: Frame, pattern: Value, first: Value) -> Value:
    """[block_q, block_kv] i1: the pairs of rows with keys from `first` of the tile that are visible."""
    kb = frame.kb
    rows = kb.arg("patterns") + (pattern * TILE + frame.row_in_tile) * WORDS
    words = [_from_key(frame, kb.load(rows + word), first)[:, None] for word in range(WORDS)]
    return _bits(frame, words, kb.arange(0, frame.config.block_kv)[None, :])


def _keys_to_read(frame: Frame, pattern: Value, first: Value, at: Value) -> Value:
    """[block_kv, 1] i1: keys that some row of the tile sees."""
    kb = frame.kb
    words = [_from_key(frame, word, first) for word in _column_words(frame, pattern)]
    key = kb.arange(0, frame.config.block_kv)[:, None]
    return (_bits(frame, words, key) & (at + key < kb.arg("keys"))).named("read")


def _column_words(frame: Frame, pattern: Value) -> tuple[Value, ...]:
    """The pattern's columns; in a query tile that the sequence cuts off, those of existing rows.

    A shared pattern knows nothing of the end of the sequence, so its columns may name keys that no existing row sees.
    """
    kb = frame.kb
    columns = kb.arg("columns") + pattern * WORDS
    # Loaded outside of the branch, so that the pipeline loads them ahead.
    words = [kb.load(columns + i) for i in range(WORDS)]
    with kb.if_else(frame.cut_off) as branch:
        with branch.then():
            rows = kb.arg("patterns") + (pattern * TILE + frame.row_in_tile) * WORDS
            branch.yield_(*(kb.reduce(kb.load(rows + i, frame.inside, 0), 0, "or") for i in range(WORDS)))
        with branch.otherwise():
            branch.yield_(*words)
    return branch.results


def _from_key(frame: Frame, word: Value, first: Value) -> Value:
    """The word without the bits of keys before `first`, a multiple of `block_kv`."""
    if frame.config.steps_per_tile == 1:
        return word
    return frame.kb.shift_right_unsigned(word, frame.kb.trunc_div(first, KEYS_PER_BIT))


def _bits(frame: Frame, words: Sequence[Value], key: Value) -> Value:
    """Whether the bit of each key is set, i1 in the broadcast shape of words and keys."""
    kb = frame.kb
    lane = (key >> 1) & (WORDS - 1)
    low = kb.where(lane == 0, words[0], words[1])
    high = kb.where(lane == 2, words[2], words[3])
    word = kb.where(lane < 2, low, high)
    bit = (key >> 3) * 2 + (key & 1)
    return (kb.shift_right_unsigned(word, bit) & 1) != 0
