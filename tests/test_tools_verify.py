"""`compilemask verify`: levels that agree, and faults that it must find and name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from compilemask.dialects import interval
from compilemask.errors import MaskError
from compilemask.language.text import parse_module
from compilemask.runtime.cpu.build_cpu import IntervalSet
from compilemask.tools import cli, verify
from compilemask.tools.verify import first_difference, verify_module

SET = "(%q: i32, %queries: i32, %keys: i32, %n: i32) -> !interval.set<2>"
INTERVALS = f"""
interval.func @m{SET} {{
  %zero = arith.constant 0 : i32
  %a = interval.range %zero to %n
  %b = interval.range %n to %q
  %s = interval.concat %a, %b : (!interval.set<1>, !interval.set<1>) -> !interval.set<2>
  interval.return %s : !interval.set<2>
}}
"""


@pytest.mark.parametrize("name", ["hstu", "document", "clear"])
def test_levels_agree(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", name, "--trials", "9"]) == 0
    assert capsys.readouterr().out == (f"@{name}: mask, interval, tiling, descriptor, kernels agree on 9 inputs\n")


def test_an_interval_function_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "m.mlir"
    path.write_text(INTERVALS)
    assert cli.main(["verify", str(path), "--trials", "5"]) == 0
    assert "@m: given interval, interval, tiling" in capsys.readouterr().out


def test_parameters_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "box2d", "--trials", "2", "--param", "width=7", "--param", "height=9"]) == 0


def test_a_wrong_lowering_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = verify.lower

    def wrong(module: ModuleOp, to: str) -> ModuleOp:
        lowered = usual(module, to)
        for op in lowered.walk():
            if isinstance(op, interval.RangeOp):
                op.operands[1] = op.lo  # nothing is visible
        return lowered

    monkeypatch.setattr(verify, "lower", wrong)
    (found,) = verify_module(parse_module("mask.func @m() -> !mask.region {\n%r = mask.all\nmask.return %r\n}"), 5)
    assert found.difference is not None
    assert found.inputs == 1
    assert "mask and interval differ" in str(found.difference)
    assert "query 0 sees key 0 at the level mask and does not at the level interval" in str(found.difference)


def test_a_wrong_descriptor_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = IntervalSet.words
    monkeypatch.setattr(IntervalSet, "words", lambda self, rows, start: words(self, rows, start) & ~1)
    assert cli.main(["verify", "hstu"]) == 1
    out = capsys.readouterr().out
    assert "mask and descriptor differ for" in out
    assert "history=" in out


def test_nothing_to_verify() -> None:
    with pytest.raises(MaskError, match=r"no mask.func and no interval\.func"):
        list(verify_module(ModuleOp([]), 1))


def test_impossible_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "box2d.mlir"]) == 2
    assert cli.main(["verify", "clear.mlir", "--param", "width=0"]) == 2
    assert "no valid parameters found for @clear" in capsys.readouterr().err


def test_first_difference_is_a_pair() -> None:
    one = np.zeros((3, 4), dtype=np.bool_)
    other = one.copy()
    assert first_difference(one, other) is None
    other[2, 1] = other[1, 3] = True
    assert first_difference(one, other) == (1, 3)
