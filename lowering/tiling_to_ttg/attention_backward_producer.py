"""The producer of the backward kernel: one warp that copies a tile of keys and values, and then, as far ahead as there
are empty buffers, the queries that see it, with the gradients of their outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import i32

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_backward_config import Ahead
from compilemask.lowering.tiling_to_ttg.attention_backward_end import let_end, let_read_again
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_backward_notes import Note, leave_note
from compilemask.lowering.tiling_to_ttg.attention_backward_sums import block_of
from compilemask.lowering.tiling_to_ttg.attention_backward_visits import Visits, own_tile, visits_of
from compilemask.lowering.tiling_to_ttg.attention_bits import octets_of_step, octets_seen
from compilemask.lowering.tiling_to_ttg.attention_config import CONSUMERS, TILE


def run_producer(frame: Frame) -> None:
    """Copies what the program needs."""
    kb, tile = frame.kb, own_tile(frame, 1)
    frame.keys_full.expect(frame.key.map.bytes + frame.value.map.bytes)
    box = frame.keys.box(*tile.batch_and_head(frame), tile.number * TILE)
    for source in (frame.key, frame.value):
        source.map.load(box, source.buffer, frame.keys_full)
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
    """The same, with a note for each step. What a visit needs is fetched two ahead."""
    kb, first_pair = frame.kb, visits.pair(frame, 0)
    carried = [number, *first_pair, *visits.pair(frame, 1), *_seeing(frame, visits, 0, first_pair)]
    with kb.for_loop(0, visits.n_partial + visits.n_runs, 1, carried) as each:
        number, first, second, *following = each.carried[:5]
        seeing, ahead = each.carried[5:], _seeing(frame, visits, each.index + 1, following)
        after = visits.pair(frame, each.index + 2)
        pattern = kb.where(each.index < visits.n_partial, second, -1)
        begin, end = visits.span(frame, each.index, (first, second))
        with kb.for_loop(begin, end, frame.config.queries, [number]) as steps:
            (number,) = steps.carried
            place = _await_room(frame, number)
            _leave_note(frame, visits, steps.index, place, pattern, seeing)
            _copy(frame, visits.head, steps.index, place)
            steps.yield_(number + 1)
        each.yield_(*steps.results, *following, *after, *ahead)
    return each.results[0]


def _seeing(frame: Frame, visits: Visits, index: Value | int, pair: Sequence[Value]) -> list[Value]:
    """For each warpgroup, bits of the octets of a visit's queries that see some of its keys: all but of a pattern."""
    is_partial = visits.n_partial > index
    return [octets_seen(frame.kb, part, pair[1], is_partial, -1) for part in range(CONSUMERS)]


def _leave_note(
    frame: Frame, visits: Visits, first: Value, place: Value, pattern: Value, seeing: Sequence[Value]
) -> None:
    kb, size = frame.kb, frame.config.queries
    own = tuple(octets_of_step(kb, octets, first // size, size) for octets in seeing)
    leave_note(frame, place, Note(block_of(frame, visits.head, first), pattern, visits.blind, own))


def _await_room(frame: Frame, number: Value) -> Value:
    """Waits until the place of a step is empty, which this gives."""
    place, phase = frame.place(number)
    frame.empty[place].wait(phase ^ 1)
    return place


def _copy(frame: Frame, head: Value, first: Value, place: Value) -> None:
    """Queries from `first` on of a head, counted over batches, and what belongs to them."""
    kb, full = frame.kb, frame.full[place]
    box = frame.queries.box(kb.trunc_div(head, kb.arg("heads")), kb.trunc_rem(head, kb.arg("heads")), first)
    rows, numbers = (frame.query, frame.grad), (frame.shift, frame.delta)
    full.expect(sum(source.map.bytes for source in (*rows, *numbers)))
    for source in rows:
        source.map.load(box, source.buffer[place], full)
    for source in numbers:
        source.map.load([head, first], source.buffer[place], full)
