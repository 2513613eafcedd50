"""The arguments that several commands take: a mask by name or file, its parameters and lengths."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from compilemask.errors import MaskError
from compilemask.tools.examples import EXAMPLES, SAMPLES, Parameter

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from compilemask.language.mask import Mask

STANDARD_INPUT = "-"


def add_mask(parser: argparse.ArgumentParser, *names: str) -> None:
    """Arguments `mask` (or others of these names), `--seq` and `--param`."""
    for name in names or ("mask",):
        parser.add_argument(
            name, metavar=name.upper(), help="a name (see `compilemask list`), a .mlir file, or - for standard input"
        )
    parser.add_argument(
        "--seq",
        type=length,
        default=1024,
        metavar="N",
        help="number of queries (default: 1024); at most 65536 in a picture",
    )
    parser.add_argument(
        "--param",
        type=_assignment,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a mask parameter: an integer, or integers with commas for a table",
    )


def length(text: str) -> int:
    """A positive integer."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return value


def _assignment(text: str) -> tuple[str, Parameter]:
    name, equals, value = text.partition("=")
    try:
        numbers = tuple(int(part) for part in value.split(",") if part.strip())
    except ValueError:
        numbers = ()
    if not name or not equals or not numbers:
        raise argparse.ArgumentTypeError(f"expected NAME=INTEGER or NAME=INTEGER,INTEGER,..., got {text!r}")
    return name, numbers if "," in value else numbers[0]


def _find(name: str) -> Path | None:
    """The file that a MASK argument means: one that exists, or a sample; None for a mask by name."""
    if name in EXAMPLES:
        return None
    sample = SAMPLES / name
    path = Path(name)
    if not path.exists() and path.suffix == ".mlir" and path.name == name and sample.is_file():
        return sample
    if not path.exists() and not path.suffix and os.sep not in name:
        raise MaskError(f"no mask is named {name!r}; there are {', '.join(EXAMPLES)}, and .mlir files")
    return path


def text_of(argument: str) -> tuple[str, str] | None:
    """The IR text that an argument means and what to call it in errors; None for a mask by name."""
    from compilemask.language.source import read_text

    if argument == STANDARD_INPUT:
        return sys.stdin.read(), "<stdin>"
    path = _find(argument)
    return None if path is None else (read_text(path), str(path))


def mask_of(options: argparse.Namespace, argument: str | None = None) -> Mask:
    """The mask with its parameters."""
    from compilemask.language.text import loads

    name: str = options.mask if argument is None else argument
    parameters: dict[str, Parameter] = dict(options.param)
    if (found := text_of(name)) is not None:
        return loads(*found, **parameters)
    return EXAMPLES[name].mask(options.seq, parameters)


def module_of(options: argparse.Namespace) -> ModuleOp:
    """The mask as IR; what comes as text needs no parameters for that, but it must know those that are given."""
    from compilemask.language.text import parse_module_for

    if (found := text_of(options.mask)) is not None:
        return parse_module_for([name for name, _ in options.param], *found)
    return mask_of(options).module()


__all__ = ["add_mask", "length", "mask_of", "module_of", "text_of"]
