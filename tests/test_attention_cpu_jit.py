"""Attention on the CPU by a compiled function, against the dense oracle and against PyTorch's operations."""

from __future__ import annotations

import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, random_inputs
from interval_samples import SAMPLES
from test_descriptor_build_cpu import built, dense

import compilemask as cm
from compilemask.lowering.descriptor_layout import Layout
from compilemask.runtime.cpu import attention_cpu, attention_cpu_jit, build_cpu, upstream_mlir
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.program import rows_of_mask

pytestmark = pytest.mark.skipif(upstream_mlir.find() is None, reason="upstream MLIR's bindings are not installed")
GRID = [(1, 1), (17, 300), (128, 128), (137, 137), (300, 1000), (640, 200)]


@pytest.fixture(autouse=True)
def only_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared with the oracle came from the compiled function."""

    def refuse(*_: object) -> None:
        raise AssertionError("operations of PyTorch were used")

    monkeypatch.setattr(attention_cpu, "_attend", refuse)


def check(
    descriptor: Descriptor, visible: torch.Tensor, heads: tuple[int, int], head_dim: int, dtype: torch.dtype
) -> None:
    q, k, v = random_inputs(2, *heads, visible.shape[-2], visible.shape[-1], head_dim, dtype, seed=head_dim)
    out, lse = cm.attention(q, k, v, descriptor, return_lse=True)
    expected, expected_lse = dense_attention(q, k, v, visible)
    assert out.dtype == dtype
    assert_close(out, expected, TOLERANCE[dtype], "out")
    assert_close(lse, expected_lse, 1e-5, "lse")


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize(("queries", "keys"), GRID)
@pytest.mark.parametrize("rows", [128, 48])
def test_masks_and_lengths(name: str, queries: int, keys: int, rows: int) -> None:
    check(built(name, queries, keys, rows), dense(name, queries, keys), (2, 1), 32, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("heads", [(8, 8), (9, 3), (12, 2)])
@pytest.mark.parametrize("head_dim", [1, 13, 64, 256])
def test_types_and_heads(dtype: torch.dtype, heads: tuple[int, int], head_dim: int) -> None:
    check(built("shared prompt", 150, 150), dense("shared prompt", 150, 150), heads, head_dim, dtype)


@pytest.mark.parametrize("bits", ["AVX2", "DEFAULT"])
def test_narrower_vectors(bits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: bits)
    check(built("window", 300, 300), dense("window", 300, 300), (2, 1), 20, torch.float32)


@pytest.mark.parametrize("bits", ["AVX512", "AVX2", "DEFAULT"])
@pytest.mark.parametrize("queries", [1, 8, 9, 16, 31])
def test_few_rows(queries: int, bits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: bits)
    mask = cm.window(100, 0).shift(rows=queries - 700)
    descriptor = cm.compile(mask).descriptor(queries, 700)
    check(descriptor, mask.dense(queries, 700), (2, 1), 20, torch.float32)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_share_the_work(threads: int) -> None:
    q, k, v = random_inputs(2, 4, 2, 700, 700, 32)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        found = cm.attention(q, k, v, built("causal", 700, 700))
    finally:
        torch.set_num_threads(before)
    assert_close(found, dense_attention(q, k, v, dense("causal", 700, 700))[0], 2e-5)


def test_masks_per_batch_and_head() -> None:
    layout = Layout(2, 2, 200, 200, 128, 64, 32, shared=False)
    names = ("causal", "window", "shared prompt", "causal")
    rows = [rows_of_mask(SAMPLES[name].func, SAMPLES[name].parameters(200, 200), layout) for name in names]
    visible = torch.cat([dense(name, 200, 200) for name in names]).view(2, 2, 200, 200)
    check(build_cpu.build(layout, rows), visible, (2, 1), 16, torch.float32)


def test_rows_that_see_nothing_and_keys_that_nobody_sees() -> None:
    mask = cm.rows(40, 60) & cm.cols(0, 100)
    q, k, v = random_inputs(1, 2, 1, 137, 300, 16)
    k[:, :, 100:], v[:, :, 100:] = torch.nan, torch.inf
    out, lse = cm.attention(q, k, v, mask, return_lse=True)
    seeing = torch.zeros(137, dtype=torch.bool)
    seeing[40:60] = True
    assert torch.equal(out[:, :, ~seeing], torch.zeros(1, 2, 117, 16))
    assert (lse[:, :, ~seeing] == -torch.inf).all()
    expected, expected_lse = dense_attention(q, k, v, mask.dense(137, 300))
    assert_close(out, expected, 2e-5)
    assert_close(lse, expected_lse, 1e-5)


def test_faults_of_inputs_are_seen() -> None:
    q, k, v = random_inputs(1, 1, 1, 200, 200, 16)
    k[:, :, 150, 3], v[:, :, 60, 2] = torch.nan, torch.inf
    out = cm.attention(q, k, v, cm.full())
    assert out.isnan().all()
    out = cm.attention(q, torch.zeros_like(k), v, cm.full())
    assert (out[..., 2] == torch.inf).all()


def test_too_little_room_gives_nan() -> None:
    layout = Layout(1, 1, 500, 500, 128, 5, 2, shared=False)
    descriptor = build_cpu.build(layout, [rows_of_mask(SAMPLES["causal"].func, (), layout)])
    out, lse = cm.attention(*random_inputs(1, 1, 1, 500, 500, 16), descriptor, return_lse=True)
    assert out[:, :, :256].isfinite().all()
    assert out[:, :, 256:].isnan().all()
    assert lse[:, :, 256:].isnan().all()


@pytest.mark.parametrize("scale", [0.3, 0.0, -0.5])
def test_strided_inputs_and_scales(scale: float) -> None:
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in random_inputs(2, 4, 2, 100, 100, 16))
    k = k.transpose(2, 3).contiguous().transpose(2, 3)
    expected, _ = dense_attention(q, k, v, dense("causal", 100, 100), scale=scale)
    assert_close(cm.attention(q, k, v, built("causal", 100, 100), scale=scale), expected, 2e-5)


@pytest.mark.parametrize("size", [1e-3, 30.0])
def test_small_and_large_scores(size: float) -> None:
    q, k, v = random_inputs(1, 1, 1, 150, 400, 32)
    expected, _ = dense_attention(q * size, k, v, dense("causal", 150, 400))
    assert_close(cm.attention(q * size, k, v, built("causal", 150, 400)), expected, 2e-5)


def test_long_rows() -> None:
    q, k, v = random_inputs(1, 1, 1, 2300, 2300, 24)
    expected, _ = dense_attention(q, k, v, dense("causal", 2300, 2300))
    assert_close(cm.attention(q, k, v, built("causal", 2300, 2300)), expected, 2e-5)


def test_other_types_and_modified_scores_go_elsewhere() -> None:
    q, _, _ = random_inputs(1, 1, 1, 16, 16, 16)
    assert attention_cpu_jit.takes(q, attention_cpu.UNMODIFIED)
    assert not attention_cpu_jit.takes(q.double(), attention_cpu.UNMODIFIED)
