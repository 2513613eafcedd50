"""`compilemask diff`: masks and IR of every level, and the pair that it names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compilemask.tools import cli
from compilemask.tools.diff import difference


def diff(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The command's status and what it prints."""
    status = cli.main(["diff", *arguments])
    captured = capsys.readouterr()
    return status, captured.out + captured.err


def test_the_first_pair_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = diff(capsys, "causal", "window", "--seq", "100")
    assert status == 1
    assert text == (
        "causal and window differ in 3,828 of 100 x 100 pairs, first in (q, kv) = (13, 0): "
        "causal shows it, window does not\n"
    )


def test_versions_of_ir(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    versions = []
    for level in ("mask", "interval", "tiling"):
        path = tmp_path / f"{level}.mlir"
        assert cli.main(["lower", "hstu", "--to", level, "-o", str(path)]) == 0
        versions.append(str(path))
    parameters = ["--seq", "300", "--keys", "333", "--param", "history=250", "--param", "contexts=40"]
    for other in versions[1:]:
        status, text = diff(capsys, versions[0], other, *parameters)
        assert (status, text) == (0, f"{versions[0]} and {other} show the same of 300 x 333 pairs\n")
    broken = tmp_path / "broken.mlir"
    broken.write_text(Path(versions[1]).read_text().replace("maxsi", "minsi", 1))
    status, text = diff(capsys, versions[0], str(broken), *parameters)
    assert status == 1
    assert "first in (q, kv) = " in text
    status, text = diff(capsys, versions[0], versions[1], "--param", "history=3", "--param", "contexts=1", "--seq", "9")
    assert status == 0
    status, text = diff(capsys, versions[1], "hstu", "--seq", "200", "--param", "history=2")
    assert (status, text.count("\n")) == (2, 1)
    assert "@hstu needs the parameter 'contexts'; give it with --param" in text


def test_files_without_a_mask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.mlir"
    path.write_text("builtin.module {\n}\n")
    assert diff(capsys, str(path), "causal") == (
        2,
        f"compilemask: {path}: expected one mask.func, tiling.func or interval.func\n",
    )
    assert "queries is 70000, at most 65536 are compared" in diff(capsys, "causal", "full", "--seq", "70000")[1]


def test_many_rows_are_compared_in_pieces() -> None:
    one = np.zeros((3000, 700), dtype=np.bool_)
    other = one.copy()
    other[2500, 699] = other[2999, 0] = True
    found = difference(lambda a, b: one[a:b], lambda a, b: other[a:b], 3000, 700)
    assert found is not None
    assert (found.q, found.kv, found.first_shows, found.pairs) == (2500, 699, False, 2)
    assert difference(lambda a, b: one[a:b], lambda a, b: one[a:b], 3000, 700) is None
