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
from compilemask.lowering.tiling_to_ttg.attention_tile import Progress, Tile, read_record, tile_at, write_record

Work = Callable[[Tile, Progress], None]
"""What warps do with a tile, which may have no room for its visits, after what the program has done before."""
PROGRESS = len(Progress._fields)


def run_producer(frame: Frame) -> None:
    """What the warp that copies does."""

    if not frame.config.is_persistent:
        _only_tile(frame, lambda tile, progress: produce(frame, tile.without_faults(frame), progress))
        return
    kb = frame.kb
    with kb.while_loop([kb.program_id(0), *_beginning(frame)]) as loop:
        with loop.condition() as (position, *progress):
            loop.continue_if(position < kb.arg("all_heads") * kb.arg("query_tiles"), position, *progress)
        with loop.body() as (position, *progress):
            progress = Progress(*progress)
            tile = tile_at(frame, position)
            write_record(frame, tile, progress.tiles)
            following = _next_position(frame, position)
            tile = tile.without_faults(frame)
            produce(frame, tile, progress)
            loop.yield_(following, *progress.after(frame, tile))
    write_record(frame, None, loop.results[1])
    if frame.config.schedule is Schedule.ATOMIC:
        _reset_counter(frame)


def run_cleaner(frame: Frame) -> None:
    """What the warp that cleans values does."""
    _each_tile(frame, 1, lambda tile, progress: clean(frame, tile.without_faults(frame), progress))


def run_consumer(frame: Frame, part: int) -> None:
    """What a warpgroup that computes does."""
    kb = frame.kb
    turns = Turns(frame, part)

    def work(tile: Tile, progress: Progress) -> None:
        valid = tile.n_partial >= 0
        if not frame.op.score.blocks:
            valid = valid & (kb.arg("scale") >= 0.0)
        tile = tile.without_faults(frame)
        store(frame, part, tile, valid, consume(frame, turns, tile, progress))

    turns.begin()
    _each_tile(frame, 4, work)
    kb.store_wait()


def _each_tile(frame: Frame, num_warps: int, work: Work) -> None:
    """Work on all tiles of this program, which the producer names."""
    if not frame.config.is_persistent:
        _only_tile(frame, work)
        return
    with frame.kb.while_loop(_beginning(frame)) as loop:
        with loop.condition() as progress:
            exists, tile = read_record(frame, num_warps, Progress(*progress).tiles)
            loop.continue_if(exists, *progress, *tile)
        with loop.body() as values:
            progress, tile = Progress(*values[:PROGRESS]), Tile(*values[PROGRESS:])
            work(tile, progress)
            loop.yield_(*progress.after(frame, tile.without_faults(frame)))


def _only_tile(frame: Frame, work: Work) -> None:
    work(tile_at(frame, frame.kb.program_id(0)), _beginning(frame))


def _beginning(frame: Frame) -> Progress:
    zero = frame.kb.constant(0, i32)
    return Progress(zero, zero, zero)


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
