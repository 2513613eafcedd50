"""Runs passes one after the other, and lets observers see the IR between them.

with observing(Timing(sys.stderr)):
    lower(module, to="tiling")
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import ArgSpec

DUMP = "COMPILEMASK_DUMP"
"""The environment variable that names a folder into which every step of every compilation is written."""


class Observer:
    """Is told what happens to a module and to the kernels made of it; it must not change them. Does nothing itself."""

    def begin(self, module: ModuleOp, passes: Sequence[ModulePass]) -> None:
        """`passes` are about to run on the module."""

    def before(self, step: int, item: ModulePass, module: ModuleOp) -> None:
        """The `step`-th pass, from 1, is about to run."""

    def after(self, step: int, item: ModulePass, module: ModuleOp, seconds: float) -> None:
        """The `step`-th pass has run, and the module verifies."""

    def end(self, module: ModuleOp) -> None:
        """All passes have run."""

    def compiled(self, name: str, target: str, forms: Mapping[str, str | bytes]) -> None:
        """A kernel was compiled for a target; `forms` are its text at each level, from the one it was given in."""

    def launched(self, name: str, text: str, grid: tuple[int, int, int]) -> None:
        """A kernel was launched that was compiled from `text`."""


@dataclass
class Observation:
    """The observers of a thread."""

    observers: tuple[Observer, ...] = ()
    is_over: bool = False


_UNOBSERVED = Observation()
_observation: ContextVar[Observation] = ContextVar("observation", default=_UNOBSERVED)


def described(item: ModulePass) -> str:
    """A pass and those of its options that are not the default, as a pipeline names it."""
    spec = item.spec()
    return str(ArgSpec(spec.name, {name.replace("_", "-"): value for name, value in spec.parameters.items()}))


@contextmanager
def observing(*observers: Observer) -> Generator[None, None, None]:
    """Within it, observers see what this thread compiles and launches."""
    observation = Observation((*_observation.get().observers, *observers))
    try:
        with resuming(observation):
            yield
    finally:
        observation.is_over = True


def current_observation() -> Observation:
    """What `resuming` takes, to go on with what this thread does in another one."""
    return _observation.get()


def resuming(observation: Observation) -> AbstractContextManager[None]:
    """Within it, this thread is observed as another one was, if that is not over."""
    observation = _UNOBSERVED if observation.is_over else observation
    return nullcontext() if observation is _observation.get() else _observed_as(observation)


@contextmanager
def _observed_as(observation: Observation) -> Generator[None, None, None]:
    token = _observation.set(observation)
    try:
        yield
    finally:
        _observation.reset(token)


def observers_of_launches() -> tuple[Observer, ...]:
    """The observers that are told of launches: those of `observing`, which cost nothing where there are none."""
    return _observation.get().observers


def current_observers() -> tuple[Observer, ...]:
    """All observers: those of `observing`, and the one that the environment asks for."""
    if folder := os.environ.get(DUMP):
        from compilemask.passes.observers import Dump

        return (*observers_of_launches(), Dump(folder))
    return observers_of_launches()


def run_passes(module: ModuleOp, passes: Sequence[ModulePass], context: Context, verify: bool = True) -> None:
    """Run passes on the module, in place, and verify it after each.

    Raises whatever a pass or a verifier raises.
    """
    observers = current_observers()
    for observer in observers:
        observer.begin(module, passes)
    for step, item in enumerate(passes, start=1):
        for observer in observers:
            observer.before(step, item, module)
        start = perf_counter()
        item.apply(context, module)
        seconds = perf_counter() - start
        if verify:
            module.verify()
        for observer in observers:
            observer.after(step, item, module, seconds)
    for observer in observers:
        observer.end(module)


__all__ = [
    "DUMP",
    "Observation",
    "Observer",
    "current_observation",
    "current_observers",
    "described",
    "observers_of_launches",
    "observing",
    "resuming",
    "run_passes",
]
