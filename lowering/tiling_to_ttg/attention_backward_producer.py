"""The producer of the backward kernel: one warp that copies a tile of keys and values, and then, as far ahead as there
are empty buffers, the queries that see it, with the gradients of their outputs.
"""

from __future__ import annotations

from xdsl.dialects.builtin import i32

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_backward_end import let_end
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_backward_visits import Visits, own_tile, visits_of
from compilemask.lowering.tiling_to_ttg.attention_config import TILE


def run_producer(frame: Frame) -> None:
    """Copies what the program needs."""
    kb, tile = frame.kb, own_tile(frame, 1)
    frame.keys_full.expect(frame.key.map.bytes + frame.value.map.bytes)
    box = frame.keys.box(*tile.batch_and_head(frame), tile.number * TILE)
    for source in (frame.key, frame.value):
        source.map.load(box, source.buffer[0], frame.keys_full)
    with kb.for_loop(0, kb.arg("group"), 1, [kb.constant(0, i32)]) as members:
        visits = visits_of(frame, tile, members.index)
        members.yield_(_visit(frame, visits, *members.carried))
    first_head = tile.head * kb.arg("group")
    stages, zero = frame.config.stages, kb.constant(0, i32)
    let_end(frame, members.results[0], stages, lambda place: _copy(frame, first_head, zero, place))


def _visit(frame: Frame, visits: Visits, number: Value) -> Value:
    """Copies the queries of a head's visits, from a step on; the number of the next one then."""
    kb = frame.kb
    with kb.for_loop(0, visits.n_partial + visits.n_runs, 1, [number]) as each:
        first, end = visits.span(frame, each.index, visits.pair(frame, each.index))
        with kb.for_loop(first, end, frame.config.queries, each.carried) as steps:
            (number,) = steps.carried
            _copy(frame, visits.head, steps.index, _await_room(frame, number))
            steps.yield_(number + 1)
        each.yield_(*steps.results)
    return each.results[0]


def _await_room(frame: Frame, number: Value) -> Value:
    """Waits until the place of a step is empty, which this gives."""
    place, phase = frame.place(number)
    frame.empty[place].wait(phase ^ 1)
    return place


def _copy(frame: Frame, head: Value, first: Value, place: Value) -> None:
    """Queries from `first` on of a head, counted over batches, and what belongs to them."""
    kb, heads = frame.kb, frame.kb.arg("heads")
    box = frame.queries.box(kb.trunc_div(head, heads), kb.trunc_rem(head, heads), first)
    full, rows, numbers = frame.full[place], (frame.query, frame.grad), (frame.shift, frame.delta)
    full.expect(sum(source.map.bytes for source in (*rows, *numbers)))
    for source in rows:
        source.map.load(box, source.buffer[place], full)
    for source in numbers:
        source.map.load([head, first], source.buffer[place], full)
