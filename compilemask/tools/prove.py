"""`compilemask prove`: what can be proved of a mask's lowering, for all lengths and parameters, as a table."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from xdsl.dialects.builtin import ModuleOp

from compilemask.dialects import interval, mask, tiling
from compilemask.errors import MaskError
from compilemask.lowering.pipeline import lower
from compilemask.passes.prove import TIMEOUT_MS, Verdict, prove_interval, prove_lowering, prove_tiling

STYLES = {"proved": "green", "refuted": "red", "unknown": "yellow"}


def prove_module(module: ModuleOp, timeout_ms: int = TIMEOUT_MS) -> Iterator[Verdict]:
    """The verdicts on all levels of every mask of a module, and on functions that are further down already.

    Raises:
        MaskError: the module holds nothing that could be proved.
        MissingDependencyError: z3 is not installed.
    """
    lowered = lower(module, "tiling")
    sources = {op.sym_name.data: op for op in module.walk() if isinstance(op, mask.FuncOp)}
    claimed = False
    for source in sources.values():
        claimed = True
        yield from prove_lowering(source, lowered, timeout_ms)
    for op in lowered.walk():
        if isinstance(op, interval.FuncOp) and op.sym_name.data not in sources:
            claimed = True
            yield from prove_interval(op, None, timeout_ms)
            for tiles in lowered.walk():
                if isinstance(tiles, tiling.FuncOp) and tiles.sym_name.data.startswith(op.sym_name.data):
                    yield from prove_tiling(tiles, lowered, timeout_ms)
    if not claimed:
        raise MaskError("nothing to prove: the module holds no mask.func and no interval.func")


def report(module: ModuleOp, console: Console, timeout_ms: int = TIMEOUT_MS) -> bool:
    """Prove a module and print one line per claim; whether all were proved."""
    verdicts = list(prove_module(module, timeout_ms))
    table = Table(box=None, pad_edge=False, show_header=False)
    for column in range(5):
        table.add_column(justify="right" if column == 4 else "left", no_wrap=column != 2)
    for verdict in verdicts:
        state = f"[{STYLES[verdict.status]}]{verdict.status}[/]"
        claim = verdict.claim
        table.add_row(f"@{claim.function}", claim.name, claim.meaning, state, f"{verdict.milliseconds:,.0f} ms")
    console.print(table)
    for verdict in verdicts:
        if verdict.counterexample is not None:
            console.print(f"[red]@{verdict.claim.function}, {verdict.claim.name}[/]: {verdict.counterexample}")
        elif verdict.status == "unknown":
            console.print(f"[yellow]@{verdict.claim.function}, {verdict.claim.name}[/]: {verdict.reason}")
    return all(verdict.status == "proved" for verdict in verdicts)


__all__ = ["prove_module", "report"]
