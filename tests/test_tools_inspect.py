"""`compilemask inspect`: numbers of machine code, with and without the tool that tells them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import compilemask as cm
from compilemask.errors import LoweringError
from compilemask.language.text import parse_module
from compilemask.runtime.gpu import machine_code
from compilemask.runtime.gpu.compile_kernel import Options, compile_kernel
from compilemask.tools import cli
from compilemask.tools.inspect import HOPPER, PORTABLE, SPLIT, kernels_of

SPILLING = """
module {
  tt.func public @spilling(%p: !tt.ptr<f32>) {
    %r = tt.make_range {end = 16384 : i32, start = 0 : i32} : tensor<16384xi32>
    %s = tt.splat %p : !tt.ptr<f32> -> tensor<16384x!tt.ptr<f32>>
    %a = tt.addptr %s, %r : tensor<16384x!tt.ptr<f32>>, tensor<16384xi32>
    %x = tt.load %a : tensor<16384x!tt.ptr<f32>>
    "tt.reduce"(%x) <{axis = 0 : i32}> ({
    ^bb0(%b: f32, %c: f32):
      %d = arith.addf %b, %c : f32
      tt.reduce.return %d : f32
    }) : (tensor<16384xf32>) -> f32
    %y = math.exp %x : tensor<16384xf32>
    tt.store %a, %y : tensor<16384x!tt.ptr<f32>>
    tt.return
  }
}
"""


def test_numbers_of_every_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "hstu", "--head-dim", "64", "--dtype", "float16"]) == 0
    title, *rows = capsys.readouterr().out.splitlines()
    assert title.split()[:3] == ["kernel", "warps", "registers"]
    assert [row.split()[0] for row in rows] == [*PORTABLE, *HOPPER]
    for row in rows:
        name, warps, registers, _, _, shared, ptx, sass, text = row.split()
        assert int(warps) in ((12,) if name in HOPPER else (4, 8))
        assert re.fullmatch("[0-9a-f]{8}", text)
        assert 16 <= int(registers) <= 255
        assert 0 <= int(shared) <= 232448
        assert int(ptx) > 0
        assert int(sass) > 0


@pytest.mark.parametrize(
    ("target", "head_dim", "dtype"),
    [("cuda:90", 60, "float16"), ("cuda:90", 136, "float16"), ("cuda:90", 64, "float32"), ("cuda:80", 64, "float16")],
)
def test_where_there_is_no_hopper_kernel(target: str, head_dim: int, dtype: str) -> None:
    assert list(kernels_of(cm.causal(), target, head_dim, dtype)) == list(PORTABLE)
    for name in HOPPER:
        with pytest.raises(LoweringError, match=f"there is no {name} "):
            kernels_of(cm.causal(), target, head_dim, dtype, [name])


@pytest.mark.parametrize("name", ["count", *SPLIT, *HOPPER])
def test_ir_is_what_was_given_to_triton(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["inspect", "causal", "--head-dim", "64", "--kernel", name, "--ir"]) == 0
    heading, _, text = capsys.readouterr().out.partition("\n")
    assert heading == f"// {name}"
    with cm.debug(dump=tmp_path):
        assert cli.main(["inspect", "causal", "--head-dim", "64", "--kernel", name]) == 0
    digest = capsys.readouterr().out.split()[-1]
    (given,) = (tmp_path / "kernels").glob(f"*-cuda90-{digest}.mlir")
    assert parse_module(text).is_structurally_equivalent(parse_module(given.read_text()))


def test_ptx_of_a_hopper_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "causal", "--head-dim", "64", "--kernel", "hopper-attention", "--ptx"]) == 0
    text = capsys.readouterr().out
    for word in (".target sm_90a", "wgmma.mma_async", "cp.async.bulk.tensor", "setmaxnreg"):
        assert word in text


def compiled(num_warps: int, target: str = "cuda:90") -> machine_code.MachineCode:
    return machine_code.machine_code(compile_kernel(SPILLING, target, Options(num_warps)))


def test_spills_are_counted() -> None:
    code = compiled(num_warps=1)
    assert code.registers
    assert code.stack_bytes
    assert code.spills
    assert code.instructions
    assert code.spills < code.instructions
    assert not compiled(num_warps=8).spills


def test_ptx_and_sass(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "causal", "--kernel", "count", "--ptx", "--target", "cuda:80"]) == 0
    assert ".target sm_80" in capsys.readouterr().out
    assert cli.main(["inspect", "causal", "--kernel", "count", "--sass", "--target", "cuda:80"]) == 0
    assert re.search(r"Function : causal_count.*EXIT", capsys.readouterr().out, re.DOTALL)


def test_without_cuobjdump(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "cuobjdump", lambda: None)
    assert cli.main(["inspect", "causal", "--kernel", "count"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[2:5] == ["-", "-", "-"]
    assert cli.main(["inspect", "causal", "--kernel", "count", "--sass"]) == 2
    assert "SASS needs cuobjdump" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "hip:gfx942"], "ptx is code for a cuda target"),
        (["--target", "cuda:1"], "unknown target 'cuda:1'"),
        (["--head-dim", "257"], "head_dim is 257"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "causal", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1


def test_only_triton_ir_for_cuda_has_machine_code() -> None:
    with pytest.raises(cm.TargetError, match="known for cuda targets"):
        compiled(num_warps=8, target="hip:gfx942")
