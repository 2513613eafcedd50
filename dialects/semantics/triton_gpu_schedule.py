"""Partitions of a program as coroutines, run a few steps at a time in random order; copies end in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TypeAlias

from compilemask.dialects.semantics.triton_gpu_order import DeadlockError, KernelError
from compilemask.dialects.semantics.triton_gpu_tma import Load

_LONGEST_TURN = 12
"""Switch points that a partition passes before another may be chosen, at most."""

_MOST_TURNS = 1_000_000
"""Turns after which a program is taken for one that does not end."""


@dataclass(frozen=True)
class Wait:
    """Why a partition cannot go on: whether it can by now, and what it waits for."""

    is_over: Callable[[], bool]
    reason: Callable[[], str]


Steps: TypeAlias = Generator[Wait | None, None, None]


@dataclass
class _Entry:
    name: str
    steps: Steps
    weight: float
    wait: Wait | None = None
    done: bool = field(default=False)


class Scheduler:
    """Runs the partitions of one program; the seed decides all."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._entries: list[_Entry] = []
        self._loads: list[tuple[Load, float]] = []

    def spawn(self, name: str, steps: Steps) -> Wait:
        """Start a partition; gives the wait for its end."""
        entry = _Entry(name, steps, self._weight())
        self._entries.append(entry)
        return Wait(lambda: entry.done, lambda: f"the end of {name}")

    def start(self, load: Load) -> None:
        """A load that ends some time."""
        self._loads.append((load, self._weight()))

    def _weight(self) -> float:
        """Some are slow, by orders of magnitude."""
        return 10.0 ** self._rng.uniform(-2, 0)

    def run(self) -> list[Load]:
        """Run until all partitions have ended; gives the loads still under way. Raises DeadlockError."""
        turns = 0
        while self._entries:
            turns += 1
            if turns > _MOST_TURNS:
                raise KernelError(f"no end after {_MOST_TURNS} turns of partitions")
            ready = [entry for entry in self._entries if entry.wait is None or entry.wait.is_over()]
            choices: list[_Entry | tuple[Load, float]] = [*ready, *self._loads]
            if not choices:
                raise DeadlockError(self._state())
            weights = [choice.weight if isinstance(choice, _Entry) else choice[1] for choice in choices]
            (choice,) = self._rng.choices(choices, weights)
            if isinstance(choice, _Entry):
                self._take_turn(choice)
            else:
                self._loads.remove(choice)
                choice[0].land()
        return [load for load, _ in self._loads]

    def _take_turn(self, entry: _Entry) -> None:
        entry.wait = None
        for _ in range(self._rng.randint(1, _LONGEST_TURN)):
            try:
                wait = next(entry.steps)
            except StopIteration:
                entry.done = True
                self._entries.remove(entry)
                return
            if wait is not None and not wait.is_over():
                entry.wait = wait
                return

    def _state(self) -> str:
        lines = [f"  {entry.name} waits for {entry.wait.reason()}" for entry in self._entries if entry.wait is not None]
        return "\n".join(["no partition can go on", *lines])
