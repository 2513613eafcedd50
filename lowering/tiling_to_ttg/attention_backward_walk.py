"""A consumer of the backward kernel that looks up the visits of its tile itself, as the producer does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_backward_step import (
    State,
    Step,
    advance,
    advance_masked,
    await_queries,
)
from compilemask.lowering.tiling_to_ttg.attention_backward_sums import block_of
from compilemask.lowering.tiling_to_ttg.attention_backward_visits import KeyTile, Patterns, Visits
from compilemask.lowering.tiling_to_ttg.attention_bits import octets_of_step, words_of_step


def masked_visits(frame: Frame, part: int, tile: KeyTile, visits: Visits, state: State) -> State:
    """Visits partial tiles, and the full ones too if keys are missing. What a visit needs is fetched two ahead."""
    kb, patterns, size = frame.kb, Patterns(frame, part, tile, visits), frame.config.queries
    count = visits.n_partial + kb.where(tile.is_cut_off(frame), visits.n_runs, 0)
    first, width = visits.pair(frame, 0), len(state.values)
    carried = [*state.values, *patterns.fetched(0, first[1]), first[0], *visits.pair(frame, 1)]
    with kb.for_loop(0, count, 1, carried) as each:
        words, seeing, own, *following = each.carried[width:]
        ahead = patterns.fetched(each.index + 1, following[1])
        after = visits.pair(frame, each.index + 2)
        begin, end = visits.span(frame, each.index, (own, visits.end_of_run(frame, each.index)))
        with kb.for_loop(begin, end, size, each.carried[:width]) as steps:
            state, number = State(*steps.carried), steps.index // size
            await_queries(frame, state)
            step = Step(
                _block(frame, part, visits, steps.index),
                words_of_step(kb, words, number, size),
                octets_of_step(kb, seeing, number, size),
                visits.blind,
            )
            steps.yield_(*advance_masked(frame, part, state, step).values)
        each.yield_(*steps.results, *ahead, following[0], *after)
    return State(*each.results[:width])


def full_visits(frame: Frame, part: int, tile: KeyTile, visits: Visits) -> tuple[Value, Callable[[State], State]]:
    """How many runs of full tiles are to be visited, none if keys are missing, and what visits them."""
    runs = frame.kb.where(tile.is_cut_off(frame), 0, visits.n_runs)
    return runs, partial(_runs, frame, part, visits, runs)


def _runs(frame: Frame, part: int, visits: Visits, runs: Value, state: State) -> State:
    kb = frame.kb
    with kb.for_loop(visits.n_partial, visits.n_partial + runs, 1, state.values) as each:
        begin, end = visits.span(frame, each.index, visits.pair(frame, each.index))
        with kb.for_loop(begin, end, frame.config.queries, each.carried) as steps:
            state = State(*steps.carried)
            await_queries(frame, state)
            step = Step(_block(frame, part, visits, steps.index))
            steps.yield_(*advance(frame, part, state, step).values)
        each.yield_(*steps.results)
    return State(*each.results)


def _block(frame: Frame, part: int, visits: Visits, first: Value) -> Callable[[], Value]:
    return lambda: block_of(frame, visits.head, first) + part
