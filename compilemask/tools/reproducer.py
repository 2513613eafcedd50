"""Reproducers: a file that holds IR and, in its first line, the passes to run on it.

// compilemask-opt --run-reproducer: mask-to-interval,interval-normalize
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from compilemask.errors import PipelineError
from compilemask.lowering.registry import print_pipeline
from compilemask.passes.observers import printed

HEADER = "// compilemask-opt --run-reproducer: "


def reproducer(module: ModuleOp, passes: Sequence[ModulePass]) -> str:
    """The text of a reproducer. The IR is in generic syntax, which reads back whatever the printers do."""
    return f"{HEADER}{print_pipeline(passes)}\n{printed(module, generic=True)}"


def pipeline_of(text: str, file: str) -> str:
    """The pipeline in a reproducer's first line. Raises PipelineError if there is none."""
    first = text.split("\n", 1)[0]
    if not first.startswith(HEADER):
        raise PipelineError(f"{file} is no reproducer: its first line must start with {HEADER.strip()!r}")
    return first.removeprefix(HEADER).strip()


__all__ = ["pipeline_of", "reproducer"]
