"""Counts: every operation has a round trip in both syntaxes and a verifier error, every pass a before/after file."""

from __future__ import annotations

import inspect
import pkgutil
import re
from importlib import import_module
from pathlib import Path

import pytest
import test_tt_dialect
import test_ttg_dialect
from xdsl.ir import Dialect
from xdsl.passes import ModulePass

import compilemask.lowering
import compilemask.passes
from compilemask.dialects.registry import all_dialects
from compilemask.language.source import parse_source
from compilemask.lowering.registry import BUILT_IN, built_in_passes

FILES = Path(__file__).parent / "filecheck"
OURS = [
    dialect
    for dialect in all_dialects()
    if any(kind.__module__.startswith("compilemask.dialects") for kind in dialect.operations)
    and dialect.name != "arith"
]
TABLES = {"tt": test_tt_dialect, "ttg": test_ttg_dialect, "ttng": test_ttg_dialect}
"""Tests whose samples are strings: `EVERY_OP` makes the round trips, `INVALID` lists what verifiers reject."""


def names(dialect: Dialect) -> set[str]:
    """The operations of a dialect that are defined here."""
    return {kind.name for kind in dialect.operations}


def round_trips(dialect: Dialect) -> tuple[set[str], set[str]]:
    """The operations that are printed and read back, in custom and in generic syntax."""
    if dialect.name in TABLES:
        found = {op.name for op in parse_source(TABLES[dialect.name].EVERY_OP).module.walk()}
        return found, found
    text = (FILES / "dialects" / dialect.name / "ops.mlir").read_text()
    custom = " ".join(re.findall(r"^// CHECK[-A-Z]*: (.*)$", text, re.MULTILINE))
    generic = " ".join(re.findall(r"^// GENERIC[-A-Z]*: (.*)$", text, re.MULTILINE))
    return set(re.findall(r"(?<![\w\"])\w+\.\w+", custom)), set(re.findall(r'"(\w+\.\w+)"', generic))


def rejected(dialect: Dialect) -> set[str]:
    """The operations of which a verifier rejects a piece of IR."""
    if dialect.name in TABLES:
        return set(TABLES[dialect.name].INVALID)
    text = (FILES / "dialects" / dialect.name / "invalid.mlir").read_text()
    return set(re.findall(r"^// (\w+\.\w+): ", text, re.MULTILINE))


def test_all_dialects_of_ours_are_counted() -> None:
    assert {dialect.name for dialect in OURS} >= {"mask", "interval", "tiling", "tt", "ttg", "ttng"}


@pytest.mark.parametrize("dialect", OURS, ids=lambda dialect: dialect.name)
def test_every_operation_has_three_kinds_of_tests(dialect: Dialect) -> None:
    custom, generic = round_trips(dialect)
    for kind, found in (("custom round trip", custom), ("generic round trip", generic), ("error", rejected(dialect))):
        missing = sorted(names(dialect) - found)
        assert not missing, f"{len(missing)} of {len(names(dialect))} operations have no {kind}: {', '.join(missing)}"


def test_every_pass_has_a_file_before_and_after() -> None:
    runs = [
        (path, set(re.findall(r"[a-z][a-z0-9-]*", run.split("filecheck")[0])))
        for path in FILES.rglob("*.mlir")
        for run in re.findall(r"^// RUN: compilemask-opt.*?(?:-p|--passes)[ =](.*)$", path.read_text(), re.MULTILINE)
    ]
    for name, place in BUILT_IN.items():
        if place.startswith("compilemask."):
            folder = "passes" if place.startswith("compilemask.passes") else "lowering"
            stem = name.replace("-", "_")
            ours = [path for path, used in runs if name in used and path == FILES / folder / f"{stem}.mlir"]
            assert ours, f"there is no tests/filecheck/{folder}/{stem}.mlir that runs {name}"


def test_every_pass_is_registered() -> None:
    defined = {
        kind
        for package in (compilemask.passes, compilemask.lowering)
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        for _, kind in inspect.getmembers(import_module(info.name), inspect.isclass)
        if issubclass(kind, ModulePass) and kind.__module__ == info.name
    }
    registered = {get() for get in built_in_passes().values()}
    assert defined <= registered
    for name, get in built_in_passes().items():
        assert get().name == name
