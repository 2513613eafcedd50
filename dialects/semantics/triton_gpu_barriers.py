"""Barriers of a program of Triton-GPU IR: mbarriers with phases, arrivals and bytes, and named barriers."""

from __future__ import annotations

from compilemask.dialects.semantics.triton_gpu_order import Agents, Clock, History, KernelError

WARP_THREADS = 32


class MBarrier:
    """An mbarrier (PTX): a phase ends when no arrival is pending and as many bytes have come as were expected."""

    def __init__(self, agents: Agents, name: str, count: int) -> None:
        self.name, self.count = name, count
        self.agent = agents.add(f"the TMA loads of {name}")
        self.phase, self.pending, self.bytes = 0, count, 0
        self.last_load = 0
        self._arrived: Clock = agents.new_clock()
        self.ended: Clock = agents.new_clock()

    def arrive(self, history: History, count: int = 1, size: int = 0) -> None:
        """`count` arrivals, after `size` bytes more are expected in this phase."""
        if count > self.pending:
            raise KernelError(f"{count} arrivals at {self.name}, {self.pending} of {self.count} are pending")
        history.release(self._arrived)
        self.bytes += size
        self.pending -= count
        self._end_phase()

    def deliver(self, size: int) -> None:
        """Bytes of an asynchronous copy have come."""
        self.last_load = self.next_event
        self.bytes -= size
        self._end_phase()

    @property
    def next_event(self) -> int:
        """The number, as an event of the barrier's agent, of what is delivered in the current phase."""
        return self.phase + 1

    def has_ended(self, parity: int) -> bool:
        """Whether the last phase of this parity has ended; for a new barrier that of parity 1 has."""
        return self.phase & 1 != parity

    def _end_phase(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.count
            self._arrived[self.agent] = self.phase
            self.ended = self._arrived.copy()

    def check_finished(self, history: History) -> None:
        """Raise an error if bytes are missing or nobody has waited for a copy."""
        if self.bytes > 0:
            raise KernelError(f"{self.name} expects {self.bytes} bytes that never come")
        if self.bytes < 0:
            raise KernelError(f"{-self.bytes} bytes came to {self.name} that it did not expect")
        if not history.has_seen(self.agent, self.last_load):
            raise KernelError(f"nobody waited for the last TMA load of {self.name}")

    def __str__(self) -> str:
        parts = [f"{self.name}: phase {self.phase}", f"{self.pending} of {self.count} arrivals missing"]
        if self.bytes:
            parts.append(f"{abs(self.bytes)} bytes {'missing' if self.bytes > 0 else 'too many'}")
        return ", ".join(parts)


class NamedBarrier:
    """One of the hardware's 16 barriers: opens when `threads` threads have come, and starts anew."""

    def __init__(self, agents: Agents, number: int) -> None:
        self.number, self.threads, self.come, self.generation = number, 0, 0, 0
        self.who: list[str] = []
        self._agents = agents
        self._arrived: Clock = agents.new_clock()
        self.opened: Clock = agents.new_clock()

    def come_with(self, history: History, warps: int, threads: int, who: str) -> int:
        """A partition comes; gives the generation that it came in."""
        if self.come and threads != self.threads:
            raise KernelError(f"{threads} threads at named barrier {self.number}, {self.threads} for {self.who[0]}")
        generation, self.threads = self.generation, threads
        self.come += warps * WARP_THREADS
        self.who.append(who)
        if self.come > threads:
            raise KernelError(f"{self.come} threads came to named barrier {self.number} of {threads}")
        history.release(self._arrived)
        if self.come == threads:
            self.opened, self._arrived = self._arrived, self._agents.new_clock()
            self.come, self.generation, self.who = 0, generation + 1, []
        return generation

    def __str__(self) -> str:
        return f"named barrier {self.number}: {self.come} of {self.threads} threads have come ({', '.join(self.who)})"
