"""The driver `compilemask-opt`: its passes, and faults in a few lines instead of a traceback."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from compilemask.lowering.pipeline import passes_to
from compilemask.tools.opt import all_passes, main

BAND = "mask.func @m() -> !mask.region {\n  %r = mask.band\n  mask.return %r\n}\n"
ALL = BAND.replace("mask.band", "mask.all")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The command's exit code."""
    monkeypatch.setattr(sys, "argv", ["compilemask-opt", *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_every_pass_of_the_pipeline_has_a_name() -> None:
    known = all_passes()
    for item in passes_to("tiling"):
        assert known[item.name] is type(item)


def test_masks_are_lowered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "all.mlir"
    path.write_text(ALL)
    passes = ",".join(item.name for item in passes_to("tiling"))
    assert run(monkeypatch, str(path), "-p", passes) == 0
    assert "tiling.func @" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (BAND, [], ":2:3: mask.band needs a lower or an upper bound"),
        (f"{ALL}// -----\n{BAND}", ["--split-input-file"], ":7:3: mask.band needs a lower or an upper bound"),
        ("mask.func @m", [], ":1:13: "),
        (ALL, ["-p", "no-such-pass"], "no-such-pass"),
        (ALL, ["-p", "canonicalize{"], "Expected argument name"),
    ],
)
def test_faults(
    text: str,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "bad.mlir"
    path.write_text(text)
    assert run(monkeypatch, str(path), *arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("compilemask-opt: ")
    assert message in error


def test_missing_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "missing.mlir") == 1
    assert "missing.mlir" in capsys.readouterr().err
