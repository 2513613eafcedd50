"""A step of the backward kernel: a warpgroup's 64 keys against the queries of one buffer.

Scores are computed transposed, keys down and queries across, S^T = K Q^T and dP^T = V dO^T, so that weights P^T and
slopes dS^T come out of the tensor cores as the left operands that dV = P^T dO and dK = dS^T Q take from registers. Only
dQ = dS K sums over the keys of both warpgroups, which exchange their slopes through shared memory (Dao, "FlashAttention
-2", arXiv 2307.08691; Shah et al., "FlashAttention-3", arXiv 2407.08608).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from xdsl.dialects.builtin import f32

from compilemask.dialects.triton.layouts import SwizzledSharedLayout
from compilemask.dialects.triton.ttg_types import MemDescType
from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_tt.sum_blocks import LINE, SIDE, WORDS
from compilemask.lowering.tiling_to_ttg.attention_backward_cleaning import BOTH, clean_queries
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import Exchange, Frame, Numbers
from compilemask.lowering.tiling_to_ttg.attention_backward_visits import KeyTile, Visits
from compilemask.lowering.tiling_to_ttg.attention_bits import visible
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS, TILE
from compilemask.lowering.tiling_to_ttg.attention_softmax import LOG2_E
from compilemask.lowering.tiling_to_ttg.builder import GpuKernelBuilder, dot_operand
from compilemask.lowering.tiling_to_ttg.builder_memory import Buffer, Product

SLOPES_BARRIER = 8
BY_THREAD = (8, 128, 4)
BITS_PER_HALF = 16
"""Of a word: those of 64 queries."""


class State(NamedTuple):
    """Between two steps: sums [64, D] f32 of a warpgroup's keys, and the number of the next step."""

    grad_key: Value
    grad_value: Value
    number: Value


class Step(NamedTuple):
    """Where a step stands: the first of its queries, of a head's visits."""

    tile: KeyTile
    visits: Visits
    first: Value
    words: Value | None = None
    """[64, 4] of the query tile's pattern; None if all pairs are visible."""
    seeing: Value | None = None
    """Bits of the octets of the query tile that see some of the warpgroup's keys; of all if None."""

    def half(self, frame: Frame) -> Value:
        """Which half of the query tile it is, if steps are halves; else 0."""
        queries = frame.config.queries
        return self.first // queries % (TILE // queries)


def start_scores(frame: Frame, part: int, number: Value) -> Product:
    """Starts the products of a warpgroup's keys with the queries of a step, when those have come."""
    place, phase = frame.place(number)
    frame.full[place].wait(phase)
    return _multiply_queries(frame, part, place)


def _multiply_queries(frame: Frame, part: int, place: Value) -> Product:
    query = frame.rows(frame.query, place).transpose()
    return frame.kb.warp_group_dot(frame.own_rows(frame.key, part), query, layout=frame.layouts.scores)


def advance(frame: Frame, part: int, state: State, step: Step) -> State:
    """The sums with a step's queries in them, if all pairs are visible."""
    place, phase = frame.place(state.number)
    frame.full[place].wait(phase)
    return _computed(frame, part, state, step)


def advance_masked(frame: Frame, part: int, state: State, step: Step) -> State:
    """The same if some queries may not see some of the keys."""
    kb, (place, phase) = frame.kb, frame.place(state.number)
    frame.full[place].wait(phase)
    with kb.if_else(step.visits.blind != 0) as some, some.then():
        clean_queries(frame, part, place)
    assert step.seeing is not None
    seeing = step.seeing
    if frame.config.queries < TILE:
        seeing = kb.shift_right_unsigned(seeing, step.half(frame) * BITS_PER_HALF) & ((1 << BITS_PER_HALF) - 1)
    with kb.if_else(seeing != 0) as some:
        with some.then():
            some.yield_(*_computed(frame, part, state, step))
        with some.otherwise():
            some.yield_(*_pass_by(frame, part, state, step))
    return State(*some.results)


def _pass_by(frame: Frame, part: int, state: State, step: Step) -> State:
    """A step of which no query sees any of the warpgroup's keys: all that it does is its part for the other one."""
    kb, (place, _) = frame.kb, frame.place(state.number)
    if frame.exchange is not None:
        nothing = kb.zeros((ROWS, frame.config.queries), frame.element_type, frame.layouts.scores)
        exchanged = _exchange(frame, part, frame.exchange, state.number, nothing)
        kb.bar_sync(SLOPES_BARRIER, BOTH)
        product = kb.warp_group_dot_wait(_multiply_keys(frame, part, exchanged))
        frame.empty[place].arrive()
        _add_to_queries(frame, part, product, step)
    else:
        frame.empty[place].arrive()
    return State(state.grad_key, state.grad_value, state.number + 1)


def _computed(frame: Frame, part: int, state: State, step: Step) -> State:
    """The sums with a step's queries in them, which have come."""
    kb, (place, phase) = frame.kb, frame.place(state.number)
    query, grad = frame.rows(frame.query, place), frame.rows(frame.grad, place)
    scores = _multiply_queries(frame, part, place)
    rises = kb.warp_group_dot(frame.own_rows(frame.value, part), grad.transpose(), layout=frame.layouts.scores)
    weights = _weights(frame, kb.warp_group_dot_wait(scores, pending=1), place, step)
    weight_operand = _operand(frame, _rounded(frame, weights))
    if frame.config.hold_weights:
        frame.full[place].wait(phase)
    delta = _numbers(frame, frame.delta, place)
    slopes = _rounded(frame, weights * (kb.warp_group_dot_wait(rises) - delta))
    if frame.exchange is None:
        grad_value = kb.warp_group_dot(weight_operand, grad, state.grad_value)
        return _finish(frame, state, place, grad_value, _operand(frame, slopes), query)
    exchanged = _exchange(frame, part, frame.exchange, state.number, slopes)
    grad_value = kb.warp_group_dot(weight_operand, grad, state.grad_value)
    slope_operand = _operand(frame, slopes)
    kb.bar_sync(SLOPES_BARRIER, BOTH)
    grad_query = _multiply_keys(frame, part, exchanged)
    return _finish(frame, state, place, grad_value, slope_operand, query, (part, grad_query, step))


def advance_ahead(frame: Frame, part: int, state: State, scores: Value, step: Step) -> tuple[State, Value]:
    """The same for a step whose pairs are all visible and whose products of keys with queries, `scores`, were computed
    ahead; and those of the next step. Between the rises and the next scores products wait once for other work, when
    warpgroups exchange their slopes. The weights' registers are those of the next scores: a masked step has too few.
    """
    kb, exchange, (place, phase) = frame.kb, frame.exchange, frame.place(state.number)
    assert exchange is not None
    query, grad = frame.rows(frame.query, place), frame.rows(frame.grad, place)
    rises = kb.warp_group_dot(frame.own_rows(frame.value, part), grad.transpose(), layout=frame.layouts.scores)
    weights = _weights(frame, scores, place, step)
    weight_operand = _operand(frame, _rounded(frame, weights))
    grad_value = kb.warp_group_dot(weight_operand, grad, state.grad_value)
    if frame.config.hold_weights:
        frame.full[place].wait(phase)
    delta = _numbers(frame, frame.delta, place)
    slopes = _rounded(frame, weights * (kb.warp_group_dot_wait(rises, pending=1) - delta))
    exchanged = _exchange(frame, part, exchange, state.number, slopes)
    slope_operand = _operand(frame, slopes)
    kb.bar_sync(SLOPES_BARRIER, BOTH)
    grad_query = _multiply_keys(frame, part, exchanged)
    grad_key = kb.warp_group_dot(slope_operand, query, state.grad_key)
    value_sum = kb.warp_group_dot_wait(grad_value, pending=2)
    following = start_scores(frame, part, state.number + 1)
    _add_to_queries(frame, part, kb.warp_group_dot_wait(grad_query, pending=2), step)
    key_sum = kb.warp_group_dot_wait(grad_key, pending=1)
    frame.empty[place].arrive()
    return State(key_sum, value_sum, state.number + 1), kb.warp_group_dot_wait(following)


def _exchange(frame: Frame, part: int, exchange: Exchange, number: Value, slopes: Value) -> Buffer:
    """Stores a warpgroup's slopes where the other one reads them, once both have come to the barrier."""
    exchanged = exchange.slopes[number % 2]
    exchanged.part((part * ROWS, 0), (ROWS, frame.config.queries)).store(slopes)
    frame.kb.fence_async_shared()
    return exchanged


def _weights(frame: Frame, scores: Value, place: Value, step: Step) -> Value:
    """Of the pairs of a step, 0 where they are not visible; the scale may be of any sign."""
    kb, queries = frame.kb, frame.config.queries
    exponents = scores * (kb.arg("scale") * LOG2_E) - _numbers(frame, frame.shift, place)
    if step.words is not None:
        words = step.words
        if queries < TILE:
            words = kb.shift_right_unsigned(words, step.half(frame) * BITS_PER_HALF)
        exponents = kb.where(visible(kb, words, frame.layouts.scores, queries), exponents, -math.inf)
    return kb.exp2(exponents)


def _finish(
    frame: Frame,
    state: State,
    place: Value,
    grad_value: Product,
    slopes: Value,
    query: Buffer,
    sums: tuple[int, Product, Step] | None = None,
) -> State:
    """Waits for the products of a step, frees its buffer, and adds its part of the gradient of queries."""
    kb = frame.kb
    value_sum = kb.warp_group_dot_wait(grad_value, pending=0 if sums is None else 1)
    grad_key = kb.warp_group_dot(slopes, query, state.grad_key)
    if sums is not None:
        part, product, step = sums
        _add_to_queries(frame, part, kb.warp_group_dot_wait(product, pending=1), step)
    key_sum = kb.warp_group_dot_wait(grad_key)
    frame.empty[place].arrive()
    return State(key_sum, value_sum, state.number + 1)


def _multiply_keys(frame: Frame, part: int, slopes: Buffer) -> Product:
    """Starts a warpgroup's part of slopes times keys: half of the columns, or half of the queries if D is 64."""
    keys = frame.key.buffer.reshape(TILE, frame.head_dim)
    if frame.config.queries == ROWS:
        return frame.kb.warp_group_dot(slopes.transpose(), keys.part((0, part * SIDE), (TILE, SIDE)))
    return frame.kb.warp_group_dot(slopes.part((0, part * ROWS), (TILE, ROWS)).transpose(), keys)


def _add_to_queries(frame: Frame, part: int, product: Value, step: Step) -> None:
    """Adds a warpgroup's part [64, 64] to the sum in memory, atomically."""
    kb, exchange = frame.kb, frame.exchange
    assert exchange is not None
    buffer = exchange.part[part]
    kb.store_wait()
    in_order = MemDescType.of(BY_THREAD, f32, SwizzledSharedLayout.of((2, 1, 0)))
    buffer.reinterpret(in_order).store(_by_thread(kb, product))
    kb.fence_async_shared()
    # A step is one block of rows and two of columns, or the other way round.
    row_blocks = kb.ceil_div(kb.arg("queries"), TILE) * (TILE // SIDE)
    block = (step.visits.head * row_blocks + step.first // SIDE) * (frame.head_dim // SIDE) + part
    exchange.sum_map.reduce("add", [block * (WORDS // LINE), 0], buffer)


def _by_thread(kb: GpuKernelBuilder, product: Value) -> Value:
    """An accumulator [64, 64] as numbers [8, 128, 4]: of each thread of the warpgroup, four at once; nothing moves."""
    warp, below, row, octet, lane, column = range(6)
    parts = kb.reshape(product, (4, 2, 8, 8, 4, 2))
    return kb.reshape(kb.trans(parts, (octet, warp, row, lane, below, column)), BY_THREAD)


def _numbers(frame: Frame, source: Numbers, place: Value) -> Value:
    """[1, queries]."""
    return frame.numbers(source, place).load(frame.layouts.columns)[None, :]


def _rounded(frame: Frame, x: Value) -> Value:
    kb = frame.kb
    return kb.round_in_place(x, frame.element_type) if frame.config.pin_rounding else kb.cast(x, frame.element_type)


def _operand(frame: Frame, x: Value) -> Value:
    return frame.kb.convert_layout(x, dot_operand(frame.layouts.sums))
