"""A step of the backward kernel: a warpgroup's 64 keys against the queries of one buffer.

Scores are computed transposed, keys down and queries across, S^T = K Q^T and dP^T = V dO^T, so that weights P^T and
slopes dS^T come out of the tensor cores as the left operands that dV = P^T dO and dK = dS^T Q take from registers. Only
dQ = dS K sums over the keys of both warpgroups, which exchange their slopes through shared memory (Dao, "FlashAttention
-2", arXiv 2307.08691; Shah et al., "FlashAttention-3", arXiv 2407.08608).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from xdsl.dialects.builtin import f32, i32

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_backward_block import Block
from compilemask.lowering.tiling_to_ttg.attention_backward_cleaning import clean_queries
from compilemask.lowering.tiling_to_ttg.attention_backward_config import Ahead
from compilemask.lowering.tiling_to_ttg.attention_backward_exchange import (
    hand_over,
    multiply_at_once,
    multiply_step_before,
    slot,
    wait_for_step_before,
)
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_backward_sums import add_to_queries, no_block
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS
from compilemask.lowering.tiling_to_ttg.builder_memory import Buffer, Product


class State(NamedTuple):
    """Between two steps: sums [64, D] f32 of a warpgroup's keys, and the number of the next step."""

    grad_key: Value
    grad_value: Value
    number: Value
    scores: Value | None = None
    """Products [64, queries] of the keys with the next step's queries, where they are computed ahead."""
    block: Value | None = None
    """Of the sum: where the gradient of queries of the step before is still to be added. Known with `scores`, if it is
    summed."""

    @property
    def values(self) -> list[Value]:
        """What loops carry."""
        return [x for x in self if x is not None]

    @classmethod
    def first(cls, frame: Frame, part: int) -> State:
        """Before the first step, whose queries come even where there is none."""
        zeros = frame.kb.zeros((ROWS, frame.head_dim), f32, frame.layouts.sums)
        state = cls(zeros, zeros, frame.kb.constant(0, i32))
        return state.looking_ahead(frame, part) if frame.config.scores_ahead is Ahead.ALL else state

    def looking_ahead(self, frame: Frame, part: int) -> State:
        """The same with the scores of the next step, before the first of which they are."""
        block = no_block(frame) if frame.config.sums_queries else None
        return self._replace(scores=_scores_of(frame, part, self.number), block=block)


class Step(NamedTuple):
    """What a step knows besides its queries."""

    block: Callable[[], Value]
    """Emits where a warpgroup's part of the gradient of queries belongs; not behind the end of the step's stage."""
    words: Value | None = None
    """[64, 4] of a pattern, with the step's bits first; None if all pairs are visible."""
    seeing: Value | None = None
    """Not 0 if some of the queries see some of the warpgroup's keys; known with `words`."""
    blind: Value | None = None
    """Not 0 if there may be queries that see nothing; known with `words`."""


def await_queries(frame: Frame, state: State) -> Value:
    """Waits for the queries of the next step, whose place this gives, unless its scores are known."""
    place, phase = frame.place(state.number)
    if state.scores is None:
        frame.full[place].wait(phase)
    return place


def _start_scores(frame: Frame, part: int, number: Value) -> Product:
    """Starts the products of a warpgroup's keys with the queries of a step, when those have come."""
    place, phase = frame.place(number)
    frame.full[place].wait(phase)
    return Block(frame, part, place).scores()


def _scores_of(frame: Frame, part: int, number: Value) -> Value:
    return frame.kb.warp_group_dot_wait(_start_scores(frame, part, number))


def advance(frame: Frame, part: int, state: State, step: Step) -> State:
    """The sums with a step's queries in them, which have come, if all pairs are visible."""
    compute = _computed if state.scores is None else _computed_ahead
    return compute(frame, part, state, step)


def advance_masked(frame: Frame, part: int, state: State, step: Step) -> State:
    """The same if some queries may not see some of the keys."""
    kb, (place, _) = frame.kb, frame.place(state.number)
    assert step.blind is not None
    assert step.seeing is not None
    with kb.if_else(step.blind != 0) as some, some.then():
        clean_queries(frame, part, place)
    if state.scores is not None:
        compute = _computed_ahead
    else:
        in_halves = frame.config.sums_queries and frame.config.queries > ROWS
        compute = _computed_by_halves if in_halves else _computed
    with kb.if_else(step.seeing != 0) as some:
        with some.then():
            some.yield_(*compute(frame, part, state, step).values)
        with some.otherwise():
            some.yield_(*_passed_by(frame, part, state, step).values)
    return State(*some.results)


def _passed_by(frame: Frame, part: int, state: State, step: Step) -> State:
    """A step of which no query sees any of the warpgroup's keys: all that it does is its part for the other one."""
    kb, (place, _) = frame.kb, frame.place(state.number)
    if not frame.config.sums_queries:
        frame.empty[place].arrive()
    else:
        nothing = kb.zeros((ROWS, frame.config.queries), frame.element_type, frame.layouts.scores)
        Block(frame, part, place).leave(nothing, slot(frame, state.number))
        kb.fence_async_shared()
        product = kb.warp_group_dot_wait(multiply_at_once(frame, part, state.number))
        add_to_queries(frame, product, step.block())
        frame.empty[place].arrive()
    following = None if state.scores is None else _scores_of(frame, part, state.number + 1)
    return State(state.grad_key, state.grad_value, state.number + 1, following)


def _computed(frame: Frame, part: int, state: State, step: Step) -> State:
    """The sums with a step's queries in them."""
    kb, (place, phase) = frame.kb, frame.place(state.number)
    block = Block(frame, part, place)
    scores, rises = block.scores(), block.rises()
    weights = block.weights(kb.warp_group_dot_wait(scores, pending=1), step.words)
    weight_operand = block.operand(block.rounded(weights))
    if frame.config.hold_weights:
        frame.full[place].wait(phase)
    slopes = block.slopes(weights, kb.warp_group_dot_wait(rises))
    if not frame.config.sums_queries:
        grad_value = kb.warp_group_dot(weight_operand, block.grad, state.grad_value)
        return _finish(frame, state, place, grad_value, block.operand(slopes), block.query)
    block.leave(slopes, slot(frame, state.number))
    kb.fence_async_shared()
    grad_value = kb.warp_group_dot(weight_operand, block.grad, state.grad_value)
    slope_operand = block.operand(slopes)
    grad_query = multiply_at_once(frame, part, state.number)
    sums = grad_query, step
    return _finish(frame, state, place, grad_value, slope_operand, block.query, sums)


def _computed_by_halves(frame: Frame, part: int, state: State, step: Step) -> State:
    """The same for 128 queries: weights of one half are computed while products of the other run."""
    kb, (place, _) = frame.kb, frame.place(state.number)
    first, second = (Block(frame, part, place, half) for half in range(2))
    exchanged = slot(frame, state.number)
    scores, rises, scores_behind = first.scores(), first.rises(), second.scores()
    weights = first.weights(kb.warp_group_dot_wait(scores, pending=2), step.words)
    operand = first.operand(first.rounded(weights))
    grad_value = kb.warp_group_dot(operand, first.grad, state.grad_value)
    slopes = first.slopes(weights, kb.warp_group_dot_wait(rises, pending=2))
    first.leave(slopes, exchanged)
    rises, first_slopes = second.rises(), first.operand(slopes)
    weights = second.weights(kb.warp_group_dot_wait(scores_behind, pending=2), step.words)
    operand = second.operand(second.rounded(weights))
    grad_value = kb.warp_group_dot(operand, second.grad, grad_value)
    slopes = second.slopes(weights, kb.warp_group_dot_wait(rises, pending=1))
    second.leave(slopes, exchanged)
    kb.fence_async_shared()
    grad_key = kb.warp_group_dot(first_slopes, first.query, state.grad_key)
    grad_key = kb.warp_group_dot(second.operand(slopes), second.query, grad_key)
    grad_query = multiply_at_once(frame, part, state.number)
    value_sum = kb.warp_group_dot_wait(grad_value, pending=3)
    key_sum = kb.warp_group_dot_wait(grad_key, pending=1)
    add_to_queries(frame, kb.warp_group_dot_wait(grad_query), step.block())
    frame.empty[place].arrive()
    return State(key_sum, value_sum, state.number + 1)


def _computed_ahead(frame: Frame, part: int, state: State, step: Step) -> State:
    """The same where the products of keys with the step's queries were computed ahead; and those of the next step.

    What is added to the gradient of queries is that of the step before. The weights' registers are those of the next
    scores.
    """
    kb, (place, phase) = frame.kb, frame.place(state.number)
    assert state.scores is not None
    block = Block(frame, part, place)
    rises = block.rises()
    weights = block.weights(state.scores, step.words)
    weight_operand = block.operand(block.rounded(weights))
    grad_value = kb.warp_group_dot(weight_operand, block.grad, state.grad_value)
    if frame.config.hold_weights:
        frame.full[place].wait(phase)
    slopes = block.slopes(weights, kb.warp_group_dot_wait(rises, pending=1))
    grad_query = None
    if state.block is not None:
        wait_for_step_before(frame, part, state.number)
        block.leave(slopes, slot(frame, state.number))
        kb.fence_async_shared()
    slope_operand = block.operand(slopes)
    if state.block is not None:
        hand_over(frame, part, state.number)
        grad_query = multiply_step_before(frame, part, state.number)
    grad_key = kb.warp_group_dot(slope_operand, block.query, state.grad_key)
    value_sum = kb.warp_group_dot_wait(grad_value, pending=1 if grad_query is None else 2)
    following = _start_scores(frame, part, state.number + 1)
    if grad_query is not None and state.block is not None:
        add_to_queries(frame, kb.warp_group_dot_wait(grad_query, pending=2), state.block)
    key_sum = kb.warp_group_dot_wait(grad_key, pending=1)
    own = None if state.block is None else step.block()
    frame.empty[place].arrive()
    return State(key_sum, value_sum, state.number + 1, kb.warp_group_dot_wait(following), own)


def _finish(
    frame: Frame,
    state: State,
    place: Value,
    grad_value: Product,
    slopes: Value,
    query: Buffer,
    sums: tuple[Product, Step] | None = None,
) -> State:
    """Waits for the products of a step, frees its buffer, and adds its part of the gradient of queries to a block."""
    kb = frame.kb
    value_sum = kb.warp_group_dot_wait(grad_value, pending=0 if sums is None else 1)
    grad_key = kb.warp_group_dot(slopes, query, state.grad_key)
    if sums is not None:
        product, step = sums
        add_to_queries(frame, kb.warp_group_dot_wait(product, pending=1), step.block())
    key_sum = kb.warp_group_dot_wait(grad_key)
    frame.empty[place].arrive()
    return State(key_sum, value_sum, state.number + 1)
