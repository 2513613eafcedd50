"""`compilemask.debug`: see what the compiler does, from Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from typing import TextIO

from compilemask.dialects.registry import make_context
from compilemask.errors import PipelineError
from compilemask.lowering.registry import known_passes
from compilemask.passes.instrument import Observer, observing
from compilemask.passes.observers import Dump, PrintDiff, PrintIR, PrintLaunches, ReadBack, Timing

Names = bool | str | Collection[str]
"""Passes by name; True stands for all."""


@contextmanager
def debug(
    *,
    print_ir_before: Names = False,
    print_ir_after: Names = False,
    print_ir_diff: bool = False,
    timing: bool = False,
    verify_each: bool = False,
    dump: str | os.PathLike[str] | None = None,
    launches: bool = False,
    stream: TextIO | None = None,
) -> Generator[None, None, None]:
    """Within it, what this thread compiles is printed, timed, checked or written down, and cached results are not used.

        with cm.debug(print_ir_after="interval-normalize", timing=True):
            cm.compile(mask).ir("tiling")

    Args:
        print_ir_before, print_ir_after: the passes before and after which IR is printed; True for all.
        print_ir_diff: print what each pass changed.
        timing: print how long each pass took.
        verify_each: after each pass, also print the IR in both syntaxes, read it again and compare.
        dump: a folder for one file per step, and one per level of each kernel that is compiled.
        launches: print each kernel that is launched on a GPU, its grid and the hash of the IR that it came from.
        stream: where to print (default: standard error).

    Raises:
        PipelineError: there is no pass of a name.
    """
    before, after = _names(print_ir_before), _names(print_ir_after)
    out = stream or sys.stderr
    observers = list(chosen(before, after, print_ir_diff, timing, verify_each, dump, out))
    if launches:
        observers.append(PrintLaunches(out))
    _forget()
    with observing(*observers):
        yield


def chosen(
    before: Collection[str] | None,
    after: Collection[str] | None,
    diff: bool,
    timing: bool,
    verify_each: bool,
    dump: str | os.PathLike[str] | None,
    stream: TextIO,
) -> Iterator[Observer]:
    """The observers of these choices; None stands for the names of all passes, an empty collection for none.

    Raises PipelineError if there is no pass of a name.
    """
    known = known_passes()
    for name in (*(before or ()), *(after or ())):
        if name not in known:
            raise PipelineError(f"there is no pass {name!r}; there are {', '.join(sorted(known))}")
    if before is None or after is None or before or after:
        yield PrintIR(stream, before, after)
    if diff:
        yield PrintDiff(stream)
    if verify_each:
        yield ReadBack(make_context())
    if dump is not None:
        yield Dump(os.fspath(dump))
    if timing:
        yield Timing(stream)


def _names(given: Names) -> Collection[str] | None:
    if isinstance(given, bool):
        return None if given else ()
    return (given,) if isinstance(given, str) else given


_KEEPING = (
    *("compiled", "calls.known_calls", "calls.known_gradients", "gpu.compile_kernel", "gpu.attention_backward_cuda"),
    *("gpu.hopper", "gpu.hopper_backward", "gpu.hopper_backward_queries"),
)
"""Modules of the runtime that keep what they compiled."""


def _forget() -> None:
    """Drop what was compiled before: it cannot be watched."""
    for name in _KEEPING:
        module = sys.modules.get(f"compilemask.runtime.{name}")
        if module is not None:
            module.forget()


__all__ = ["chosen", "debug"]
