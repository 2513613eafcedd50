"""Which tiles a program computes, and what each of its warps does with them.

A program of the grid computes one tile, which all its warps look up. In a persistent program the producer looks up the
next tile while the others compute, and hands its record on through shared memory.
"""

from __future__ import annotations

from xdsl.dialects.builtin import i32

from compilemask.lowering.tiling_to_ttg.attention_cleaner import clean
from compilemask.lowering.tiling_to_ttg.attention_consumer import Turns, consume
from compilemask.lowering.tiling_to_ttg.attention_epilogue import store
from compilemask.lowering.tiling_to_ttg.attention_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_producer import produce
from compilemask.lowering.tiling_to_ttg.attention_tile import tile_at


def run_producer(frame: Frame) -> None:
    """What the warp that copies does."""
    kb = frame.kb
    zero = kb.constant(0, i32)
    tile = tile_at(frame, kb.program_id(0)).without_faults(frame)
    produce(frame, tile, zero, zero)


def run_cleaner(frame: Frame) -> None:
    """What the warp that cleans values does."""
    kb = frame.kb
    tile = tile_at(frame, kb.program_id(0)).without_faults(frame)
    clean(frame, tile, kb.constant(0, i32))


def run_consumer(frame: Frame, part: int) -> None:
    """What a warpgroup that computes does."""
    kb = frame.kb
    zero = kb.constant(0, i32)
    turns = Turns(frame, part)
    turns.begin()
    found = tile_at(frame, kb.program_id(0))
    valid = (found.n_partial >= 0) & (kb.arg("scale") >= 0.0)
    tile = found.without_faults(frame)
    store(frame, part, tile, valid, consume(frame, turns, tile, zero, zero))
    kb.store_wait()
