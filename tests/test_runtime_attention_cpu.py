"""The CPU attention against the dense oracle, over descriptors of hand-written interval functions."""

from __future__ import annotations

import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, random_inputs
from interval_samples import SAMPLES
from test_descriptor_build_cpu import built, dense, roomy

import compilemask
from compilemask.lowering.descriptor_layout import Layout
from compilemask.runtime.calls.operator import attention
from compilemask.runtime.cpu import build_cpu
from compilemask.runtime.program import rows_of_mask


def check(name: str, queries: int, keys: int, heads: tuple[int, int], head_dim: int, dtype: torch.dtype) -> None:
    q, k, v = random_inputs(2, *heads, queries, keys, head_dim, dtype)
    out, lse = attention(q, k, v, built(name, queries, keys), return_lse=True)
    expected, expected_lse = dense_attention(q, k, v, dense(name, queries, keys))
    assert out.dtype == dtype
    assert_close(out, expected, TOLERANCE[dtype], "out")
    assert_close(lse, expected_lse, 1e-12 if dtype == torch.float64 else 1e-5, "lse")


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (17, 300), (128, 128), (137, 137), (300, 1000), (640, 200)])
def test_masks_and_lengths(name: str, queries: int, keys: int) -> None:
    check(name, queries, keys, (2, 1), 32, torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("heads", [(8, 8), (9, 3), (12, 2)])
@pytest.mark.parametrize("head_dim", [64, 128, 40])
def test_types_and_heads(dtype: torch.dtype, heads: tuple[int, int], head_dim: int) -> None:
    check("shared prompt", 150, 150, heads, head_dim, dtype)


@pytest.mark.parametrize("length", [1, 17, 128, 1000, 1024, 2300])
def test_long_rows_go_in_pieces(length: int) -> None:
    check("causal", length, length, (1, 1), 64, torch.float32)


def test_keys_that_no_row_sees_are_not_read() -> None:
    q, k, v = random_inputs(1, 2, 1, 137, 300, 16)
    expected = attention(q, k, v, built("causal", 137, 300), return_lse=True)
    k[:, :, 137:], v[:, :, 137:] = torch.nan, torch.nan
    found = attention(q, k, v, built("causal", 137, 300), return_lse=True)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_masks_per_head() -> None:
    layout = roomy(200, 200, masks=2)
    names = ("causal", "window")
    rows = [rows_of_mask(SAMPLES[name].func, SAMPLES[name].parameters(200, 200), layout) for name in names]
    q, k, v = random_inputs(3, 2, 1, 200, 200, 16, torch.float64)
    out = attention(q, k, v, build_cpu.build(layout, rows))
    visible = torch.cat([dense(name, 200, 200) for name in names], dim=1)
    assert_close(out, dense_attention(q, k, v, visible)[0], 1e-12)


def test_too_little_room_gives_nan() -> None:
    layout = Layout(1, 1, 500, 500, 128, 5, 2, shared=False)
    descriptor = build_cpu.build(layout, [rows_of_mask(SAMPLES["causal"].func, (), layout)])
    q, k, v = random_inputs(1, 1, 1, 500, 500, 16)
    out = attention(q, k, v, descriptor)
    assert out[:, :, :256].isfinite().all()
    assert out[:, :, 256:].isnan().all()


def test_strided_inputs_and_scale() -> None:
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in random_inputs(2, 4, 2, 100, 100, 16))
    expected, _ = dense_attention(q, k, v, dense("causal", 100, 100), scale=0.3)
    assert_close(attention(q, k, v, built("causal", 100, 100), scale=0.3), expected, 2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_operator_is_well_formed(dtype: torch.dtype) -> None:
    q, k, v = random_inputs(2, 2, 1, 137, 200, 16, dtype)
    descriptor = built("causal", 137, 200)
    arguments = (q, k, v, descriptor.tensors, 0.25, "", [], [])
    torch.library.opcheck(torch.ops.compilemask.attention.default, arguments)


def test_a_mask_breaks_no_compiled_model() -> None:
    q, k, v = random_inputs(1, 2, 1, 137, 137, 16)
    mask = compilemask.causal()
    traced = torch.compile(lambda q, k, v: attention(q * 2, k, v, mask) * 2, backend="aot_eager")
    assert torch.equal(traced(q, k, v), attention(q * 2, k, v, mask) * 2)


def test_traced_by_torch_compile() -> None:
    q, k, v = random_inputs(1, 2, 1, 137, 137, 16)
    descriptor = built("causal", 137, 137)
    traced = torch.compile(lambda q, k, v: attention(q, k, v, descriptor) * 2, backend="aot_eager", fullgraph=True)
    assert torch.equal(traced(q, k, v), attention(q, k, v, descriptor) * 2)
