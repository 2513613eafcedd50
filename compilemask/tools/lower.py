"""`compilemask lower`: a mask at some level, and what each pass on the way does to it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from compilemask.tools.arguments import add_mask, mask_of, module_of

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.passes import ModulePass

LEVELS_WITHOUT_KERNELS = ("mask", "interval", "tiling")
LEVELS = (*LEVELS_WITHOUT_KERNELS, "scf", "ttir", "ttgir", "llir", "ptx")


def add_lower(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_mask(parser)
    parser.add_argument("--to", choices=LEVELS, default="tiling", help="level (default: tiling)")
    parser.add_argument("--target", default="cuda:90", help="GPU for ttir, ttgir, llir and ptx (default: cuda:90)")
    parser.add_argument("-o", metavar="FILE", dest="output", help="write there instead of to standard output")
    passes = parser.add_argument_group("passes")
    passes.add_argument("--pipeline", metavar="PASSES", help="run these passes instead of those that lead to the level")
    for where in ("before", "after"):
        passes.add_argument(
            f"--insert-{where}",
            nargs=2,
            action="append",
            default=[],
            metavar=("NAME", "PASSES"),
            help=f"run PASSES {where} the pass NAME",
        )
    passes.add_argument("--print-pipeline", action="store_true", help="print the pipeline instead of running it")
    add_debug(parser)
    parser.set_defaults(run=run)


def add_debug(parser: argparse.ArgumentParser) -> None:
    """The options that show what passes do. What they print goes to standard error."""
    group = parser.add_argument_group("what passes do, on standard error")
    for when in ("before", "after"):
        group.add_argument(
            f"--print-ir-{when}", metavar="PASS", action="append", default=[], help=f"print the IR {when} a pass"
        )
    group.add_argument("--print-ir-all", action="store_true", help="print the IR before and after every pass")
    group.add_argument("--print-ir-before-all", action="store_true", help="print the IR before every pass")
    group.add_argument("--print-ir-after-all", action="store_true", help="print the IR after every pass")
    group.add_argument("--print-ir-diff", action="store_true", help="print what each pass changed")
    group.add_argument("--timing", action="store_true", help="print how long each pass took")
    group.add_argument(
        "--verify-each", action="store_true", help="after each pass, also print the IR, read it again and compare"
    )
    group.add_argument("--dump", metavar="DIR", help="write the IR of each step into a folder")
    group.add_argument(
        "--reproducer", metavar="FILE", help="first write input and pipeline, for compilemask-opt --run-reproducer"
    )


def run(options: argparse.Namespace) -> int:
    """The command."""
    text = _lowered(options) if options.to in LEVELS_WITHOUT_KERNELS else _kernels(options)
    text = text if text.endswith("\n") else text + "\n"
    if options.output:
        Path(options.output).write_text(text)
    else:
        sys.stdout.write(text)
        sys.stdout.flush()
    return 0


def _lowered(options: argparse.Namespace) -> str:
    from compilemask.lowering.pipeline import apply
    from compilemask.lowering.registry import print_pipeline

    passes = _passes(options, options.to)
    if options.print_pipeline:
        return print_pipeline(passes)
    module = module_of(options)
    _write_reproducer(options, module, passes)
    with watched(options):
        return str(apply(module, passes))


def _kernels(options: argparse.Namespace) -> str:
    from compilemask.lowering.registry import print_pipeline

    passes = _passes(options, "tiling")
    if options.print_pipeline:
        return print_pipeline(passes)
    import compilemask as cm

    mask = mask_of(options)
    _write_reproducer(options, mask.module(), passes)
    with watched(options):
        return cm.compile(mask, pipeline=print_pipeline(passes)).ir(options.to, target=options.target)


def _passes(options: argparse.Namespace, level: str) -> Sequence[ModulePass]:
    from compilemask.lowering.pipeline import passes_to
    from compilemask.lowering.registry import insert, parse_pipeline

    passes = passes_to(level) if options.pipeline is None else parse_pipeline(options.pipeline)
    for where in ("before", "after"):
        for name, new in getattr(options, f"insert_{where}"):
            passes = insert(passes, where, name, parse_pipeline(new))
    return passes


def watched(options: argparse.Namespace) -> AbstractContextManager[None]:
    """Observes passes as the options of `add_debug` say."""
    every_before = options.print_ir_all or options.print_ir_before_all
    every_after = options.print_ir_all or options.print_ir_after_all
    before, after = every_before or options.print_ir_before, every_after or options.print_ir_after
    if not any((before, after, options.print_ir_diff, options.timing, options.verify_each, options.dump)):
        return nullcontext()
    from compilemask.observe import debug

    return debug(
        print_ir_before=before,
        print_ir_after=after,
        print_ir_diff=options.print_ir_diff,
        timing=options.timing,
        verify_each=options.verify_each,
        dump=options.dump,
    )


def _write_reproducer(options: argparse.Namespace, module: ModuleOp, passes: Sequence[ModulePass]) -> None:
    if options.reproducer:
        from compilemask.tools.reproducer import reproducer

        Path(options.reproducer).write_text(reproducer(module, passes))


__all__ = ["LEVELS", "add_debug", "add_lower", "watched"]
