"""`compilemask doctor`: what is installed, on which device attention would run, and what is missing."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.table import Table

REQUIRED = {"torch": "2.11", "triton": "3.6", "xdsl": "0.75", "numpy": "1.26", "rich": "13"}
OPTIONAL = {
    "matplotlib": "pictures: pip install 'compilemask[draw]'",
    "xtc-mlir-python-bindings": "compiled attention on the CPU: pip install 'compilemask[mlir]'",
    "z3-solver": "proofs of a lowering: pip install z3-solver",
}
MARKS = {"ok": "[green]ok[/]", "note": "[yellow]--[/]", "fault": "[red]!![/]"}


@dataclass(frozen=True)
class Finding:
    """One line of the report; `state` is ok, note (works without it) or fault (does not)."""

    subject: str
    state: str
    text: str


def report(console: Console) -> bool:
    """Print the report; whether all that is needed is there."""
    findings = list(examine())
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        table.add_row(MARKS[finding.state], finding.subject, finding.text)
    console.print(table)
    return all(finding.state != "fault" for finding in findings)


def examine() -> Iterator[Finding]:
    """Look at everything that CompileMask depends on."""
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield Finding("compilemask", "ok", _version("compilemask") or "not installed, run from its source")
    for name, least in REQUIRED.items():
        yield _requirement(name, least)
    yield from _devices()
    yield _compiler()
    yield from _cache()
    for name, use in OPTIONAL.items():
        version = _version(name)
        yield Finding(name, "ok" if version else "note", version or f"not installed; {use}")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _requirement(name: str, least: str) -> Finding:
    version = _version(name)
    if version is None:
        return Finding(name, "fault", f"not installed; at least {least} is needed")
    old = _numbers(version) < _numbers(least)
    return Finding(
        name, "fault" if old else "ok", f"{version} is too old, at least {least} is needed" if old else version
    )


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split("+")[0].split(".")
    return tuple(int(part) for part in parts[:2] if part.isdigit())


def _devices() -> Iterator[Finding]:
    try:
        import torch
    except ImportError:
        return
    if not torch.cuda.is_available():
        yield Finding("device", "note", "no GPU: attention runs on the CPU, IR for GPUs can be generated all the same")
        return
    for index in range(torch.cuda.device_count()):
        properties = cast("Any", torch.cuda.get_device_properties(index))
        memory = f"{properties.total_memory / 2**30:.0f} GiB"
        target = f"cuda:{properties.major}{properties.minor}"
        yield Finding(
            f"device {index}", "ok", f"{properties.name}, {memory}, {properties.multi_processor_count} SMs, {target}"
        )


def _compiler() -> Finding:
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found:
        return Finding("C compiler", "ok", found)
    return Finding("C compiler", "note", "not found; Triton needs one to launch kernels on a GPU")


def _cache() -> Iterator[Finding]:
    try:
        from triton import knobs
    except ImportError:
        return
    directory = Path(knobs.cache.dir)
    files = [path for path in directory.rglob("*") if path.is_file()] if directory.is_dir() else []
    size = sum(path.stat().st_size for path in files)
    yield Finding(
        "kernel cache", "ok", f"{directory}: {len(files):,} files, {size / 2**20:,.1f} MiB (TRITON_CACHE_DIR)"
    )
