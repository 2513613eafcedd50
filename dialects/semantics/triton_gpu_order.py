"""What happened before what in a program of Triton-GPU IR: vector clocks of its agents, and the errors that they find.

An agent is a partition, or the asynchronous copies that end phases of one mbarrier. A clock has, for each agent, how
far the owner of the clock has seen it; an event (agent, n) happened before the owner's next step iff clock[agent] >= n.
So a missing wait is an error in every interleaving, also in those where the data happen to come in time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Clock = NDArray[np.int32]
MAX_AGENTS = 512


class KernelError(RuntimeError):
    """The kernel does what the hardware gives no meaning to: a race, a value too early, something left unfinished."""


class DeadlockError(KernelError):
    """No partition can go on and no copy is on its way; the message says who waits for what."""


class Agents:
    """Numbers for the agents of one program."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def add(self, name: str) -> int:
        """A new agent."""
        if len(self.names) == MAX_AGENTS:
            raise KernelError(f"more than {MAX_AGENTS} partitions and mbarriers in one program")
        self.names.append(name)
        return len(self.names) - 1

    def new_clock(self) -> Clock:
        """A clock that has seen nothing."""
        return np.zeros(MAX_AGENTS, dtype=np.int32)


class History:
    """The clock of one partition: what it has seen, and the number of its current step."""

    def __init__(self, agents: Agents, name: str, parent: History | None = None) -> None:
        self.agent = agents.add(name)
        self.clock: Clock = agents.new_clock() if parent is None else parent.clock.copy()
        self.clock[self.agent] = 1
        if parent is not None:
            parent.step()

    @property
    def now(self) -> int:
        """The number of the current step."""
        return int(self.clock[self.agent])

    def step(self) -> None:
        """Begin a step that those who have seen the ones before have not seen."""
        self.clock[self.agent] += 1

    def release(self, into: Clock) -> None:
        """Let whoever acquires `into` see everything up to here."""
        np.maximum(into, self.clock, out=into)
        self.step()

    def acquire(self, clock: Clock) -> None:
        """See everything that was released into a clock."""
        np.maximum(self.clock, clock, out=self.clock)

    def has_seen(self, agent: int, number: int) -> bool:
        """Whether an event happened before the current step."""
        return int(self.clock[agent]) >= number
