"""The tutorial works as it is written: its files in an empty folder, its commands in order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parent.parent / "docs" / "tutorial.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?:#|//) ([\w./]+\.\w+)\n")
SCRIPTS = {"compilemask": "compilemask", "compilemask-opt": "compilemask.tools.opt"}


def write_files(folder: Path) -> list[str]:
    """Write each file that the tutorial shows; the commands that it gives."""
    commands: list[str] = []
    for language, body in FENCE.findall(TUTORIAL.read_text()):
        if language == "sh":
            commands += [line.removeprefix("$ ") for line in body.splitlines()]
            continue
        name = NAMED.match(body)
        assert name, f"a block of the tutorial names no file:\n{body}"
        path = folder / name[1]
        path.parent.mkdir(exist_ok=True)
        path.write_text(body)
    return commands


def arguments(command: str) -> list[str]:
    """A command of the tutorial, run by this Python; packages go to the folder `site` and are built without a net."""
    program, *rest = shlex.split(command)
    if program == "pip":
        options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", "site"]
        return [sys.executable, "-m", "pip", "--disable-pip-version-check", *rest, *options]
    if program == "python":
        return [sys.executable, *rest]
    return [sys.executable, "-m", SCRIPTS[program], *rest]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each command prints."""
    folder = tmp_path_factory.mktemp("tutorial")
    commands = write_files(folder)
    path = os.pathsep.join(filter(None, (str(folder / "site"), os.environ.get("PYTHONPATH"))))
    found: dict[str, str] = {}
    for command in commands:
        # The sources beside the scripts must not be what is imported: only the installed package counts.
        result = subprocess.run(
            arguments(command),
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        found[command] = result.stdout + result.stderr
    return found


def test_the_operation_is_lowered_and_proved(outputs: dict[str, str]) -> None:
    assert "interval.between" in outputs["compilemask lower nested.mlir --to interval --print-ir-diff"]
    proof = outputs["compilemask prove nested.mlir"]
    assert "predicate" in proof
    assert "proved" in proof
    assert "unknown" not in proof
    assert "pairs visible" in outputs["compilemask draw nested.mlir --param reach=512 -o nested.png"]


def test_the_pass_is_inserted_by_name(outputs: dict[str, str]) -> None:
    insert = "--insert-before mask-to-interval sparse-absorb"
    lowered = outputs[f"compilemask lower nested.mlir --to interval {insert}"]
    assert "interval.family" in lowered
    assert "interval.between" not in lowered
    assert outputs[f"compilemask lower nested.mlir {insert} --print-pipeline"].startswith("sparse-absorb,mask-to-")
    proved = outputs["compilemask-opt nested.mlir -p sparse-absorb,mask-to-interval,interval-normalize,prove"]
    assert 'proved = ["lines"]' in proved


def test_the_gain_is_measured(outputs: dict[str, str]) -> None:
    assert re.fullmatch(r"\d+ ms -> \d+ ms\n", outputs["python measure.py"])
