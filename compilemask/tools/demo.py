"""The four headline masks through every level, then their attention against a dense oracle.

    python -m compilemask.tools.demo

Prints the IR of each level, runs attention on a GPU or else on the CPU, and writes pictures and full IR to `demo/`.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.syntax import Syntax
from rich.table import Table

import compilemask as cm
from compilemask.errors import CompileMaskError
from compilemask.runtime.kernel_text import attention_kernel_text, descriptor_kernels
from compilemask.tools.draw import FULL, PARTIAL, Survey, draw
from compilemask.tools.examples import EXAMPLES, HEADLINES

if TYPE_CHECKING:
    from compilemask.language.mask import Mask

LEVELS = {
    "mask": "1 mask: a region of the (query, key) plane",
    "interval": "2 interval: the keys that one query row sees",
    "tiling": "3 tiling: runs of key tiles, full and partial, for a tile of queries",
    "ttir": "4 Triton IR: the kernel that builds this mask's descriptor on the device",
    "ttgir": "5 Triton-GPU IR",
    "ptx": "6 PTX",
}
KERNEL_LEVELS = {"ttir": "Triton IR", "ttgir": "Triton-GPU IR", "ptx": "PTX"}
SHOWN_LINES = 40
LONGEST_LINE = 300
"""Longer IR is cut on the screen; files hold all of it."""
LENGTHS = (1024, 1000)
HEADS = 4
HEAD_DIM = 64
REPEATS = 5
TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3}


@dataclass(frozen=True)
class Result:
    """One line of the closing table."""

    name: str
    length: int
    seen: Survey
    error: float
    seconds: float
    passed: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0 if every attention agrees with the oracle."""
    parser = argparse.ArgumentParser(prog="python -m compilemask.tools.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for pictures and IR (default: demo)")
    parser.add_argument("--target", default="cuda:90", help="GPU for which IR is shown (default: cuda:90)")
    parser.add_argument("masks", nargs="*", metavar="MASK", help=f"which masks (default: {' '.join(HEADLINES)})")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.masks if name not in EXAMPLES]
    if unknown:
        parser.error(f"no mask is named {unknown[0]!r}; there are {', '.join(EXAMPLES)}")
    names = options.masks or HEADLINES
    console = Console(width=None if sys.stdout.isatty() else 140)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        for name in names:
            show_levels(console, name, EXAMPLES[name].mask(LENGTHS[0]), options.target, options.out)
        show_attention(console, options.target, options.out)
        results = run_all(console, names, options.out)
    except CompileMaskError as error:
        console.print(f"[red]compilemask:[/] {error}", highlight=False)
        return 2
    console.print(results_table(results))
    console.print(f"pictures and full IR: [bold]{options.out}/[/]")
    return 0 if all(result.passed for result in results) else 1


# ---- the levels ----


def show_levels(console: Console, name: str, mask: Mask, target: str, out: Path) -> None:
    """Print a mask at every level, and write each in full."""
    console.rule(f"[bold]{name}[/]: {EXAMPLES[name].summary}")
    compiled = cm.compile(mask)
    for level, title in _for(target, LEVELS):
        with console.status(f"{name}: lowering to {level}"):
            if level in KERNEL_LEVELS:
                kernels = descriptor_kernels(compiled.program, level, target)
                text = "\n".join(f"// {kernel}\n{text}" for kernel, text in kernels.items())
            else:
                text = compiled.ir(level)
        suffix = f"{level}.mlir" if level in ("mask", "interval", "tiling") else level
        _show(console, text, title, out / f"{name}.{suffix}")


def show_attention(console: Console, target: str, out: Path) -> None:
    """Print the attention kernel, which is the same for all masks, and write it in full."""
    console.rule("[bold]attention[/]: one kernel for all masks, it follows a descriptor")
    for level, title in _for(target, KERNEL_LEVELS):
        with console.status(f"attention: compiling to {level}"):
            text = attention_kernel_text(level, target, HEAD_DIM, torch.float16)
        _show(console, text, f"{title}, head dimension {HEAD_DIM}, float16", out / f"attention.{level}")


def _for(target: str, levels: dict[str, str]) -> list[tuple[str, str]]:
    """The levels that a target has, with their titles."""
    return [(level, title) for level, title in levels.items() if level != "ptx" or target.startswith("cuda:")]


def _show(console: Console, text: str, title: str, path: Path) -> None:
    path.write_text(text)
    console.print(_panel(text.strip(), title, path))


def _panel(text: str, title: str, path: Path) -> Panel:
    lines = text.splitlines()
    shown = "\n".join(line[:LONGEST_LINE] for line in lines[:SHOWN_LINES])
    rest = len(lines) - SHOWN_LINES
    subtitle = f"{rest:,} more lines in {path}" if rest > 0 else None
    lexer = "ptx" if path.suffix == ".ptx" else "llvm"
    body = Syntax(shown, lexer, theme="ansi_light", background_color="default", word_wrap=True)
    return Panel(body, title=title, title_align="left", subtitle=subtitle, subtitle_align="right", border_style="dim")


# ---- the attention ----


def run_all(console: Console, names: Sequence[str], out: Path) -> list[Result]:
    """Attention of every mask at every length, with a picture of each."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    console.rule(f"[bold]attention on {torch.cuda.get_device_name() if device.type == 'cuda' else 'the CPU'}[/]")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    results: list[Result] = []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=len(names) * len(LENGTHS))
        for name in names:
            for length in LENGTHS:
                progress.update(task, description=f"{name}, {length} tokens")
                results.append(run(name, length, device, out))
                progress.advance(task)
    return results


def run(name: str, length: int, device: torch.device, out: Path) -> Result:
    """Attention with one mask: largest error against the oracle, time of a call, and a picture."""
    mask = EXAMPLES[name].mask(length)
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    generator = torch.Generator().manual_seed(0)
    shape = (1, HEADS, length, HEAD_DIM)
    q, k, v = (torch.randn(shape, generator=generator).to(device, dtype) for _ in range(3))

    def call() -> torch.Tensor:
        return cm.attention(q, k, v, mask)

    found = call()
    error = float((found.double() - oracle(q, k, v, mask)).abs().max())
    seen = draw(mask, length, length, out / f"{name}_{length}.png", title=f"{name}, {length} tokens")
    return Result(name, length, seen, error, seconds(call, device), error <= TOLERANCE[dtype])


def oracle(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask) -> torch.Tensor:
    """Attention from its definition in float64, [B, H, Sq, D]; a row that sees nothing is 0."""
    visible = torch.as_tensor(mask.dense(q.shape[2], k.shape[2])).to(q.device)
    score = q.double() @ k.double().transpose(-1, -2) / math.sqrt(q.shape[-1])
    weight = torch.softmax(score.masked_fill(~visible, -math.inf), -1).nan_to_num(0.0)
    return weight @ v.double()


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Shortest time of a few calls."""
    return min(_timings(call, device))


def _timings(call: Callable[[], object], device: torch.device) -> Iterator[float]:
    for _ in range(REPEATS):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        yield time.perf_counter() - start


def results_table(results: Sequence[Result]) -> Table:
    """The closing table."""
    table = Table(title="attention against a dense float64 oracle", title_justify="left")
    table.add_column("mask")
    for title in ("tokens", "visible", "full tiles", "partial tiles", "largest error", "time"):
        table.add_column(title, justify="right")
    table.add_column("")
    for r in results:
        table.add_row(
            r.name,
            str(r.length),
            f"{r.seen.density:.1%}",
            str(r.seen.count(FULL)),
            str(r.seen.count(PARTIAL)),
            f"{r.error:.1e}",
            f"{r.seconds * 1e3:.2f} ms",
            "[green]ok[/]" if r.passed else "[red]wrong[/]",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
