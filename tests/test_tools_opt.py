"""The driver `compilemask-opt`: its passes, and faults in a few lines instead of a traceback."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from compilemask.lowering.pipeline import passes_to
from compilemask.lowering.registry import known_passes
from compilemask.tools.opt import main

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
    known = known_passes()
    for item in passes_to("tiling"):
        assert known[item.name]() is type(item)


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
        (ALL, ["-p", "canonicalize{"], "malformed pipeline 'canonicalize{'"),
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


def test_text_in_another_encoding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mask.mlir").write_bytes(b"\xff\xfe")
    with pytest.raises(SystemExit):
        main([str(tmp_path / "mask.mlir")])
    assert capsys.readouterr().err == "compilemask-opt: the input is not UTF-8 text\n"


def test_what_passes_do_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "all.mlir"
    path.write_text(ALL)
    arguments = [str(path), "-p", "mask-to-interval,cse", "--print-ir-after", "cse", "--time-passes", "--verify-each"]
    assert run(monkeypatch, *arguments) == 0
    error = capsys.readouterr().err
    assert "IR after cse" in error
    assert "IR after mask-to-interval" not in error
    assert "total" in error


def test_a_reproducer_gives_the_same_ir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, saved = tmp_path / "all.mlir", tmp_path / "reproducer.mlir"
    path.write_text(ALL)
    passes = "mask-to-interval,interval-normalize{max-arity=3}"
    assert run(monkeypatch, str(path), "-p", passes, "--reproducer", str(saved)) == 0
    expected = capsys.readouterr().out
    assert passes in saved.read_text().splitlines()[0]
    assert run(monkeypatch, str(saved), "--run-reproducer") == 0
    assert capsys.readouterr().out == expected
    assert run(monkeypatch, str(path), "--run-reproducer") == 1
    assert "is no reproducer" in capsys.readouterr().err


def test_a_fault_is_shown_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.mlir"
    path.write_text(BAND)
    assert run(monkeypatch, str(path)) == 1
    assert capsys.readouterr().err.splitlines()[1:] == ["      %r = mask.band", "      ^"]
