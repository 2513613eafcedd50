"""The end of a ring whose consumers start the scores of the next step in each: behind the last one there is none.

They multiply what lies in the next buffer then, and drop it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.builder import GpuKernelBuilder
from compilemask.lowering.tiling_to_ttg.builder_memory import Barriers


class Ring(Protocol):
    """The buffers of steps, in either kernel of gradients."""

    @property
    def kb(self) -> GpuKernelBuilder: ...

    @property
    def full(self) -> Barriers: ...

    @property
    def empty(self) -> Barriers: ...

    def place(self, number: Value, /) -> tuple[Value, Value]:
        """The buffer of a step, and the parity of the phase in which it is full."""
        ...


def _let_read_again(ring: Ring, number: Value) -> None:
    """Lets consumers go on behind the last step, whose number would be this, with what lay in its buffer before."""
    place, phase = ring.place(number)
    ring.empty[place].wait(phase ^ 1)
    ring.full[place].arrive()


def let_end(ring: Ring, number: Value, stages: int, copy: Callable[[Value], None]) -> None:
    """The same where nothing may have lain there, in one of so many buffers: then something is copied to the place."""
    with ring.kb.if_else(number < stages) as is_unused:
        with is_unused.then():
            copy(ring.place(number)[0])
        with is_unused.otherwise():
            _let_read_again(ring, number)
