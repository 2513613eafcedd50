"""Which tiles a program computes, and what each of its warps does with them.

A program of the grid computes one tile, which all its warps look up. In a persistent program the producer looks up the
next tile while the others compute, and hands its record on through shared memory.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.builtin import i32

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_cleaner import clean
from compilemask.lowering.tiling_to_ttg.attention_config import Schedule
from compilemask.lowering.tiling_to_ttg.attention_consumer import Turns, consume
from compilemask.lowering.tiling_to_ttg.attention_epilogue import store
from compilemask.lowering.tiling_to_ttg.attention_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_producer import produce
from compilemask.lowering.tiling_to_ttg.attention_tile import Tile, read_record, tile_at, write_record

Work = Callable[[Tile, Value, Value], Value]
"""What warps do with the n-th tile of a program, of which the first visit has a number; the next visit's number."""


def run_producer(frame: Frame) -> None:
    """What the warp that copies does."""

    def work(tile: Tile, iteration: Value, count: Value) -> Value:
        return produce(frame, tile.without_faults(frame), iteration, count)

    if not frame.config.is_persistent:
        _only_tile(frame, work)
        return
    kb = frame.kb
    zero = kb.constant(0, i32)
    with kb.while_loop([kb.program_id(0), zero, zero]) as loop:
        with loop.condition() as (position, iteration, count):
            loop.continue_if(position < kb.arg("all_heads") * kb.arg("query_tiles"), position, iteration, count)
        with loop.body() as (position, iteration, count):
            tile = tile_at(frame, position)
            write_record(frame, tile, iteration)
            following = _next_position(frame, position)
            loop.yield_(following, iteration + 1, work(tile, iteration, count))
    write_record(frame, None, loop.results[1])
    if frame.config.schedule is Schedule.ATOMIC:
        _reset_counter(frame)


def run_cleaner(frame: Frame) -> None:
    """What the warp that cleans values does."""
    _each_tile(frame, 1, lambda tile, _, count: clean(frame, tile.without_faults(frame), count))


def run_consumer(frame: Frame, part: int) -> None:
    """What a warpgroup that computes does."""
    kb = frame.kb
    turns = Turns(frame, part)

    def work(tile: Tile, iteration: Value, count: Value) -> Value:
        valid = (tile.n_partial >= 0) & (kb.arg("scale") >= 0.0)
        tile = tile.without_faults(frame)
        result = consume(frame, turns, tile, iteration, count)
        store(frame, part, tile, valid, result)
        return result.count

    turns.begin()
    _each_tile(frame, 4, work)
    kb.store_wait()


def _each_tile(frame: Frame, num_warps: int, work: Work) -> None:
    """Work on all tiles of this program, which the producer names."""
    if not frame.config.is_persistent:
        _only_tile(frame, work)
        return
    kb = frame.kb
    zero = kb.constant(0, i32)
    with kb.while_loop([zero, zero]) as loop:
        with loop.condition() as (iteration, count):
            exists, tile = read_record(frame, num_warps, iteration)
            loop.continue_if(exists, iteration, count, *tile)
        with loop.body() as (iteration, count, *tile):
            loop.yield_(iteration + 1, work(Tile(*tile), iteration, count))


def _only_tile(frame: Frame, work: Work) -> None:
    zero = frame.kb.constant(0, i32)
    work(tile_at(frame, frame.kb.program_id(0)), zero, zero)


def _next_position(frame: Frame, position: Value) -> Value:
    """Where in the launch order this program's next tile stands. Programs start with the one of their own number."""
    kb = frame.kb
    programs = kb.num_programs(0)
    if frame.config.schedule is Schedule.STATIC:
        return position + programs
    return kb.atomic_add(kb.arg("counter"), 1) + programs


def _reset_counter(frame: Frame) -> None:
    """The last program leaves zeros for the next launch."""
    kb = frame.kb
    counter = kb.arg("counter")
    finished = kb.atomic_add(counter + 1, 1)
    with kb.if_else(finished == kb.num_programs(0) - 1) as branch, branch.then():
        kb.store(counter, 0)
        kb.store(counter + 1, 0)
