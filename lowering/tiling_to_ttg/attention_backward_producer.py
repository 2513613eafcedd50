"""The producer of the backward kernel: one warp that copies a tile of keys and values, and then, as far ahead as there
are empty buffers, the queries that see it, with the gradients of their outputs.
"""

from __future__ import annotations

from xdsl.dialects.builtin import i32

from compilemask.lowering.tiling_to_tt.builder import Value
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
    if frame.config.scores_ahead:
        # Behind the last step, consumers multiply what lies in the next buffer, and drop it.
        place, phase = frame.place(members.results[0])
        frame.empty[place].wait(phase ^ 1)
        frame.full[place].arrive()


def _load(frame: Frame, head: Value, first: Value, count: Value) -> None:
    """Queries from `first` on of a head, counted over batches, and what belongs to them."""
    kb = frame.kb
    box = frame.queries.box(kb.trunc_div(head, kb.arg("heads")), kb.trunc_rem(head, kb.arg("heads")), first)
    place, phase = frame.place(count)
    rows, numbers = (frame.query, frame.grad), (frame.shift, frame.delta)
    frame.empty[place].wait(phase ^ 1)
    frame.full[place].expect(sum(source.map.bytes for source in (*rows, *numbers)))
    for source in rows:
        source.map.load(box, source.buffer[place], frame.full[place])
    for source in numbers:
        source.map.load([head, first], source.buffer[place], frame.full[place])
