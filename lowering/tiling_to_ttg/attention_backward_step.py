"""A step of the backward kernel: a warpgroup's 64 keys against the queries of one buffer.

Scores are computed transposed, keys down and queries across, S^T = K Q^T and dP^T = V dO^T, so that weights P^T and
slopes dS^T come out of the tensor cores as the left operands that dV = P^T dO and dK = dS^T Q take from registers. Only
dQ = dS K sums over the keys of both warpgroups, which exchange their slopes through shared memory (Dao, "FlashAttention
-2", arXiv 2307.08691; Shah et al., "FlashAttention-3", arXiv 2407.08608).

Scores of a step are computed at the end of the step before, beside its last products, so that products follow each
other without a gap; and each step adds to the gradient of queries what belongs to the step before.
"""

from __future__ import annotations

from typing import NamedTuple

from xdsl.dialects.builtin import f32, i32

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_backward_block import Block
from compilemask.lowering.tiling_to_ttg.attention_backward_cleaning import clean_queries
from compilemask.lowering.tiling_to_ttg.attention_backward_exchange import (
    hand_over,
    leave,
    multiply_step_before,
    no_slopes,
    wait_for_step_before,
)
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_backward_sums import add_to_queries, block_of, no_block
from compilemask.lowering.tiling_to_ttg.attention_backward_visits import Visits
from compilemask.lowering.tiling_to_ttg.attention_bits import bits_of_step
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS
from compilemask.lowering.tiling_to_ttg.builder_memory import Product


class State(NamedTuple):
    """Between two steps: sums [64, D] f32 of a warpgroup's keys, and what is known of the next step."""

    grad_key: Value
    grad_value: Value
    number: Value
    """Of the next step."""
    scores: Value
    """Products [64, queries] of the keys with its queries."""
    block: Value | None = None
    """Of the sum: where the gradient of queries of the step before is still to be added, if it is summed."""

    @property
    def values(self) -> list[Value]:
        """What loops carry."""
        return [x for x in self if x is not None]

    @classmethod
    def first(cls, frame: Frame, part: int) -> State:
        """Before the first step, whose queries come even where there is none."""
        zeros, number = frame.kb.zeros((ROWS, frame.head_dim), f32, frame.layouts.sums), frame.kb.constant(0, i32)
        block = no_block(frame) if frame.config.sums_queries else None
        return cls(zeros, zeros, number, _scores_of(frame, part, number), block)


class Step(NamedTuple):
    """Where a step stands: the first of its queries, of a head's visits."""

    visits: Visits
    first: Value
    words: Value | None = None
    """[64, 4] of the query tile's pattern; None if all pairs are visible."""
    seeing: Value | None = None
    """Bits of the octets of the query tile that see some of the warpgroup's keys; known with `words`."""

    def block(self, frame: Frame, part: int) -> Value:
        """Where the sum of a warpgroup's part of the gradient of queries lies."""
        return block_of(frame, part, self.visits.head, self.first)


def advance(frame: Frame, part: int, state: State, step: Step) -> State:
    """The sums with a step's queries in them. The weights' registers are those of the next scores."""
    kb, (place, phase), sums = frame.kb, frame.place(state.number), state.block
    block = Block(frame, part, state.number)
    rises = block.rises()
    weights = block.weights(state.scores, step.words)
    grad_value = kb.warp_group_dot(block.operand(block.rounded(weights)), block.grad, state.grad_value)
    if frame.config.hold_weights:
        frame.full[place].wait(phase)
    slopes = block.slopes(weights, kb.warp_group_dot_wait(rises, pending=1))
    grad_query = None if sums is None else _exchanged(frame, part, state.number, slopes)
    grad_key = kb.warp_group_dot(block.operand(slopes), block.query, state.grad_key)
    value_sum = kb.warp_group_dot_wait(grad_value, pending=1 if grad_query is None else 2)
    following = _start_scores(frame, part, state.number + 1)
    if grad_query is not None and sums is not None:
        add_to_queries(frame, kb.warp_group_dot_wait(grad_query, pending=2), sums)
    key_sum = kb.warp_group_dot_wait(grad_key, pending=1)
    own = None if sums is None else step.block(frame, part)
    frame.empty[place].arrive()
    return State(key_sum, value_sum, state.number + 1, kb.warp_group_dot_wait(following), own)


def advance_masked(frame: Frame, part: int, state: State, step: Step) -> State:
    """The same if some queries may not see some of the keys."""
    kb, (place, _) = frame.kb, frame.place(state.number)
    with kb.if_else(step.visits.blind != 0) as some, some.then():
        clean_queries(frame, part, place)
    assert step.words is not None
    assert step.seeing is not None
    words, seeing = bits_of_step(kb, step.words, step.seeing, step.first, frame.config.queries)
    with kb.if_else(seeing != 0) as some:
        with some.then():
            some.yield_(*advance(frame, part, state, step._replace(words=words)).values)
        with some.otherwise():
            some.yield_(*_passed_by(frame, part, state, step).values)
    return State(*some.results)


def _passed_by(frame: Frame, part: int, state: State, step: Step) -> State:
    """A step of which no query sees any of the warpgroup's keys: all that it does is its part for the other one."""
    kb, (place, _), grad_query = frame.kb, frame.place(state.number), None
    if state.block is not None:
        grad_query = _exchanged(frame, part, state.number, no_slopes(frame))
    frame.empty[place].arrive()
    following = _start_scores(frame, part, state.number + 1)
    if grad_query is not None and state.block is not None:
        add_to_queries(frame, kb.warp_group_dot_wait(grad_query, pending=1), state.block)
    own = None if state.block is None else step.block(frame, part)
    return State(state.grad_key, state.grad_value, state.number + 1, kb.warp_group_dot_wait(following), own)


def _exchanged(frame: Frame, part: int, number: Value, slopes: Value) -> Product:
    """Leaves a step's slopes to the other warpgroup, and starts to multiply those of the step before."""
    wait_for_step_before(frame, part, number)
    leave(frame, part, number, slopes)
    frame.kb.fence_async_shared()
    hand_over(frame, part, number)
    return multiply_step_before(frame, part, number)


def _start_scores(frame: Frame, part: int, number: Value) -> Product:
    """Starts the products of a warpgroup's keys with the queries of a step, when those have come."""
    place, phase = frame.place(number)
    frame.full[place].wait(phase)
    return Block(frame, part, number).scores()


def _scores_of(frame: Frame, part: int, number: Value) -> Value:
    return frame.kb.warp_group_dot_wait(_start_scores(frame, part, number))
