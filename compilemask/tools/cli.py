"""The command `compilemask`: look at a mask at every level, draw it, and check an installation.

    compilemask list
    compilemask lower hstu --to interval
    compilemask lower my_mask.mlir --to ttir --target cuda:90 --param window=512 -o my_mask.ttir
    compilemask draw shared_prompt --seq 4096 -o mask.png
    compilemask prove clear
    compilemask doctor

Exit status: 0 done, 1 `doctor` found that something is missing or `prove` that a lowering is wrong, 2 bad input.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from compilemask.errors import CompileMaskError, IRError, MaskError
from compilemask.tools.examples import EXAMPLES, SAMPLES, Parameter

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from compilemask.language.mask import Mask

LEVELS_WITHOUT_KERNELS = ("mask", "interval", "tiling")
LEVELS = (*LEVELS_WITHOUT_KERNELS, "ttir", "ttgir", "llir", "ptx")
STANDARD_INPUT = "-"
TRACEBACK = "COMPILEMASK_TRACEBACK"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    try:
        options = _parser().parse_args(arguments)
        return options.run(options)
    except SystemExit as exit_:  # argparse has printed its message
        return exit_.code if isinstance(exit_.code, int) else 2
    except BrokenPipeError:  # the reader of our output has gone; so has the need for it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        print(_message(error), file=sys.stderr)
        return 2


def _message(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, IRError):  # starts with file:line:column
        return text
    if isinstance(error, CompileMaskError):
        return f"compilemask: {text}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"compilemask: {error.filename}: {error.strerror}"
    return f"compilemask: unexpected {type(error).__name__}: {text[:300]} (set {TRACEBACK}=1 to see where)"


# ---- arguments ----


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="compilemask", description="Attention masks, compiled.")
    parser.add_argument("--version", action="version", version=f"compilemask {metadata.version('compilemask')}")
    commands = parser.add_subparsers(metavar="command", required=True)

    lower = commands.add_parser("lower", help="print a mask at some level of the compiler")
    _add_mask(lower)
    lower.add_argument("--to", choices=LEVELS, default="tiling", help="level (default: tiling)")
    lower.add_argument("--target", default="cuda:90", help="GPU for ttir, ttgir, llir and ptx (default: cuda:90)")
    lower.add_argument("-o", metavar="FILE", dest="output", help="write there instead of to standard output")
    lower.set_defaults(run=_lower)

    draw = commands.add_parser("draw", help="draw a mask and its tiles")
    _add_mask(draw)
    draw.add_argument("--keys", type=_length, metavar="M", help="number of keys (default: as many as queries)")
    draw.add_argument("-o", metavar="FILE", dest="output", default="mask.png", help="picture (default: mask.png)")
    draw.set_defaults(run=_draw)

    prove = commands.add_parser("prove", help="prove a mask's lowering for all lengths and parameters")
    _add_mask(prove)
    prove.add_argument(
        "--timeout", type=_length, default=10_000, metavar="MS", help="for each question to the solver (default: 10000)"
    )
    prove.set_defaults(run=_prove)

    commands.add_parser("list", help="masks by name").set_defaults(run=_list)
    commands.add_parser("doctor", help="what is installed, what is missing").set_defaults(run=_doctor)
    return parser


def _add_mask(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "mask", metavar="MASK", help="a name (see `compilemask list`), a .mlir file, or - for standard input"
    )
    parser.add_argument(
        "--seq",
        type=_length,
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


def _length(text: str) -> int:
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


# ---- masks ----


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


def _mask(options: argparse.Namespace) -> Mask:
    """The mask with its parameters."""
    import compilemask as cm

    parameters: dict[str, Parameter] = dict(options.param)
    if options.mask == STANDARD_INPUT:
        return cm.parse(sys.stdin.read(), **parameters)
    path = _find(options.mask)
    return EXAMPLES[options.mask].mask(options.seq, parameters) if path is None else cm.load(path, **parameters)


def _module(options: argparse.Namespace) -> ModuleOp:
    """The mask as IR; what comes as text needs no parameters for that, but it must know those that are given."""
    from compilemask.language.text import parse_module_for, read_text

    names = [name for name, _ in options.param]

    if options.mask == STANDARD_INPUT:
        return parse_module_for(names, sys.stdin.read(), "<stdin>")
    path = _find(options.mask)
    return _mask(options).module() if path is None else parse_module_for(names, read_text(path), str(path))


# ---- commands ----


def _lower(options: argparse.Namespace) -> int:
    if options.to in LEVELS_WITHOUT_KERNELS:
        text = str(_lowered(_module(options), options.to))
    else:
        import compilemask as cm

        text = cm.compile(_mask(options)).ir(options.to, target=options.target)
    text = text if text.endswith("\n") else text + "\n"
    if options.output:
        Path(options.output).write_text(text)
    else:
        sys.stdout.write(text)
        sys.stdout.flush()
    return 0


def _lowered(module: ModuleOp, level: str) -> ModuleOp:
    from compilemask.lowering.pipeline import lower

    return lower(module, to=level)


def _draw(options: argparse.Namespace) -> int:
    from compilemask.tools.draw import FULL, PARTIAL, draw

    seen = draw(_mask(options), options.seq, options.keys, options.output)
    print(
        f"{options.output}: {seen.visible:,} of {seen.queries:,} x {seen.keys:,} pairs visible ({seen.density:.1%}), "
        f"{seen.count(FULL):,} full and {seen.count(PARTIAL):,} partial of {seen.classes.size:,} tiles"
    )
    return 0


def _prove(options: argparse.Namespace) -> int:
    from rich.console import Console

    from compilemask.tools.prove import report

    return 0 if report(_module(options), Console(highlight=False), options.timeout) else 1


def _list(options: argparse.Namespace) -> int:
    width = max(map(len, EXAMPLES))
    for example in EXAMPLES.values():
        print(f"{example.name:{width}}  {example.summary}")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from rich.console import Console

    from compilemask.tools.doctor import report

    return 0 if report(Console()) else 1


if __name__ == "__main__":
    sys.exit(main())
