"""A consumer of the backward kernel: one warpgroup that sums the gradients of 64 keys and values."""

from __future__ import annotations

import math

from xdsl.dialects.builtin import i32

from compilemask.dialects.triton.ttg_types import MemDescType
from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_backward_cleaning import clean_keys
from compilemask.lowering.tiling_to_ttg.attention_backward_exchange import begin, leave_nothing, meet, multiply_last
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import Frame, Source
from compilemask.lowering.tiling_to_ttg.attention_backward_step import State, Step, advance, advance_masked
from compilemask.lowering.tiling_to_ttg.attention_backward_sums import add_to_queries
from compilemask.lowering.tiling_to_ttg.attention_backward_visits import (
    KeyTile,
    Patterns,
    Visits,
    own_tile,
    visits_of,
)
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS, TILE
from compilemask.lowering.tiling_to_ttg.builder import tma_layout
from compilemask.lowering.tiling_to_ttg.builder_memory import Buffer


def run_consumer(frame: Frame, part: int) -> None:
    """Visits all queries of all heads that read the key head, and stores the gradients."""
    kb, tile = frame.kb, own_tile(frame, 4)
    frame.keys_full.wait(0)
    clean_keys(frame, part, tile)
    if frame.config.sums_queries:
        leave_nothing(frame, part)
    kb.fence_async_shared()
    if frame.config.sums_queries:
        begin(frame, part)
    before = State.first(frame, part)
    with kb.for_loop(0, kb.arg("group"), 1, [*before.values, kb.constant(0, i32)]) as members:
        *state, missing = members.carried
        visits = visits_of(frame, tile, members.index)
        state = _masked_visits(frame, part, tile, visits, State(*state))
        state = _full_visits(frame, part, tile, visits, state)
        members.yield_(*state.values, missing | visits.missing)
    *state, missing = members.results
    after = State(*state)
    if after.block is not None:
        add_to_queries(frame, kb.warp_group_dot_wait(multiply_last(frame, part, after.number)), after.block)
    _store(frame, part, tile, after, missing)


def _masked_visits(frame: Frame, part: int, tile: KeyTile, visits: Visits, state: State) -> State:
    """Visits partial tiles, and the full ones too if keys are missing. What a visit needs is fetched two ahead."""
    kb, patterns = frame.kb, Patterns(frame, part, tile, visits)
    count = visits.n_partial + kb.where(tile.is_cut_off(frame), visits.n_runs, 0)
    first, width = visits.pair(frame, 0), len(state.values)
    carried = [*state.values, *patterns.fetched(0, first[1]), first[0], *visits.pair(frame, 1)]
    with kb.for_loop(0, count, 1, carried) as each:
        words, seeing, own, *following = each.carried[width:]
        ahead = patterns.fetched(each.index + 1, following[1])
        after = visits.pair(frame, each.index + 2)
        begin, end = visits.span(frame, each.index, (own, visits.end_of_run(frame, each.index)))
        with kb.for_loop(begin, end, frame.config.queries, each.carried[:width]) as steps:
            step = Step(visits, steps.index, words, seeing)
            steps.yield_(*advance_masked(frame, part, State(*steps.carried), step).values)
        each.yield_(*steps.results, *ahead, following[0], *after)
    return State(*each.results[:width])


def _full_visits(frame: Frame, part: int, tile: KeyTile, visits: Visits, state: State) -> State:
    """Visits the full tiles of queries, run by run, unless keys are missing."""
    kb = frame.kb
    stop = visits.n_partial + kb.where(tile.is_cut_off(frame), 0, visits.n_runs)
    with kb.for_loop(visits.n_partial, stop, 1, state.values) as each:
        begin, end = visits.span(frame, each.index, visits.pair(frame, each.index))
        with kb.for_loop(begin, end, frame.config.queries, each.carried) as steps:
            step = Step(visits, steps.index)
            steps.yield_(*advance(frame, part, State(*steps.carried), step).values)
        each.yield_(*steps.results)
    return State(*each.results)


def _store(frame: Frame, part: int, tile: KeyTile, state: State, missing: Value) -> None:
    """Stores the gradients of keys that exist, through buffers that nobody reads now; NaN if visits were missing."""
    kb = frame.kb
    meet(frame)
    outputs = (
        (frame.grad, frame.value_map, state.grad_value),
        (frame.query, frame.key_map, state.grad_key * kb.arg("scale")),
    )
    for source, _, gradient in outputs:
        gradient = kb.where(missing == 0, gradient, math.nan)
        _output(frame, source, part).reshape(ROWS, frame.head_dim).store(kb.cast(gradient, frame.element_type))
    kb.fence_async_shared()
    at = frame.keys.box(*tile.batch_and_head(frame), tile.number * TILE + part * ROWS)
    for source, target, _ in outputs:
        target.store(at, _output(frame, source, part))
    kb.store_wait()


def _output(frame: Frame, source: Source, part: int) -> Buffer:
    """The part-th 64 rows of a ring's buffers."""
    box = (1, 1, ROWS, frame.head_dim)
    count = frame.config.stages * frame.config.queries // ROWS
    type_ = MemDescType.of((count, *box), frame.element_type, tma_layout(box, frame.element_type))
    return source.buffer.reinterpret(type_)[part]
