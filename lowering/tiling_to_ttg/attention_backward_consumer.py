"""A consumer of the backward kernel: one warpgroup that sums the gradients of 64 keys and values."""

from __future__ import annotations

import math
from collections.abc import Callable

from xdsl.dialects.builtin import i32

from compilemask.dialects.triton.ttg_types import MemDescType
from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_backward_cleaning import clean_keys
from compilemask.lowering.tiling_to_ttg.attention_backward_config import Ahead
from compilemask.lowering.tiling_to_ttg.attention_backward_exchange import (
    begin,
    clear_before_first,
    meet,
    multiply_last,
)
from compilemask.lowering.tiling_to_ttg.attention_backward_follow import full_steps, masked_steps
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import Frame, Source
from compilemask.lowering.tiling_to_ttg.attention_backward_step import State
from compilemask.lowering.tiling_to_ttg.attention_backward_sums import add_to_queries
from compilemask.lowering.tiling_to_ttg.attention_backward_visits import KeyTile, own_tile, visits_of
from compilemask.lowering.tiling_to_ttg.attention_backward_walk import full_visits, masked_visits
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS, TILE
from compilemask.lowering.tiling_to_ttg.builder import tma_layout
from compilemask.lowering.tiling_to_ttg.builder_memory import Buffer


def run_consumer(frame: Frame, part: int) -> None:
    """Visits all queries of all heads that read the key head, and stores the gradients."""
    kb, tile = frame.kb, own_tile(frame, 4)
    if frame.config.lags:
        clear_before_first(frame, part)
    frame.keys_full.wait(0)
    clean_keys(frame, part, tile)
    before = State.first(frame, part)
    masked, full = (masked_steps, full_steps) if frame.config.notes else (masked_visits, full_visits)
    with kb.for_loop(0, kb.arg("group"), 1, [*before.values, kb.constant(0, i32)]) as members:
        *state, missing = members.carried
        visits = visits_of(frame, tile, members.index)
        state = masked(frame, part, tile, visits, State(*state))
        state = _ahead(frame, part, *full(frame, part, tile, visits), state)
        members.yield_(*state.values, missing | visits.missing)
    *state, missing = members.results
    _store(frame, part, tile, State(*state), missing)


def _ahead(frame: Frame, part: int, count: Value, visit: Callable[[State], State], state: State) -> State:
    """The sums behind full visits, if there are any, of which each step knows its scores if the variant says so."""
    kb = frame.kb
    if frame.config.scores_ahead is not Ahead.FULL:
        return visit(state)
    with kb.if_else(count > 0) as some:
        with some.then():
            if frame.config.lags:
                begin(frame, part, state.number)
            after = visit(state.looking_ahead(frame, part))
            if after.block is not None:
                add_to_queries(frame, kb.warp_group_dot_wait(multiply_last(frame, part, after.number)), after.block)
            some.yield_(*after._replace(scores=None, block=None).values)
        with some.otherwise():
            some.yield_(*state.values)
    return State(*some.results)


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
