"""Standard input and output that whoever started a command may have closed."""

from __future__ import annotations

import os
import sys


def has_output() -> bool:
    """Whether there is a standard output; says so on standard error if not. A closed input reads as an empty one."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stdout is not None:
        return True
    if sys.stderr is not None:
        sys.stderr.write("the standard output is closed\n")
    return False
