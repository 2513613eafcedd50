"""Runs the RUN lines of all `.mlir` files below this folder, in this process: xDSL is imported once for all of them.

A RUN line is a pipeline `compilemask-opt %s ARGUMENTS | compilemask-opt ... | filecheck %s [--check-prefix=NAME]`.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts
from xdsl.ir import Dialect

from compilemask.dialects.interval import INTERVAL
from compilemask.dialects.mask import MASK
from compilemask.dialects.tiling import TILING
from compilemask.tools.opt import Driver

HERE = Path(__file__).parent
RUN = re.compile(r"^// RUN: (.*)$", re.MULTILINE)


def _cases() -> Iterator[object]:
    for path in sorted(HERE.rglob("*.mlir")):
        for number, run in enumerate(RUN.findall(path.read_text())):
            suffix = f"-{number}" if number else ""
            yield pytest.param(path, run, id=f"{path.relative_to(HERE).with_suffix('')}{suffix}")


@pytest.mark.parametrize(("path", "run"), list(_cases()))
def test_filecheck(path: Path, run: str, tmp_path: Path) -> None:
    *drivers, check = [shlex.split(stage) for stage in run.split("|")]
    assert check[:2] == ["filecheck", "%s"], f"{path}: a RUN line ends in filecheck %s"
    text, source = "", path
    for number, (command, *arguments) in enumerate(drivers):
        assert command == "compilemask-opt", f"{path}: a RUN line runs compilemask-opt, not {command}"
        text = _drive(
            [str(path) if argument == "%s" else argument for argument in arguments], source if number else None
        )
        source = tmp_path / f"{number}.mlir"
        source.write_text(text)
    prefixes = [option.removeprefix("--check-prefix=") for option in check[2:]] or ["CHECK"]
    _check(path, text, prefixes)


def _drive(arguments: list[str], source: Path | None) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        Driver([*([str(source)] if source else []), *arguments]).run()
    return output.getvalue()


def _check(path: Path, text: str, prefixes: list[str]) -> None:
    options = Options(match_filename=str(path), check_prefixes=prefixes)
    report = io.StringIO()
    with path.open() as checks, contextlib.redirect_stdout(report), contextlib.redirect_stderr(report):
        parser = Parser(options, checks, *pattern_for_opts(options))
        failed = Matcher(options, FInput("-", text), parser).run()
    assert not failed, f"{report.getvalue()}\n{path} was given:\n{text}"


def test_every_file_runs() -> None:
    idle = [str(path.relative_to(HERE)) for path in HERE.rglob("*.mlir") if not RUN.search(path.read_text())]
    assert not idle, f"no RUN line in {idle}"


@pytest.mark.parametrize("dialect", [MASK, INTERVAL, TILING], ids=lambda dialect: dialect.name)
def test_every_operation_is_covered(dialect: Dialect) -> None:
    """Each operation is printed in custom and in generic form, and has a piece of IR that its verifier rejects."""
    folder = HERE / "dialects" / dialect.name
    ops, invalid = (folder / "ops.mlir").read_text(), (folder / "invalid.mlir").read_text()
    checks = "\n".join(re.findall(r"^// CHECK[-A-Z]*: (.*)$", ops, re.MULTILINE))
    generic = "\n".join(re.findall(r"^// GENERIC[-A-Z]*: (.*)$", ops, re.MULTILINE))
    rejected = set(re.findall(r"^// (\w+\.\w+): ", invalid, re.MULTILINE))
    for name in sorted(op.name for op in dialect.operations):
        assert re.search(rf"(^|\W){re.escape(name)}(\W|$)", checks), f"{name} has no round trip in custom form"
        assert f'"{name}"' in generic, f"{name} has no round trip in generic form"
        assert name in rejected, f"{name} has no verifier error"
    errors = re.findall(r"^// CHECK: (?!{{)", invalid, re.MULTILINE)
    assert len(errors) == len(re.findall(r"^// -----$", invalid, re.MULTILINE)) + 1, "a piece without an error"
