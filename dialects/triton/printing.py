"""Text that Triton's parser takes: generic form, no aliases, no locations."""

from __future__ import annotations

from io import StringIO

from xdsl.dialects.builtin import ModuleOp
from xdsl.printer import Printer


def print_generic(module: ModuleOp) -> str:
    """The module as generic MLIR text, for `triton.compile` of a `.ttir` or `.ttgir` file."""
    stream = StringIO()
    Printer(stream, print_generic_format=True).print_op(module)
    return stream.getvalue() + "\n"
