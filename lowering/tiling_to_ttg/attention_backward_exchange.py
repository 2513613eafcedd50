"""How two warpgroups exchange the slopes of a step, of which each multiplies all with its part of the keys.

At a meeting in every step both would compute weights at the same time, while no product runs, and wait for products at
the same time. So a step leaves its own slopes and multiplies those of the step before: a warpgroup waits for the other
one only if that is a whole step behind. What a step leaves lies in a slot that the other warpgroup has read: by what it
has left in the step before, it is done with the step two before that.
"""

from __future__ import annotations

from xdsl.dialects.builtin import i32

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_backward_cleaning import BOTH
from compilemask.lowering.tiling_to_ttg.attention_backward_config import SLOTS
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_backward_sums import multiply_keys
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS
from compilemask.lowering.tiling_to_ttg.builder_memory import Buffer, Product

LEFT_BARRIER = 8
"""The first of four: a warpgroup waits at two of them, for even and odd steps, for the slopes of the other one."""
MEETING_BARRIER = 13


def _slot(frame: Frame, number: Value) -> Buffer:
    """Where the slopes of a step lie."""
    assert frame.slopes is not None
    return frame.slopes[number % SLOTS]


def meet(frame: Frame) -> None:
    """Waits for the other warpgroup."""
    frame.kb.bar_sync(MEETING_BARRIER, BOTH)


def leave(frame: Frame, part: int, number: Value, slopes: Value) -> None:
    """Stores a warpgroup's slopes of a step where both read them; a fence comes behind."""
    _slot(frame, number).part((part * ROWS, 0), (ROWS, frame.config.queries)).store(slopes)


def no_slopes(frame: Frame) -> Value:
    """Those of a step of which no query sees any of the warpgroup's keys."""
    return frame.kb.zeros((ROWS, frame.config.queries), frame.element_type, frame.layouts.scores)


def leave_nothing(frame: Frame, part: int) -> None:
    """Leaves none before the first step, which are multiplied too; a fence comes behind."""
    leave(frame, part, frame.kb.constant(SLOTS - 1, i32), no_slopes(frame))


def begin(frame: Frame, part: int) -> None:
    """Lets the other warpgroup begin with the first step."""
    hand_over(frame, part, frame.kb.constant(-1, i32))


def wait_for_step_before(frame: Frame, part: int, number: Value) -> None:
    """Waits until the other warpgroup has left its slopes of the step before this one."""
    frame.kb.bar_sync(_left_barrier(part, number + 1), BOTH)


def hand_over(frame: Frame, part: int, number: Value) -> None:
    """Tells the other warpgroup that the slopes of a step have been left."""
    frame.kb.bar_arrive(_left_barrier(1 - part, number), BOTH)


def multiply_step_before(frame: Frame, part: int, number: Value) -> Product:
    """Starts to multiply the slopes of the step before this one."""
    return multiply_keys(frame, part, _slot(frame, number + (SLOTS - 1)), number)


def multiply_last(frame: Frame, part: int, number: Value) -> Product:
    """The same behind the last step."""
    wait_for_step_before(frame, part, number)
    return multiply_step_before(frame, part, number)


def _left_barrier(part: int, number: Value) -> Value:
    return (number & 1) + (LEFT_BARRIER + 2 * part)
