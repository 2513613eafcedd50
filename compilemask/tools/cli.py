"""The command `compilemask`: look at a mask at every level, draw it, and check an installation.

    compilemask list
    compilemask lower hstu --to interval
    compilemask lower my_mask.mlir --to ttir --target cuda:90 --param window=512 -o my_mask.ttir
    compilemask inspect hstu --target cuda:90
    compilemask explain clear --seq 8192
    compilemask draw shared_prompt --seq 4096 -o mask.png
    compilemask diff causal my_mask.mlir
    compilemask prove clear
    compilemask verify my_mask.mlir
    compilemask doctor

Exit status: 0 done; 1 something is missing (`doctor`), wrong (`prove`, `verify`) or different (`diff`); 2 bad input.
"""

from __future__ import annotations

# All the rest is imported within `main`, so that it may be interrupted there too.
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from compilemask.tools.streams import has_output

if TYPE_CHECKING:
    import argparse

TRACEBACK = "COMPILEMASK_TRACEBACK"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    if not has_output():
        return 2
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
    from compilemask.errors import CompileMaskError, IRError

    text = " ".join(str(error).split())
    if isinstance(error, IRError):  # starts with file:line:column
        return f"{text}\n{error.excerpt}" if error.excerpt else text
    if isinstance(error, CompileMaskError):
        return f"compilemask: {text}"
    if isinstance(error, OSError) and error.strerror:
        return f"compilemask: {error.filename or 'the output'}: {error.strerror}"
    if isinstance(error, MemoryError):
        return f"compilemask: there is not enough memory for that: {text[:300]}"
    return f"compilemask: unexpected {type(error).__name__}: {text[:300]} (set {TRACEBACK}=1 to see where)"


# ---- arguments ----


def _parser() -> argparse.ArgumentParser:
    import argparse

    from compilemask import __version__
    from compilemask.tools.arguments import add_mask, length
    from compilemask.tools.explain import add_explain
    from compilemask.tools.inspect import add_inspect
    from compilemask.tools.lower import add_lower

    parser = argparse.ArgumentParser(prog="compilemask", description="Attention masks, compiled.")
    parser.add_argument("--version", action="version", version=f"compilemask {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)

    add_lower(commands.add_parser("lower", help="print a mask at some level of the compiler"))

    add_inspect(commands.add_parser("inspect", help="registers, spills, shared memory, PTX and SASS of kernels"))

    add_explain(commands.add_parser("explain", help="the form the compiler found for a mask, why, and what it costs"))

    draw = commands.add_parser("draw", help="draw a mask and its tiles")
    add_mask(draw)
    draw.add_argument("--keys", type=length, metavar="M", help="number of keys (default: as many as queries)")
    draw.add_argument(
        "-o",
        metavar="FILE",
        dest="output",
        default="mask.png",
        help="PNG, SVG, PDF, or an HTML page to move over (default: mask.png)",
    )
    draw.set_defaults(run=_draw)

    diff = commands.add_parser("diff", help="name a pair (q, kv) that only one of two masks or IR files shows")
    add_mask(diff, "a", "b")
    diff.add_argument("--keys", type=length, metavar="M", help="number of keys (default: as many as queries)")
    diff.set_defaults(run=_diff)

    prove = commands.add_parser("prove", help="prove a mask's lowering for all lengths and parameters")
    add_mask(prove)
    prove.add_argument(
        "--timeout", type=length, default=10_000, metavar="MS", help="for each question to the solver (default: 10000)"
    )
    prove.set_defaults(run=_prove)

    verify = commands.add_parser("verify", help="execute all levels of a mask on random inputs and compare them")
    add_mask(verify)
    verify.add_argument("--trials", type=length, default=40, metavar="N", help="inputs to try (default: 40)")
    verify.add_argument("--seed", type=int, default=0, metavar="N", help="of the inputs (default: 0)")
    verify.set_defaults(run=_verify)

    commands.add_parser("list", help="masks by name").set_defaults(run=_list)
    commands.add_parser("doctor", help="what is installed, what is missing").set_defaults(run=_doctor)
    return parser


# ---- commands ----


def _draw(options: argparse.Namespace) -> int:
    from compilemask.tools.arguments import mask_of
    from compilemask.tools.draw import FULL, PARTIAL, draw

    mask = mask_of(options)
    if options.output.lower().endswith((".html", ".htm")):
        from compilemask.tools.page import write_page

        seen = write_page(mask, options.seq, options.keys or options.seq, options.output)
    else:
        seen = draw(mask, options.seq, options.keys, options.output)
    print(
        f"{options.output}: {seen.visible:,} of {seen.queries:,} x {seen.keys:,} pairs visible ({seen.density:.1%}), "
        f"{seen.count(FULL):,} full and {seen.count(PARTIAL):,} partial of {seen.classes.size:,} tiles"
    )
    return 0


def _diff(options: argparse.Namespace) -> int:
    from compilemask.tools.diff import report

    return 0 if report(options) else 1


def _prove(options: argparse.Namespace) -> int:
    from rich.console import Console

    from compilemask.tools.arguments import module_of
    from compilemask.tools.prove import report

    return 0 if report(module_of(options), Console(highlight=False), options.timeout) else 1


def _verify(options: argparse.Namespace) -> int:
    from compilemask.tools.arguments import module_of
    from compilemask.tools.verify import report

    return 0 if report(module_of(options), options.trials, options.seed, dict(options.param)) else 1


def _list(options: argparse.Namespace) -> int:
    from compilemask.tools.examples import EXAMPLES

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
