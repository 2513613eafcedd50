"""A flash-attention kernel written with the builder: right in numpy, and compiled by Triton for every target."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from compilemask.dialects.registry import make_context
from compilemask.dialects.semantics.triton import run_kernel
from compilemask.dialects.triton.printing import print_generic
from compilemask.lowering.tiling_to_tt.builder import Arg, KernelBuilder, Value, bf16, f32, i32, ptr

BLOCK_Q, BLOCK_KV, HEAD_DIM = 64, 32, 64


def causal_attention() -> ModuleOp:
    """One program per tile of queries and head: out = softmax(causal q k^T * scale) v, [heads, n, HEAD_DIM]."""
    args = [Arg(name, ptr(bf16), divisibility=16) for name in ("q", "k", "v", "out")]
    kb = KernelBuilder("causal_attention", [*args, Arg("lse", ptr(f32)), Arg("n", i32), Arg("scale_log2", f32)])
    n, scale = kb.arg("n"), kb.arg("scale_log2")
    head = kb.program_id(1) * n
    rows = (kb.program_id(0) * BLOCK_Q + kb.arange(0, BLOCK_Q)).named("rows")
    dims = kb.arange(0, HEAD_DIM)[None, :]

    def tile(name: str, index: Value) -> tuple[Value, Value]:
        return kb.arg(name) + (head + index)[:, None] * HEAD_DIM + dims, (index < n)[:, None]

    q = kb.load(*tile("q", rows), other=0.0).named("q_tile")
    start = [kb.full((BLOCK_Q,), -math.inf, f32), kb.zeros((BLOCK_Q,), f32), kb.zeros((BLOCK_Q, HEAD_DIM), f32)]
    end = kb.minimum((kb.program_id(0) + 1) * BLOCK_Q, n)
    with kb.for_loop(0, end, BLOCK_KV, start) as loop:
        peak, total, acc = loop.carried
        cols = (loop.index + kb.arange(0, BLOCK_KV)).named("cols")
        keys = kb.load(*tile("k", cols), other=0.0)
        visible = (cols[None, :] <= rows[:, None]) & (cols < n)[None, :]
        scores = kb.where(visible, kb.dot(q, kb.trans(keys)) * scale, -math.inf).named("scores")
        new_peak = kb.maximum(peak, kb.reduce(scores, 1, "max"))
        shift = kb.where(new_peak == -math.inf, 0.0, new_peak)
        p = kb.exp2(scores - shift[:, None])
        rescale = kb.exp2(peak - shift)
        values = kb.load(*tile("v", cols), other=0.0)
        acc = kb.dot(kb.cast(p, bf16), values, acc * rescale[:, None])
        loop.yield_(new_peak, total * rescale + kb.reduce(p, 1, "sum"), acc)
    peak, total, acc = loop.results
    pointer, inside = tile("out", rows)
    kb.store(pointer, kb.cast(acc / total[:, None], bf16), mask=inside)
    kb.store(kb.arg("lse") + head + rows, peak + kb.log2(total), mask=rows < n)
    return kb.finish()


@pytest.mark.parametrize("n", [1, 64, 100])
def test_agrees_with_numpy(n: int) -> None:
    rng = np.random.default_rng(n)
    heads, scale = 2, 1 / math.sqrt(HEAD_DIM)
    q, k, v = (_bf16(rng.normal(size=(heads, n, HEAD_DIM))) for _ in range(3))
    out, lse = np.full((heads, n, HEAD_DIM), np.nan, np.float32), np.full((heads, n), np.nan, np.float32)
    grid = (-(-n // BLOCK_Q), heads)
    run_kernel(causal_attention(), grid, [q, k, v, out, lse, n, scale * math.log2(math.e)], seed=0)
    scores = np.where(np.tri(n, dtype=bool), np.einsum("hqd,hkd->hqk", q, k) * scale, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    total = weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(out, weights / total @ v, atol=2e-2, rtol=2e-2)
    np.testing.assert_allclose(lse * math.log(2), np.log(total[..., 0]) + scores.max(-1), atol=1e-4, rtol=1e-4)


def _bf16(values: np.ndarray) -> np.ndarray:
    from compilemask.dialects.semantics.triton_memory import round_bf16

    return round_bf16(values.astype(np.float32))


def test_text_round_trips() -> None:
    module = causal_attention()
    for text in (str(module), print_generic(module)):
        again = Parser(make_context(), text).parse_module()
        again.verify()
        assert print_generic(again) == print_generic(module)


@pytest.mark.parametrize(
    ("backend", "arch", "binary"),
    [
        ("cuda", 80, "cubin"),
        ("cuda", 90, "cubin"),
        ("cuda", 100, "cubin"),
        ("cuda", 120, "cubin"),
        ("hip", "gfx942", "hsaco"),
    ],
)
def test_triton_compiles_it(
    backend: str, arch: int | str, binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = pytest.importorskip("triton")
    compiler = pytest.importorskip("triton.backends.compiler")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "causal_attention.ttir"
    path.write_text(print_generic(causal_attention()))
    target = compiler.GPUTarget(backend, arch, 32 if backend == "cuda" else 64)
    compiled = triton.compile(str(path), target=target, options={"num_warps": 4, "num_stages": 2})
    assert len(compiled.asm[binary]) > 1000
    assert "tt.divisibility = 16" in compiled.asm["ttgir"]
