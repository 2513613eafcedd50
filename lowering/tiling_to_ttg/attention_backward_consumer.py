"""A consumer of the backward kernel: one warpgroup that sums the gradients of 64 keys and values."""

from __future__ import annotations

import math

from xdsl.dialects.builtin import f32, i32

from compilemask.dialects.triton.ttg_types import MemDescType
from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_backward_cleaning import BOTH, clean_keys
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import Frame, Source
from compilemask.lowering.tiling_to_ttg.attention_backward_step import (
    SLOPES_BARRIER,
    State,
    Step,
    advance,
    advance_ahead,
    advance_masked,
    start_scores,
)
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

_SUMS = len(State._fields)


def run_consumer(frame: Frame, part: int) -> None:
    """Visits all queries of all heads that read the key head, and stores the gradients."""
    kb, tile = frame.kb, own_tile(frame, 4)
    frame.keys_full.wait(0)
    clean_keys(frame, part, tile)
    zeros, zero = kb.zeros((ROWS, frame.head_dim), f32, frame.layouts.sums), kb.constant(0, i32)
    with kb.for_loop(0, kb.arg("group"), 1, [*State(zeros, zeros, zero), zero]) as members:
        *state, missing = members.carried
        visits = visits_of(frame, tile, members.index)
        state = _masked_visits(frame, part, tile, visits, State(*state))
        full_visits = _full_visits_ahead if frame.config.scores_ahead else _full_visits
        state = full_visits(frame, part, tile, visits, state)
        members.yield_(*state, missing | visits.missing)
    *state, missing = members.results
    _store(frame, part, tile, State(*state), missing)


def _masked_visits(frame: Frame, part: int, tile: KeyTile, visits: Visits, state: State) -> State:
    """Visits partial tiles, and the full ones too if keys are missing. What a visit needs is fetched two ahead."""
    kb, patterns = frame.kb, Patterns(frame, part, tile, visits)
    count = visits.n_partial + kb.where(tile.is_cut_off(frame), visits.n_runs, 0)
    first = visits.pair(frame, 0)
    carried = [*state, *patterns.fetched(0, first[1]), *first, *visits.pair(frame, 1)]
    with kb.for_loop(0, count, 1, carried) as each:
        words, seeing, *own = each.carried[_SUMS : _SUMS + 4]
        following = each.carried[_SUMS + 4 :]
        ahead = patterns.fetched(each.index + 1, following[1])
        after = visits.pair(frame, each.index + 2)
        begin, end = visits.span(frame, each.index, (own[0], own[1]))
        with kb.for_loop(begin, end, frame.config.queries, each.carried[:_SUMS]) as steps:
            step = Step(tile, visits, steps.index, words, seeing)
            steps.yield_(*advance_masked(frame, part, State(*steps.carried), step))
        each.yield_(*steps.results, *ahead, *following, *after)
    return State(*each.results[:_SUMS])


def _full_visits(frame: Frame, part: int, tile: KeyTile, visits: Visits, state: State) -> State:
    """Visits the full tiles of queries, run by run, unless keys are missing."""
    kb = frame.kb
    with kb.for_loop(visits.n_partial, _end_of_runs(frame, tile, visits), 1, state) as each:
        begin, end = visits.span(frame, each.index, visits.pair(frame, each.index))
        with kb.for_loop(begin, end, frame.config.queries, each.carried) as steps:
            step = Step(tile, visits, steps.index)
            steps.yield_(*advance(frame, part, State(*steps.carried), step))
        each.yield_(*steps.results)
    return State(*each.results)


def _full_visits_ahead(frame: Frame, part: int, tile: KeyTile, visits: Visits, state: State) -> State:
    """The same with the scores of each step computed in the one before; those behind the last step are dropped."""
    kb, stop = frame.kb, _end_of_runs(frame, tile, visits)
    with kb.if_else(stop > visits.n_partial) as some:
        with some.then():
            scores = kb.warp_group_dot_wait(start_scores(frame, part, state.number))
            with kb.for_loop(visits.n_partial, stop, 1, [*state, scores]) as each:
                begin, end = visits.span(frame, each.index, visits.pair(frame, each.index))
                with kb.for_loop(begin, end, frame.config.queries, each.carried) as steps:
                    *before, scores = steps.carried
                    step = Step(tile, visits, steps.index)
                    after, following = advance_ahead(frame, part, State(*before), scores, step)
                    steps.yield_(*after, following)
                each.yield_(*steps.results)
            some.yield_(*each.results[:_SUMS])
        with some.otherwise():
            some.yield_(*state)
    return State(*some.results)


def _end_of_runs(frame: Frame, tile: KeyTile, visits: Visits) -> Value:
    """Behind the last visit that needs no mask."""
    return visits.n_partial + frame.kb.where(tile.is_cut_off(frame), 0, visits.n_runs)


def _store(frame: Frame, part: int, tile: KeyTile, state: State, missing: Value) -> None:
    """Stores the gradients of keys that exist, through buffers that nobody reads now; NaN if visits were missing."""
    kb = frame.kb
    kb.bar_sync(SLOPES_BARRIER, BOTH)
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
