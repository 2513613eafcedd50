"""The producer of the backward kernel: one warp that copies a tile of keys and values, and then, as far ahead as there
are empty buffers, the queries that see it, with the gradients of their outputs.
"""

from __future__ import annotations

from xdsl.dialects.builtin import i32

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import Frame, Ring
from compilemask.lowering.tiling_to_ttg.attention_backward_visits import own_tile, visits_of
from compilemask.lowering.tiling_to_ttg.attention_config import TILE


def run_producer(frame: Frame) -> None:
    """Copies what the program needs."""
    kb, tile = frame.kb, own_tile(frame)
    for fixed in (frame.key, frame.value):
        fixed.full.expect(fixed.map.bytes)
        fixed.map.load([tile.batch, tile.key_head, tile.index * TILE, 0], fixed.buffer, fixed.full)
    with kb.for_loop(0, kb.arg("group"), 1, [kb.constant(0, i32)]) as members:
        visits = visits_of(frame, tile, members.index)
        with kb.for_loop(0, visits.n_partial + visits.n_runs, 1, members.carried) as each:
            first, end = visits.span(frame, each.index, visits.pair(frame, each.index))
            with kb.for_loop(first, end, frame.config.queries, each.carried) as steps:
                for ring in (frame.query, frame.grad):
                    _load(frame, ring, tile.batch, visits.head, steps.index, steps.carried[0])
                steps.yield_(steps.carried[0] + 1)
            each.yield_(*steps.results)
        members.yield_(*each.results)


def _load(frame: Frame, ring: Ring, batch: Value, head: Value, first: Value, count: Value) -> None:
    """Rows from `first` on, and their numbers."""
    place, phase = frame.place(count)
    ring.empty[place].wait(phase ^ 1)
    ring.full[place].expect(ring.rows_map.bytes + ring.numbers_map.bytes)
    ring.rows_map.load([batch, head, first, 0], ring.rows[place], ring.full[place])
    ring.numbers_map.load([batch * frame.kb.arg("heads") + head, first], ring.numbers[place], ring.full[place])
