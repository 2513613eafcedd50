"""Which tiles a program computes, and what each of its warps does with them.

A program of the grid computes one tile, which all its warps look up. In a persistent program the producer looks up the
next tile while the others compute, and hands its record on through shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from xdsl.dialects.builtin import i32

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_cleaner import clean
from compilemask.lowering.tiling_to_ttg.attention_config import Schedule
from compilemask.lowering.tiling_to_ttg.attention_consumer import Turns, consume, first_words
from compilemask.lowering.tiling_to_ttg.attention_epilogue import End, Finish, store, store_if_exact
from compilemask.lowering.tiling_to_ttg.attention_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_inexact import publish
from compilemask.lowering.tiling_to_ttg.attention_order import Order
from compilemask.lowering.tiling_to_ttg.attention_producer import begin_tile, name_tile, produce
from compilemask.lowering.tiling_to_ttg.attention_tile import Progress, Tile, read_record, tile_at, write_record

Fetch = Callable[[Tile], Sequence[Value]]
"""Starts to read what a tile will need; there may be no tile."""
Work = Callable[[Tile, Progress, Sequence[Value]], Finish]
"""What warps do with a tile, which may have no room for its visits, after what the program has done before, with what
was fetched for it.
"""
PROGRESS = len(Progress._fields)


class Pass(NamedTuple):
    """One of a program's passes over tiles."""

    start: Progress
    """What the program has done before."""
    only: Tile | None
    """Its tile, if it is a program of the grid."""
    records: int = 0
    """Of those that the producer has written, how many named no tile."""


def run_producer(frame: Frame, only: Tile | None) -> None:
    """What the warp that copies does."""
    kb = frame.kb
    if only is not None:
        produce(frame, only.without_faults(frame), _beginning(frame))
        return
    count, order = kb.arg("all_heads") * kb.arg("query_tiles"), Order.of_queries(kb, 1)

    def read(position: Value) -> Tile:
        return tile_at(kb, frame.config, position, order).with_patterns(frame)

    first = kb.program_id(0)
    with kb.while_loop([first, *_beginning(frame), *read(first)]) as loop:
        with loop.condition() as (position, *others):
            loop.continue_if(position < count, position, *others)
        with loop.body() as (position, *others):
            progress, tile = Progress(*others[:PROGRESS]), Tile(*others[PROGRESS:])
            name_tile(frame, tile, progress)
            following = _next_position(frame, position)
            tile = tile.without_faults(frame)
            begun = begin_tile(frame, tile, progress)
            # Read here, it waits for memory while nobody waits for it; there may be no such tile.
            ahead = read(kb.minimum(following, count - 1))
            begun.finish()
            loop.yield_(following, *progress.after(frame, tile), *ahead)
    write_record(frame, None, loop.results[1])
    if frame.config.schedule is Schedule.ATOMIC:
        _reset_counter(frame)


def run_cleaner(frame: Frame, only: Tile | None) -> None:
    """What the warp that cleans values does."""
    each_tile(frame, 1, Pass(_beginning(frame), only), lambda _: (), partial(clean_values, frame))


def run_consumer(frame: Frame, part: int, only: Tile | None) -> None:
    """What a warpgroup that computes does."""
    kb, turns, first_pass = frame.kb, Turns(frame, part), Pass(_beginning(frame), only)

    def fetch(tile: Tile) -> Sequence[Value]:
        return [first_words(frame, part, tile)]

    turns.begin()
    if frame.config.keeps_peaks:
        work, nothing = partial(_compute, frame, turns, store_if_exact), kb.constant(0, i32)
        progress, (inexact,) = each_tile(frame, 4, first_pass, fetch, work, [nothing])
        publish(frame, part, inexact, progress)
    else:
        each_tile(frame, 4, first_pass, fetch, partial(_compute, frame, turns, store))
    kb.store_wait()


def clean_values(frame: Frame, tile: Tile, progress: Progress, _: Sequence[Value]) -> Finish:
    """Cleans the values of a tile; nothing remains then."""
    clean(frame, tile.without_faults(frame), progress)
    return lambda carried: carried


def _compute(frame: Frame, turns: Turns, end: End, tile: Tile, progress: Progress, fetched: Sequence[Value]) -> Finish:
    """Computes a warpgroup's rows of a tile, up to their end."""
    valid, tile = tile.is_valid(frame), tile.without_faults(frame)
    result = consume(frame, turns, tile, progress, *fetched)
    return partial(end, frame, turns.part, tile, valid, result)


def each_tile(
    frame: Frame, num_warps: int, tiles: Pass, fetch: Fetch, work: Work, carried: Sequence[Value] = ()
) -> tuple[Progress, Sequence[Value]]:
    """Work on all tiles of a pass, which the producer names; what the program has done then, and what is carried."""
    if tiles.only is not None:
        tile = tiles.only.with_patterns(frame)
        carried = work(tile, tiles.start, fetch(tile))(carried)
        return tiles.start.after(frame, tile.without_faults(frame)), carried
    start, records = tiles.start, tiles.records
    count = PROGRESS + len(carried)
    tile = read_record(frame, num_warps, start.tiles + records)
    with frame.kb.while_loop([*start, *carried, *tile, *fetch(tile)]) as loop:
        with loop.condition() as values:
            loop.continue_if(_split(values[count:])[0].exists, *values)
        with loop.body() as values:
            progress, carried = Progress(*values[:PROGRESS]), values[PROGRESS:count]
            tile, fetched = _split(values[count:])
            finish = work(tile, progress, fetched)
            progress = progress.after(frame, tile.without_faults(frame))
            following = read_record(frame, num_warps, progress.tiles + records)
            ahead = fetch(following)
            loop.yield_(*progress, *finish(carried), *following, *ahead)
    return Progress(*loop.results[:PROGRESS]), loop.results[PROGRESS:count]


def _split(values: Sequence[Value]) -> tuple[Tile, Sequence[Value]]:
    """A tile, and what was fetched for it."""
    words = len(Tile._fields)
    return Tile(*values[:words]), values[words:]


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
