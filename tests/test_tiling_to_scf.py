"""What is lowered for the CPU, as upstream MLIR sees it: modules parse, verify and become machine code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import StringIO

import numpy as np
import pytest
import torch
from xdsl.dialects.builtin import ModuleOp, bf16, f32
from xdsl.parser import Parser
from xdsl.printer import Printer

import compilemask as cm
from compilemask.dialects.registry import make_context
from compilemask.errors import IRError, LoweringError, MissingDependencyError, TargetError
from compilemask.lowering.tiling_to_scf.attention import attention
from compilemask.lowering.tiling_to_scf.attention_backward_keys import attention_backward_keys
from compilemask.lowering.tiling_to_scf.attention_backward_queries import attention_backward_queries
from compilemask.lowering.tiling_to_scf.attention_frame import Blocks
from compilemask.lowering.tiling_to_scf.attention_pass import TilingToScfPass
from compilemask.lowering.tiling_to_scf.builder import F32, FunctionBuilder, memref
from compilemask.lowering.tiling_to_scf.exponential import exp2
from compilemask.lowering.tiling_to_tt.attention import attention_module
from compilemask.runtime.cpu import upstream_mlir
from compilemask.runtime.cpu.host_code import Arguments, compile_host_function
from compilemask.runtime.scoring import score_op

needs_mlir = pytest.mark.skipif(upstream_mlir.find() is None, reason="upstream MLIR's bindings are not installed")


EMITTED = [attention, attention_backward_queries, attention_backward_keys]


@needs_mlir
@pytest.mark.parametrize("emit", EMITTED)
@pytest.mark.parametrize("head_dim", [1, 7, 40, 64, 256])
@pytest.mark.parametrize("bits", [128, 256, 512])
def test_functions_verify_upstream(emit: Callable[[int, Blocks], str], head_dim: int, bits: int) -> None:
    upstream_mlir.verify(emit(head_dim, Blocks.choose(bits)))


@pytest.mark.parametrize("bits", [128, 256, 512])
def test_lanes_hold_the_rows(bits: int) -> None:
    widest = Blocks.choose(bits).lanes
    for rows in range(1, 129):
        lanes = Blocks.choose(bits, rows).lanes
        assert lanes >= min(rows, widest)
        assert lanes == 8 or lanes < 2 * rows


@needs_mlir
@pytest.mark.parametrize("emit", EMITTED)
@pytest.mark.parametrize("rows", [1, 9])
def test_functions_of_few_rows_verify_upstream(emit: Callable[[int, Blocks], str], rows: int) -> None:
    upstream_mlir.verify(emit(40, Blocks.choose(512, rows)))


@needs_mlir
@pytest.mark.parametrize("emit", EMITTED)
def test_xdsl_reads_what_upstream_reads(emit: Callable[[int, Blocks], str]) -> None:
    module = Parser(make_context(), emit(24, Blocks.choose(256))).parse_module()
    module.verify()
    upstream_mlir.verify(generic(module))
    assert str(Parser(make_context(), str(module)).parse_module()) == str(module)


def generic(module: ModuleOp) -> str:
    """The module in generic form, which all parsers share."""
    text = StringIO()
    Printer(text, print_generic_format=True).print_op(module)
    return text.getvalue()


@needs_mlir
def test_pass_verifies_upstream() -> None:
    module = attention_module(40, f32)
    TilingToScfPass(vector_bits=256).apply(make_context(), module)
    module.verify()
    upstream_mlir.verify(generic(module))


@pytest.mark.parametrize(
    ("module", "what"),
    [
        (attention_module(64, bf16), "f32, got bf16"),
        (attention_module(64, f32, score=score_op(cm.score.softcap(30.0).plan.text)), "modify"),
    ],
)
def test_pass_refuses_what_it_cannot_lower(module: ModuleOp, what: str) -> None:
    with pytest.raises(LoweringError, match=what):
        TilingToScfPass().apply(make_context(), module)


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


def exponentials(numbers: np.ndarray, *, through_xdsl: bool = False) -> np.ndarray:
    """2^x by a compiled function, whose text xDSL may have read and printed."""
    fb = FunctionBuilder("exponentials", {"x": memref(F32)})
    with fb.for_loop(fb.constant(0), fb.constant(len(numbers)), 16) as loop:
        fb.store(exp2(fb, fb.load(fb.arg("x"), loop.index, 16)), fb.arg("x"), loop.index)
    assert len(numbers) % 16 == 0
    text = fb.finish()
    if through_xdsl:
        text = generic(Parser(make_context(), text).parse_module())
    compile_host_function(text, "exponentials")(Arguments([torch.from_numpy(result := numbers.copy())]))
    return result


@needs_mlir
def test_xdsl_keeps_every_bit_of_constants() -> None:
    numbers = np.linspace(-130, 0, 160, dtype=np.float32)
    assert np.array_equal(exponentials(numbers, through_xdsl=True), exponentials(numbers))


@needs_mlir
def test_exponential() -> None:
    numbers = np.concatenate([np.linspace(-130, 0, 4077), np.linspace(-1e-3, 0, 16), [-np.inf, np.nan, -1e30]])
    numbers = numbers.astype(np.float32)
    result = exponentials(numbers)
    expected = np.exp2(numbers.astype(np.float64))
    normal = numbers > -126
    assert np.isnan(result[-2])
    np.testing.assert_allclose(result[normal], expected[normal], rtol=3e-7)
    assert (result[numbers <= -126] <= 2.0**-125).all()
    assert result[-3] == result[-1] == 0
