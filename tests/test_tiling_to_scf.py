"""What is lowered for the CPU, as upstream MLIR sees it: modules parse, verify and become machine code."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from compilemask.errors import IRError, MissingDependencyError, TargetError
from compilemask.lowering.tiling_to_scf import attention
from compilemask.lowering.tiling_to_scf.attention_frame import Blocks
from compilemask.lowering.tiling_to_scf.builder import F32, FunctionBuilder, memref
from compilemask.lowering.tiling_to_scf.exponential import exp2
from compilemask.runtime import upstream_mlir
from compilemask.runtime.host_code import Arguments, compile_host_function

needs_mlir = pytest.mark.skipif(upstream_mlir.find() is None, reason="upstream MLIR's bindings are not installed")


@needs_mlir
@pytest.mark.parametrize("head_dim", [1, 7, 40, 64, 256])
@pytest.mark.parametrize("bits", [128, 256, 512])
def test_attention_verifies_upstream(head_dim: int, bits: int) -> None:
    upstream_mlir.verify(attention.attention(head_dim, Blocks.choose(bits)))


@needs_mlir
def test_faults_are_told() -> None:
    with pytest.raises(IRError, match="upstream MLIR"):
        upstream_mlir.verify("module { func.func @f() { %0 = arith.addi %1, %1 : i32 return } }")
    with pytest.raises(TargetError, match="cannot compile"):
        compile_host_function("module { func.func @f() { return", "f")


@pytest.fixture
def without_mlir(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in upstream_mlir.PACKAGES:
        monkeypatch.setitem(sys.modules, f"{package}.ir", None)
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(upstream_mlir, "find", upstream_mlir.find.__wrapped__)


@pytest.mark.usefixtures("without_mlir")
def test_without_bindings() -> None:
    assert upstream_mlir.find() is None
    with pytest.raises(MissingDependencyError, match=r"compilemask\[mlir\]"):
        upstream_mlir.verify("module {}")


@needs_mlir
def test_exponential() -> None:
    numbers = np.concatenate([np.linspace(-130, 0, 4077), np.linspace(-1e-3, 0, 16), [-np.inf, np.nan, -1e30]])
    numbers = numbers.astype(np.float32)
    fb = FunctionBuilder("exponentials", {"x": memref(F32)})
    with fb.for_loop(fb.constant(0), fb.constant(len(numbers)), 16) as loop:
        fb.store(exp2(fb, fb.load(fb.arg("x"), loop.index, 16)), fb.arg("x"), loop.index)
    assert len(numbers) % 16 == 0
    arguments = Arguments([torch.from_numpy(result := numbers.copy())])
    compile_host_function(fb.finish(), "exponentials")(arguments)
    expected = np.exp2(numbers.astype(np.float64))
    normal = numbers > -126
    assert np.isnan(result[-2])
    np.testing.assert_allclose(result[normal], expected[normal], rtol=3e-7)
    assert (result[numbers <= -126] <= 2.0**-125).all()
    assert result[-3] == result[-1] == 0
