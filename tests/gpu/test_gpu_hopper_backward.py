"""The Hopper backward kernel on the GPU against the oracle's gradients and the portable kernels'."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from compare import assert_close, dense_attention, dense_gradients, random_inputs
from sample_masks import MASKS
from test_gpu_attention import HEADLINES, HEADS, SIZES, dense
from test_gpu_backward import TOLERANCE, check_untouched, poison
from test_gpu_hopper import TYPES

import compilemask as cm
from compilemask.lowering.tiling_to_ttg.attention_backward import HopperBackwardConfig
from compilemask.runtime.calls.gradient_inputs import GradientInputs
from compilemask.runtime.gpu.attention_backward_cuda import attention_backward_cuda
from compilemask.runtime.gpu.attention_cuda import ELEMENTS
from compilemask.runtime.gpu.hopper import has_hopper_kernel
from compilemask.runtime.gpu.hopper_backward import attention_backward_hopper
from compilemask.runtime.gpu.hopper_backward_queries import queries_plan

if torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs sm_90", allow_module_level=True)

RUNS = 20
MODES = {"summed": True, "deterministic": False}


def check(
    name: str,
    heads: tuple[int, int],
    queries: int,
    keys: int,
    dim: int,
    dtype: torch.dtype,
    batch: int = 1,
    *,
    mode: str = "summed",
    lse: bool = False,
) -> None:
    """Gradients in memory full of NaN, with NaN where nobody looks, against the oracle's and the portable kernels'."""
    q, k, v = random_inputs(batch, *heads, queries, keys, dim, dtype, "cuda")
    visible = dense(name, queries, keys)
    out, out_lse = dense_attention(q, k, v, visible)
    out, out_lse = out.to(dtype), out_lse.float()
    grad = torch.randn_like(q)
    grad_lse = torch.randn_like(out_lse) if lse else None
    expected = dense_gradients(q, k, v, visible, grad, grad_lse)
    seen = visible.expand(batch, heads[0], -1, -1)
    unseen, blind = ~seen.flatten(0, 2).any(dim=0), ~seen.any(dim=-1)
    k[:, :, unseen], v[:, :, unseen] = torch.nan, torch.inf
    q[blind] = grad[blind] = torch.nan
    descriptor = cm.compile(MASKS[name](queries, keys)).descriptor(queries, keys, q.device, gradient=True)
    poison(q, k, v)
    assert has_hopper_kernel(q, k, v)
    inputs = GradientInputs(grad, grad_lse, q, k, v, out, out_lse, descriptor, dim**-0.5)
    config = HopperBackwardConfig.choose(dim, ELEMENTS[dtype], sums_queries=MODES[mode])
    found = attention_backward_hopper(inputs, config)[:3]
    portable = attention_backward_cuda(inputs)[:3]
    for letter, gradient, other, reference in zip("qkv", found, portable, expected, strict=True):
        if reference.norm() > 1e-9:
            assert_close(gradient, reference, TOLERANCE[dtype], f"{heads}, gradient of {letter}")
            assert_close(gradient, other, TOLERANCE[dtype], f"{heads}, gradient of {letter} beside the portable one")
        check_untouched(gradient, letter, visible)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", HEADLINES)
@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_headline_grid(name: str, queries: int, keys: int, dim: int, dtype: torch.dtype) -> None:
    for heads in HEADS:
        check(name, heads, queries, keys, dim, dtype)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str, dim: int, mode: str) -> None:
    for queries, keys in ((17, 17), (137, 300), (300, 200), (1000, 1000), (2048, 2048)):
        check(name, (4, 2), queries, keys, dim, torch.bfloat16, batch=2, mode=mode, lse=True)


@pytest.mark.parametrize("dim", [8, 40, 72, 96])
def test_other_head_dims(dim: int) -> None:
    q, k, v = random_inputs(1, 4, 2, 333, 333, dim, torch.float16, "cuda")
    visible = dense("causal", 333, 333)
    out, lse = dense_attention(q, k, v, visible)
    grad = torch.randn_like(q)
    descriptor = cm.compile(cm.causal()).descriptor(333, 333, q.device, gradient=True)
    config = HopperBackwardConfig.choose(64 if dim <= 64 else 128, ELEMENTS[q.dtype])
    inputs = GradientInputs(grad, None, q, k, v, out.half(), lse.float(), descriptor, dim**-0.5)
    found = attention_backward_hopper(inputs, config)[:3]
    for gradient, reference in zip(found, dense_gradients(q, k, v, visible, grad), strict=True):
        assert_close(gradient, reference, TOLERANCE[torch.float16])


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", ["causal", "shared prompt", "clear"])
def test_deterministic_runs_are_equal_bit_by_bit(name: str, dim: int) -> None:
    inputs = [x.requires_grad_() for x in random_inputs(2, 4, 2, 1000, 1000, dim, torch.bfloat16, "cuda")]
    mask, grad = MASKS[name](1000, 1000), torch.randn_like(inputs[0])
    torch.use_deterministic_algorithms(True)
    try:
        runs = [torch.autograd.grad(cm.attention(*inputs, mask=mask), inputs, grad) for _ in range(RUNS)]
    finally:
        torch.use_deterministic_algorithms(False)
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], run, strict=True))


@pytest.mark.parametrize("dim", [64, 128])
def test_queries_have_a_kernel_that_sums_nothing_in_memory(dim: int) -> None:
    q, k, v = random_inputs(2, 8, 4, 1500, 1500, dim, torch.bfloat16, "cuda")
    descriptor = cm.compile(cm.causal()).descriptor(1500, 1500, q.device, gradient=True)
    assert queries_plan([q, k, v, q, q], 1536, descriptor) is not None


@pytest.mark.parametrize("dim", [64, 128])
def test_many_launches_agree(dim: int) -> None:
    """Gradients of keys and values are equal bit by bit, those of queries up to the order of their sum."""
    q, k, v = random_inputs(2, 8, 4, 1500, 1500, dim, torch.bfloat16, "cuda")
    mask, grad = MASKS["shared prompt"](1500, 1500), torch.randn_like(q)
    visible = mask.dense(1500, 1500)
    out, lse = dense_attention(q, k, v, visible)
    descriptor = cm.compile(mask).descriptor(1500, 1500, q.device, gradient=True)
    config = HopperBackwardConfig.choose(dim, ELEMENTS[q.dtype])
    inputs = GradientInputs(grad, None, q, k, v, out.bfloat16(), lse.float(), descriptor, dim**-0.5)
    run = partial(attention_backward_hopper, inputs, config)
    first = run()
    for _ in range(200):
        again = run()
        assert torch.equal(again[1], first[1])
        assert torch.equal(again[2], first[2])
        assert_close(again[0], first[0], 1e-3)


@pytest.mark.parametrize("dim", [64, 128])
def test_missing_keys_of_full_tiles_reach_nobody(dim: int) -> None:
    q, k, v = random_inputs(1, 2, 2, 1000, 1000, dim, torch.bfloat16, "cuda")
    q, k = 1 + q.abs(), -k.abs() - 1
    visible = torch.ones(1, 1, 1000, 1000, dtype=torch.bool)
    out, lse = dense_attention(q, k, v, visible, 4.0)
    descriptor = cm.compile(cm.full()).descriptor(1000, 1000, q.device, gradient=True)
    config = HopperBackwardConfig.choose(dim, ELEMENTS[q.dtype])
    inputs = GradientInputs(torch.randn_like(q), None, q, k, v, out.bfloat16(), lse.float(), descriptor, 4.0)
    for gradient in attention_backward_hopper(inputs, config)[:3]:
        assert gradient.isfinite().all()
