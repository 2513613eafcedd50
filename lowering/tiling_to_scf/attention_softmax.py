"""What a block of query rows does with the keys that are listed: scores, their exponentials, and the sum of weighted
values."""

from __future__ import annotations

import math
from typing import NamedTuple

from compilemask.lowering.tiling_to_scf.attention_frame import Frame
from compilemask.lowering.tiling_to_scf.attention_products import Rows, Sum, add, listed_blocks, products
from compilemask.lowering.tiling_to_scf.attention_tiles import sees
from compilemask.lowering.tiling_to_scf.builder import Value
from compilemask.lowering.tiling_to_scf.exponential import exp2


class State(NamedTuple):
    """Of each lane: the largest score so far, in powers of 2, and the sum of exponentials below it."""

    top: Value
    total: Value


class Head(NamedTuple):
    """The keys and values of one batch and head."""

    key: Rows
    value: Rows


def attend(frame: Frame, state: State, head: Head, count: Value, masked: bool) -> State:
    """The state behind a tile of which `count` keys are listed; `masked` if lanes see only some of them."""
    fb = frame.fb
    top = _scores(frame, state.top, head.key, count, masked)
    lowest = fb.constant(-math.inf, top.type)
    # Rows that saw nothing yet: -inf - 0 is -inf, where -inf - -inf would be NaN.
    shift = fb.select(fb.compare("oeq", top, lowest), frame.zeros(), top)
    fade = exp2(fb, state.top - shift)
    total = _exponentials(frame, shift, state.total * fade, count)
    add(frame, Sum(frame.rows_of("out"), frame.tile_of("weights"), head.value, count, fade))
    return State(top, total)


def _scores(frame: Frame, top: Value, key: Rows, count: Value, masked: bool) -> Value:
    """Store the scores of the listed keys; the largest ones so far."""
    fb = frame.fb
    with listed_blocks(frame, count, [top]) as block:
        (top,) = block.carried
        for place, score in zip(block.places, products(frame, "query", key, block.places), strict=True):
            lowest = fb.constant(-math.inf, score.type)
            seen = fb.select(sees(frame, place), score, lowest) if masked else score
            top = fb.select(fb.compare("ogt", top, seen), top, seen)
            fb.store(seen, frame.tile_of("weights"), place * frame.blocks.lanes)
        block.carried[:] = [top]
    return block.results[0]


def _exponentials(frame: Frame, shift: Value, total: Value, count: Value) -> Value:
    """Replace scores by their exponentials; the sums, added to `total`."""
    fb, lanes, memory = frame.fb, frame.blocks.lanes, frame.tile_of("weights")
    with fb.for_loop(fb.constant(0), count, 1, [total]) as loop:
        place = loop.index * lanes
        weight = exp2(fb, fb.load(memory, place, lanes) - shift)
        fb.store(weight, memory, place)
        loop.yield_(loop.carried[0] + weight)
    return loop.results[0]
