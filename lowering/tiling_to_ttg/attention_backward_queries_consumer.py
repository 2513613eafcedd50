"""A consumer of the kernel for gradients of queries: one warpgroup that sums those of 64 queries.

S = Q K^T and dP = dO V^T come out of the tensor cores as the slopes dS that dQ = dS K takes from registers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from xdsl.dialects.builtin import f32, i32

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_backward_queries_cleaning import clean_keys
from compilemask.lowering.tiling_to_ttg.attention_backward_queries_frame import (
    Frame,
    Patterns,
    QueryTile,
    numbers_of,
    own_tile,
)
from compilemask.lowering.tiling_to_ttg.attention_bits import bits_of_step, only_visible
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS
from compilemask.lowering.tiling_to_ttg.attention_softmax import LOG2_E
from compilemask.lowering.tiling_to_ttg.builder import dot_operand
from compilemask.lowering.tiling_to_ttg.builder_memory import Product


class State(NamedTuple):
    """Between two steps: the sum [64, D] f32 of a warpgroup's queries, and the number of the next step."""

    total: Value
    number: Value
    scores: Value | None = None
    """Products [64, keys] of the queries with the next step's keys, where they are computed ahead."""

    @property
    def values(self) -> list[Value]:
        """What loops carry."""
        return [x for x in self if x is not None]


class Rows(NamedTuple):
    """What belongs to a warpgroup's queries, [64, 1] f32."""

    tile: QueryTile
    part: int
    shift: Value
    delta: Value


class Masking(NamedTuple):
    """Of a step of a partial tile: its pattern, what was fetched of it, and the step's first key in the sequence."""

    pattern: Value
    words: Value
    """[64, 4]."""
    seen: Value
    """Bits of the octets of the tile's keys that some of the warpgroup's queries see."""
    first: Value


def run_consumer(frame: Frame, part: int) -> None:
    """Visits all keys that the queries see, and stores their gradients."""
    kb, tile = frame.kb, own_tile(frame, 4)
    rows = Rows(tile, part, *(numbers_of(frame, tile, part, name) for name in ("shift", "delta")))
    frame.rows_full.wait(0)
    zero = kb.constant(0, i32)
    scores = kb.warp_group_dot_wait(_start_scores(frame, part, zero)) if frame.config.scores_ahead else None
    state = State(kb.zeros((ROWS, frame.head_dim), f32, frame.layouts.sums), zero, scores)
    state = _full_visits(frame, rows, _masked_visits(frame, rows, state))
    gradient = kb.where(tile.missing, math.nan, state.total * kb.arg("scale"))
    frame.own_rows(frame.query, part).store(kb.cast(gradient, frame.element_type))
    kb.fence_async_shared()
    frame.output.store([*tile.batch_and_head(frame), tile.first_row(part), 0], frame.query.buffer[part])
    kb.store_wait()


def _masked_visits(frame: Frame, rows: Rows, state: State) -> State:
    """Visits the partial tiles. What a visit needs is fetched two ahead."""
    kb, tile, patterns = frame.kb, rows.tile, Patterns(frame, rows.part)
    first, width = tile.pair(frame, 0), len(state.values)
    carried = [*state.values, *patterns.fetched(_pattern(frame, tile, 0, first)), *first, *tile.pair(frame, 1)]
    with kb.for_loop(0, tile.n_partial, 1, carried) as each:
        words, seen, *own = each.carried[width : width + 4]
        following = each.carried[width + 4 :]
        ahead = patterns.fetched(_pattern(frame, tile, each.index + 1, (following[0], following[1])))
        after = tile.pair(frame, each.index + 2)
        begin, end = tile.span(frame, each.index, (own[0], own[1]))
        with kb.for_loop(begin, end, frame.config.keys, each.carried[:width]) as steps:
            masking = Masking(own[1], words, seen, steps.index)
            steps.yield_(*_advance_masked(frame, rows, State(*steps.carried), masking).values)
        each.yield_(*steps.results, *ahead, *following, *after)
    return State(*each.results[:width])


def _pattern(frame: Frame, tile: QueryTile, index: Value | int, pair: tuple[Value, Value]) -> Value:
    """The pattern of the index-th visit, 0 if it is none of a partial tile."""
    return frame.kb.where(tile.n_partial > index, pair[1], 0)


def _full_visits(frame: Frame, rows: Rows, state: State) -> State:
    """Visits the full tiles, run by run."""
    kb, tile = frame.kb, rows.tile
    with kb.for_loop(tile.n_partial, tile.n_partial + tile.n_runs, 1, state.values) as each:
        begin, end = tile.span(frame, each.index, tile.pair(frame, each.index))
        with kb.for_loop(begin, end, frame.config.keys, each.carried) as steps:
            steps.yield_(*_advance(frame, rows, State(*steps.carried)).values)
        each.yield_(*steps.results)
    return State(*each.results)


def _advance(frame: Frame, rows: Rows, state: State) -> State:
    """The sum with a step's keys in it, if all pairs are visible."""
    place, phase = frame.place(state.number)
    if state.scores is None:
        frame.full[place].wait(phase)
    return _computed(frame, rows, state)


def _advance_masked(frame: Frame, rows: Rows, state: State, masking: Masking) -> State:
    """The same if some queries may not see some of the keys; nothing is computed if none sees any."""
    kb, (place, phase) = frame.kb, frame.place(state.number)
    if state.scores is None:
        frame.full[place].wait(phase)
    with kb.if_else(rows.tile.unseen != 0) as some, some.then():
        key = frame.step_rows(frame.key, place)
        clean_keys(frame, rows.part, rows.tile, key, masking.pattern, masking.first)
    words, seen = bits_of_step(kb, masking.words, masking.seen, masking.first, frame.config.keys)
    with kb.if_else(seen != 0) as some:
        with some.then():
            some.yield_(*_computed(frame, rows, state, words).values)
        with some.otherwise():
            frame.empty[place].arrive()
            number = state.number + 1
            scores = None if state.scores is None else kb.warp_group_dot_wait(_start_scores(frame, rows.part, number))
            some.yield_(*State(state.total, number, scores).values)
    return State(*some.results)


def _start_scores(frame: Frame, part: int, number: Value) -> Product:
    """Starts the products of a warpgroup's queries with the keys of a step, when those have come."""
    place, phase = frame.place(number)
    frame.full[place].wait(phase)
    return _scores(frame, part, place)


def _scores(frame: Frame, part: int, place: Value) -> Product:
    key = frame.step_rows(frame.key, place)
    return frame.kb.warp_group_dot(frame.own_rows(frame.query, part), key.transpose(), layout=frame.layouts.scores)


def _computed(frame: Frame, rows: Rows, state: State, words: Value | None = None) -> State:
    """The sum with a step's keys in it, which have come; `words` [64, 4] say which pairs are visible, all if None."""
    kb, (place, _), layout, part = frame.kb, frame.place(state.number), frame.layouts.scores, rows.part
    key, value = (frame.step_rows(source, place) for source in (frame.key, frame.value))
    started = _scores(frame, part, place) if state.scores is None else None
    rises = kb.warp_group_dot(frame.own_rows(frame.grad, part), value.transpose(), layout=layout)
    scores = state.scores if started is None else kb.warp_group_dot_wait(started, pending=1)
    assert scores is not None
    weights = kb.exp2(scores * (kb.arg("scale") * LOG2_E) - rows.shift)
    slopes = weights * (kb.warp_group_dot_wait(rises) - rows.delta)
    if words is not None:
        slopes = only_visible(kb, slopes, words, layout, frame.config.keys, 0.0)
    slopes = (
        kb.round_in_place(slopes, frame.element_type)
        if frame.config.pin_rounding
        else kb.cast(slopes, frame.element_type)
    )
    product = kb.warp_group_dot(kb.convert_layout(slopes, dot_operand(frame.layouts.sums)), key, state.total)
    following = None if state.scores is None else _start_scores(frame, part, state.number + 1)
    total = kb.warp_group_dot_wait(product, pending=0 if following is None else 1)
    frame.empty[place].arrive()
    ahead = None if following is None else kb.warp_group_dot_wait(following)
    return State(total, state.number + 1, ahead)
