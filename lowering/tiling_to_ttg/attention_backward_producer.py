"""The producer of the backward kernel: one warp that copies a tile of keys and values, and then, as far ahead as there
are empty buffers, the queries that see it, with the gradients of their outputs.
"""

from __future__ import annotations

from xdsl.dialects.builtin import i32

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_backward_config import Ahead
from compilemask.lowering.tiling_to_ttg.attention_backward_end import let_end, let_read_again
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_backward_visits import own_tile, visits_of
from compilemask.lowering.tiling_to_ttg.attention_config import TILE


def run_producer(frame: Frame) -> None:
    """Copies what the program needs."""
    kb, tile = frame.kb, own_tile(frame, 1)
    frame.keys_full.expect(frame.key.map.bytes + frame.value.map.bytes)
    box = frame.keys.box(*tile.batch_and_head(frame), tile.number * TILE)
    for source in (frame.key, frame.value):
        source.map.load(box, source.buffer, frame.keys_full)
    with kb.for_loop(0, kb.arg("group"), 1, [kb.constant(0, i32)]) as members:
        visits = visits_of(frame, tile, members.index)
        with kb.for_loop(0, visits.n_partial + visits.n_runs, 1, members.carried) as each:
            first, end = visits.span(frame, each.index, visits.pair(frame, each.index))
            with kb.for_loop(first, end, frame.config.queries, each.carried) as steps:
                _load(frame, visits.head, steps.index, steps.carried[0])
                steps.yield_(steps.carried[0] + 1)
            each.yield_(*steps.results)
        members.yield_(*each.results)
    if frame.config.scores_ahead is Ahead.FULL:
        let_read_again(frame, members.results[0])
    elif frame.config.scores_ahead is Ahead.ALL:
        first_head = tile.head * kb.arg("group")
        stages, zero = frame.config.stages, kb.constant(0, i32)
        let_end(frame, members.results[0], stages, lambda place: _copy(frame, first_head, zero, place))


def _load(frame: Frame, head: Value, first: Value, count: Value) -> None:
    """Queries from `first` on of a head, counted over batches, and what belongs to them, once there is a buffer."""
    place, phase = frame.place(count)
    frame.empty[place].wait(phase ^ 1)
    _copy(frame, head, first, place)


def _copy(frame: Frame, head: Value, first: Value, place: Value) -> None:
    kb, full = frame.kb, frame.full[place]
    box = frame.queries.box(kb.trunc_div(head, kb.arg("heads")), kb.trunc_rem(head, kb.arg("heads")), first)
    rows, numbers = (frame.query, frame.grad), (frame.shift, frame.delta)
    full.expect(sum(source.map.bytes for source in (*rows, *numbers)))
    for source in rows:
        source.map.load(box, source.buffer[place], full)
    for source in numbers:
        source.map.load([head, first], source.buffer[place], full)
