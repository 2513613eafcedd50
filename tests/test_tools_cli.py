"""The command line: its output, its one-line errors and its exit status."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import compilemask as cm
from compilemask.tools import cli
from compilemask.tools.examples import EXAMPLES, HEADLINES, SAMPLES

CAUSAL = (SAMPLES / "causal.mlir").read_text()


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must fail; the one line that it prints."""
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    lines = [line for line in captured.err.strip().splitlines() if not line.startswith(("usage:", " "))]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("level", ["mask", "interval", "tiling"])
def test_lower_every_name(name: str, level: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lower", name, "--to", level]) == 0
    assert f"{level}.func @" in capsys.readouterr().out


def test_lower_a_file_and_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.mlir"
    path.write_text(CAUSAL)
    assert cli.main(["lower", str(path), "--to", "interval", "-o", str(tmp_path / "out.mlir")]) == 0
    written = (tmp_path / "out.mlir").read_text()
    assert "interval.func @causal" in written
    monkeypatch.setattr("sys.stdin", io.StringIO(CAUSAL))
    assert cli.main(["lower", "-", "--to", "interval"]) == 0
    assert capsys.readouterr().out == written


def test_lower_to_triton_ir(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lower", "causal", "--to", "ttir"]) == 0
    assert "tt.func" in capsys.readouterr().out


@pytest.mark.parametrize("name", HEADLINES)
def test_samples_say_what_the_constructors_say(name: str) -> None:
    example = EXAMPLES[name]
    written = cm.load(SAMPLES / f"{name}.mlir", **example.parameters(300))
    assert torch.equal(written.dense(300, 300), example.mask(300).dense(300, 300))


def test_errors_name_file_line_and_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.mlir"
    path.write_text("mask.func @m() -> !mask.region {\n  %m = mask.bond\n  mask.return %m\n}\n")
    assert fails(["lower", str(path)], capsys).startswith(f"{path}:2:")
    cli.main(["lower", str(path)])
    assert capsys.readouterr().err.splitlines()[1:] == ["      %m = mask.bond", "      ^"]
    path.write_bytes(b"\xff\xfe\x00")
    assert fails(["lower", str(path)], capsys).startswith(f"{path}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lower", "casual"], "no mask is named 'casual'; there are full, causal,"),
        (["lower", "missing.mlir"], "missing.mlir: cannot be read: No such file"),
        (["lower", "."], ".: cannot be read: Is a directory"),
        (["lower", "hstu", "--param", "tokens=3"], "hstu has no parameter 'tokens'; it takes history, contexts"),
        (["lower", "hstu", "--param", "history"], "expected NAME=INTEGER"),
        (["lower", "hstu", "--param", "history=many"], "expected NAME=INTEGER"),
        (["lower", "hstu", "--to", "assembly"], "invalid choice: 'assembly'"),
        (["lower", "hstu", "--to", "ptx", "--target", "abacus:1"], "abacus:1"),
        (["lower", "hstu", "--to", "ptx", "--target", "hip:gfx942"], "ptx is code for a cuda target"),
        (["draw", "hstu", "--seq", "0"], "expected a positive integer"),
        (["draw", "hstu", "--seq", "many"], "expected a positive integer"),
        (["draw", "causal", "-o", "no/such/folder/mask.png"], "no/such/folder/mask.png"),
        (["paint"], "invalid choice: 'paint'"),
        ([], "required: command"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in fails(arguments, capsys)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "compilemask", "lower", "causal"]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 2
    assert result.stderr == "compilemask: the output: No space left on device\n"


@pytest.mark.parametrize("module", ["compilemask", "compilemask.tools.opt"])
def test_closed_streams_are_one_line(module: str, tmp_path: Path) -> None:
    (tmp_path / "empty.mlir").write_text("builtin.module {\n}\n")
    command = f"{sys.executable} -m {module} {'lower ' if module == 'compilemask' else ''}"
    for rest, message in ((f"{tmp_path}/empty.mlir >&-", "the standard output is closed\n"), ("- <&-", None)):
        result = subprocess.run(command + rest, shell=True, capture_output=True, text=True)
        assert "Traceback" not in result.stderr
        assert message is None or (result.returncode, result.stderr) == (2 - ("opt" in module), message)


def test_an_interrupted_command_says_nothing() -> None:
    command, pipe = [sys.executable, "-m", "compilemask", "verify", "-"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        time.sleep(3)  # it waits for its input
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "", "")


def test_only_main_imports_what_takes_time() -> None:
    """Ctrl-C while that is imported gives no traceback either."""
    code = "import sys, compilemask.tools.cli; print({'argparse', 'xdsl', 'numpy'} & sys.modules.keys())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"


def test_more_than_there_is_memory_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def explain(*_: object) -> None:
        raise MemoryError("Unable to allocate 568. GiB")

    monkeypatch.setattr("compilemask.runtime.explanation.explain", explain)
    assert cli.main(["explain", "causal"]) == 2
    assert capsys.readouterr().err.startswith("compilemask: there is not enough memory for that: Unable to allocate")


def test_unexpected_error_hints_at_the_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(options: object) -> int:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(cli, "_list", broken)
    monkeypatch.delenv(cli.TRACEBACK, raising=False)
    line = fails(["list"], capsys)
    assert "ZeroDivisionError: division by zero" in line
    assert cli.TRACEBACK in line
    monkeypatch.setenv(cli.TRACEBACK, "1")
    with pytest.raises(ZeroDivisionError):
        cli.main(["list"])


def test_list_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == set(EXAMPLES)
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("compilemask 0.")


def test_doctor_reports_versions_and_cache(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    for subject in ("python", "torch", "triton", "xdsl", "device", "cache"):
        assert subject in out


def test_a_closed_pipe_is_quiet() -> None:
    command = f"'{sys.executable}' -m compilemask lower clear --to tiling | head -n 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert result.stderr == ""
    assert len(result.stdout.splitlines()) == 1


def test_kernels_print_without_locations_in_custom_syntax(capsys: pytest.CaptureFixture[str]) -> None:
    for level in ("ttir", "ttgir"):
        assert cli.main(["lower", "causal", "--to", level]) == 0
        out = capsys.readouterr().out
        assert "tt.func public @causal_count" in out
        assert "tt.func public @attention" in out
        assert "loc(" not in out
        assert "#loc" not in out
        assert '"tt.' not in out.replace('"tt.reduce"', "").replace('"tt.scan"', "")  # those have no other syntax
