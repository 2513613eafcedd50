"""The producer of the backward kernel: one warp that copies a tile of keys and values, and then, as far ahead as there
are empty buffers, the queries that see it, with the gradients of their outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import i32

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_backward_config import Ahead
from compilemask.lowering.tiling_to_ttg.attention_backward_end import let_end, let_read_again
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import Frame, rows_layout
from compilemask.lowering.tiling_to_ttg.attention_backward_notes import Note, leave_note
from compilemask.lowering.tiling_to_ttg.attention_backward_sums import block_of
from compilemask.lowering.tiling_to_ttg.attention_backward_visits import Visits, own_tile, visits_of
from compilemask.lowering.tiling_to_ttg.attention_bits import octets_of_step, octets_seen
from compilemask.lowering.tiling_to_ttg.attention_config import CONSUMERS, TILE
from compilemask.lowering.tiling_to_ttg.attention_maps import Box


def run_producer(frame: Frame) -> None:
    """Copies what the program needs."""
    kb, tile = frame.kb, own_tile(frame, 1)
    frame.keys_full.expect(frame.key.map.bytes + frame.value.map.bytes)
    box = frame.keys.box(*tile.batch_and_head(frame), tile.number * TILE)
    for source in (frame.key, frame.value):
        source.map.load(box, source.buffer, frame.keys_full)
    if frame.config.scores_ahead is Ahead.FULL:
        _clear_places_behind_a_tile(frame)
    with kb.for_loop(0, kb.arg("group"), 1, [kb.constant(0, i32)]) as members:
        visits = visits_of(frame, tile, members.index)
        visit = _visit_with_notes if frame.config.notes else _visit
        members.yield_(visit(frame, visits, *members.carried))
    if frame.config.scores_ahead is Ahead.FULL:
        let_read_again(frame, members.results[0])
    elif frame.config.scores_ahead is Ahead.ALL:
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


def _visit_with_notes(frame: Frame, visits: Visits, number: Value) -> Value:
    """The same, with a note for each step. A visit's words are read while the last step before it waits for room."""
    kb = frame.kb
    with kb.for_loop(0, visits.n_partial + visits.n_runs, 1, [number, *visits.pair(frame, 0)]) as each:
        number, first, second = each.carried
        following, is_partial = visits.pair(frame, each.index + 1), each.index < visits.n_partial
        seeing = [octets_seen(kb, part, second, is_partial, -1) for part in range(CONSUMERS)]
        pattern = kb.where(is_partial, second, -1)
        with kb.for_loop(*visits.tiles(frame, each.index, (first, second)), 1, [number]) as tiles:
            (number,) = tiles.carried
            tiles.yield_(_copy_tile(frame, visits, tiles.index, number, pattern, seeing))
        each.yield_(*tiles.results, *following)
    return each.results[0]


def _copy_tile(
    frame: Frame, visits: Visits, tile: Value, number: Value, pattern: Value, seeing: Sequence[Value]
) -> Value:
    """Copies a tile of queries, step by step, with a note for each; the number of the next step then."""
    kb, size = frame.kb, frame.config.queries
    for step, box in enumerate(frame.queries.boxes_of_tile(*_batch_and_head(frame, visits.head), tile, size)):
        first = tile * TILE + step * size
        place = _await_room(frame, number + step)
        own = tuple(octets_of_step(kb, octets, step, size) for octets in seeing)
        leave_note(frame, place, Note(block_of(frame, visits.head, first), pattern, visits.blind, own))
        _copy_box(frame, box, visits.head, first, place)
    return number + TILE // size


def _await_room(frame: Frame, number: Value) -> Value:
    """Waits until the place of a step is empty, which this gives."""
    place, phase = frame.place(number)
    frame.empty[place].wait(phase ^ 1)
    return place


def _copy(frame: Frame, head: Value, first: Value, place: Value) -> None:
    """Queries from `first` on of a head, counted over batches, and what belongs to them."""
    _copy_box(frame, frame.queries.box(*_batch_and_head(frame, head), first), head, first, place)


def _copy_box(frame: Frame, box: Box, head: Value, first: Value, place: Value) -> None:
    full, rows, numbers = frame.full[place], (frame.query, frame.grad), (frame.shift, frame.delta)
    full.expect(sum(source.map.bytes for source in (*rows, *numbers)))
    for source in rows:
        source.map.load(box, source.buffer[place], full)
    for source in numbers:
        source.map.load([head, first], source.buffer[place], full)


def _clear_places_behind_a_tile(frame: Frame) -> None:
    """Zeroes the places that steps of a single full tile leave unused: one of them is read again, behind the last."""
    kb, first = frame.kb, TILE // frame.config.queries
    for place in range(first, frame.config.stages):
        queries = frame.rows(frame.query, place)
        queries.store(kb.zeros(queries.shape, frame.element_type, rows_layout(frame.head_dim, 1)))
    if first < frame.config.stages:
        kb.fence_async_shared()


def _batch_and_head(frame: Frame, head: Value) -> tuple[Value, Value]:
    kb = frame.kb
    return kb.trunc_div(head, kb.arg("heads")), kb.trunc_rem(head, kb.arg("heads"))
