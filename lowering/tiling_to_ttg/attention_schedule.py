"""Which tiles a program computes, and what each of its warps does with them.

A program of the grid computes one tile, which all its warps look up. In a persistent program the producer looks up the
next tile while the others compute, and hands its record on through shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import i32

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_cleaner import clean
from compilemask.lowering.tiling_to_ttg.attention_config import Schedule
from compilemask.lowering.tiling_to_ttg.attention_consumer import Ahead, Turns, consume
from compilemask.lowering.tiling_to_ttg.attention_epilogue import store
from compilemask.lowering.tiling_to_ttg.attention_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_order import long_tiles
from compilemask.lowering.tiling_to_ttg.attention_producer import produce
from compilemask.lowering.tiling_to_ttg.attention_tile import Progress, Tile, read_record, tile_at, write_record

Fetch = Callable[[Tile], Sequence[Value]]
"""Starts to read what a tile will need; there may be no tile."""
Work = Callable[[Tile, Progress, Sequence[Value]], Callable[[], None]]
"""What warps do with a tile, which may have no room for its visits, after what the program has done before, with what
was fetched for it; gives what remains to be done while the next tile's needs are fetched.
"""
PROGRESS = len(Progress._fields)


def run_producer(frame: Frame) -> None:
    """What the warp that copies does."""

    kb = frame.kb
    if not frame.config.is_persistent:
        produce(frame, tile_at(frame, kb.program_id(0)).without_faults(frame), _beginning(frame))
        return
    long = long_tiles(kb, kb.arg("query_tiles"), 1)
    count = kb.arg("all_heads") * kb.arg("query_tiles")
    if frame.config.redoes:
        count = kb.where(kb.load(kb.arg("redo")) != 0, count, 0)
    with kb.while_loop([kb.program_id(0), *_beginning(frame)]) as loop:
        with loop.condition() as (position, *progress):
            loop.continue_if(position < count, position, *progress)
        with loop.body() as (position, *progress):
            tile, before = tile_at(frame, position, long), Progress(*progress)
            produce_next = _produce_if_named if frame.config.redoes else _produce_next
            loop.yield_(*produce_next(frame, tile, before, position))
    write_record(frame, None, loop.results[1])
    if frame.config.schedule is Schedule.ATOMIC:
        _reset_counter(frame)


def _produce_next(frame: Frame, tile: Tile, progress: Progress, position: Value) -> list[Value]:
    """Tells the others of a tile and copies what it needs; the next position, and the progress then."""
    write_record(frame, tile, progress.tiles)
    following = _next_position(frame, position)
    tile = tile.without_faults(frame)
    produce(frame, tile, progress)
    return [following, *progress.after(frame, tile)]


def _produce_if_named(frame: Frame, tile: Tile, progress: Progress, position: Value) -> list[Value]:
    """The same for a tile that is named in `redo`, and is so no more; another one is passed by."""
    kb, name = frame.kb, tile.redo(frame)
    with kb.if_else(kb.load(name) != 0) as is_named:
        with is_named.then():
            kb.store(name, 0)
            is_named.yield_(*_produce_next(frame, tile, progress, position))
        with is_named.otherwise():
            is_named.yield_(_next_position(frame, position), *progress)
    return list(is_named.results)


def run_cleaner(frame: Frame) -> None:
    """What the warp that cleans values does."""

    def work(tile: Tile, progress: Progress, _: Sequence[Value]) -> Callable[[], None]:
        clean(frame, tile.without_faults(frame), progress)
        return lambda: None

    _each_tile(frame, 1, lambda _: (), work)


def run_consumer(frame: Frame, part: int) -> None:
    """What a warpgroup that computes does."""
    kb = frame.kb
    turns = Turns(frame, part)

    def work(tile: Tile, progress: Progress, ahead: Sequence[Value]) -> Callable[[], None]:
        valid = tile.n_partial >= 0
        if not frame.op.score.blocks:
            valid = valid & (kb.arg("scale") >= 0.0)
        tile = tile.without_faults(frame)
        result = consume(frame, turns, tile, progress, Ahead(*ahead))
        return lambda: store(frame, part, tile, valid, result)

    turns.begin()
    _each_tile(frame, 4, lambda tile: Ahead.of(frame, part, tile), work)
    kb.store_wait()


def _each_tile(frame: Frame, num_warps: int, fetch: Fetch, work: Work) -> None:
    """Work on all tiles of this program, which the producer names."""
    start = _beginning(frame)
    if not frame.config.is_persistent:
        tile = tile_at(frame, frame.kb.program_id(0))
        work(tile, start, fetch(tile))()
        return
    tile = read_record(frame, num_warps, start.tiles)
    with frame.kb.while_loop([*start, *tile, *fetch(tile)]) as loop:
        with loop.condition() as values:
            loop.continue_if(_split(values)[1].exists, *values)
        with loop.body() as values:
            progress, tile, fetched = _split(values)
            finish = work(tile, progress, fetched)
            progress = progress.after(frame, tile.without_faults(frame))
            following = read_record(frame, num_warps, progress.tiles)
            ahead = fetch(following)
            finish()
            loop.yield_(*progress, *following, *ahead)


def _split(values: Sequence[Value]) -> tuple[Progress, Tile, Sequence[Value]]:
    behind = PROGRESS + len(Tile._fields)
    return Progress(*values[:PROGRESS]), Tile(*values[PROGRESS:behind]), values[behind:]


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
        if frame.config.redoes:
            kb.store(kb.arg("redo"), 0)
        kb.store(counter + 1, 0)
