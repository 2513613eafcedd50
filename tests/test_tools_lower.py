"""`compilemask lower`: what passes do is shown, kept and reproduced; pipelines are text; it starts quickly."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compilemask.lowering.pipeline import passes_to
from compilemask.lowering.registry import print_pipeline
from compilemask.tools import cli, opt


def lower(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """What `compilemask lower` prints, and what it says beside that."""
    assert cli.main(["lower", *arguments]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_ir_around_a_pass(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = lower(capsys, "hstu", "--to", "interval", "--print-ir-before", "interval-normalize")
    assert err.startswith("// ----- IR before interval-normalize -----\nbuiltin.module {\n  interval.func @hstu")
    assert "interval.union" in err
    assert "interval.union" not in out
    _, err = lower(capsys, "hstu", "--to", "interval", "--print-ir-after", "cse", "--print-ir-before", "cse")
    assert [line for line in err.splitlines() if line.startswith("// -----")] == [
        "// ----- IR before cse -----",
        "// ----- IR after cse -----",
    ]
    _, err = lower(capsys, "hstu", "--print-ir-all")
    assert err.count("// ----- IR") == 2 * len(passes_to("tiling"))
    for when in ("before", "after"):
        _, err = lower(capsys, "hstu", f"--print-ir-{when}-all")
        assert err.count(f"// ----- IR {when}") == err.count("// ----- IR") == len(passes_to("tiling"))


def test_diff_timing_and_verification(capsys: pytest.CaptureFixture[str]) -> None:
    plain, _ = lower(capsys, "clear")
    out, err = lower(capsys, "clear", "--print-ir-diff", "--timing", "--verify-each")
    assert out == plain
    assert "--- before mask-to-interval\n+++ after mask-to-interval\n" in err
    assert "\n-  mask.func @clear" in err
    timed = [line.split()[-1] for line in err.splitlines() if " ms " in line]
    assert timed == [*(item.name for item in passes_to("tiling")), "total"]


def test_dump_holds_a_file_for_each_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = lower(capsys, "hstu", "--dump", str(tmp_path / "steps"))
    (place,) = (tmp_path / "steps").iterdir()
    assert place.name.startswith("hstu-")
    names = ["input", *(item.name for item in passes_to("tiling"))]
    assert sorted(path.name for path in place.iterdir()) == [f"{i:02}_{name}.mlir" for i, name in enumerate(names)]
    assert (place / f"{len(names) - 1:02}_interval-to-tiling.mlir").read_text() == out


def test_the_environment_asks_for_a_dump(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPILEMASK_DUMP", str(tmp_path))
    lower(capsys, "causal", "--to", "interval")
    assert len(list(tmp_path.glob("causal-*/*.mlir"))) == 1 + len(passes_to("interval"))


def test_reproducer_of_a_pipeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "reproducer.mlir"
    pipeline = "mask-to-interval,interval-normalize{max-arity=1}"
    out, _ = lower(capsys, "hstu", "--pipeline", pipeline, "--reproducer", str(saved))
    opt.main([str(saved), "--run-reproducer"])
    assert capsys.readouterr().out.strip() == out.strip()


def test_pipelines_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    expected, _ = lower(capsys, "hstu")
    text, _ = lower(capsys, "hstu", "--print-pipeline")
    assert text.strip() == print_pipeline(passes_to("tiling"))
    assert lower(capsys, "hstu", "--pipeline", text.strip())[0] == expected
    text, _ = lower(
        capsys, "hstu", "--insert-before", "interval-normalize", "cse,dce", "--insert-after", "cse", "canonicalize",
        "--print-pipeline",
    )  # fmt: skip
    assert text.strip() == (
        "mask-to-interval,cse,canonicalize,dce,interval-normalize,canonicalize,cse,interval-to-tiling"
    )
    assert lower(capsys, "hstu", "--to", "ttir", "--insert-after", "cse", "dce")[0].startswith("// count\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pipeline", "no-such-pass"], "there is no pass 'no-such-pass'; there are canonicalize, cse,"),
        (["--pipeline", "cse{"], "malformed pipeline 'cse{'"),
        (["--pipeline", "interval-normalize{width=3}"], "interval-normalize: "),
        (["--pipeline", "interval-normalize{max-arity=few}"], "interval-normalize: "),
        (["--pipeline", "interval-normalize{max-arity=-1}"], "interval-normalize: max-arity -1 is negative"),
        (["--insert-after", "dce", "cse"], "has no pass 'dce'"),
        (["--print-ir-after", "sce"], "there is no pass 'sce'"),
        (["--dump", "/dev/null/folder"], "/dev/null"),
        (["--reproducer", "/dev/null/file"], "/dev/null/file"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lower", "hstu", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1


def test_lower_starts_without_frameworks() -> None:
    code = (
        "import sys; from compilemask.tools.cli import main\n"
        "main(['lower', 'causal', '--to', 'tiling', '--timing'])\n"
        "unused = {'torch', 'triton', 'z3', 'rich', 'matplotlib', 'numpy', 'xdsl.xdsl_opt_main', 'xdsl.dialects.scf'}\n"
        "print(*sorted(unused & sys.modules.keys()), *(name for name in sys.modules if 'dialects.triton' in name))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == ""


def test_lower_starts_quickly() -> None:
    """Below a second of processor time; the best of a few runs, since other processes may disturb each other."""
    command = [sys.executable, "-m", "compilemask", "lower", "causal", "--to", "tiling"]
    seconds: list[float] = []
    while len(seconds) < 5 and min(seconds, default=9.0) >= 1.0:
        before, start = os.times(), time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        after, wall = os.times(), time.perf_counter() - start
        used = after.children_user + after.children_system - before.children_user - before.children_system
        seconds.append(min(wall, used))
    assert min(seconds) < 1.0
