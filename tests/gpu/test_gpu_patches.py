"""Attention in tiles that are patches of an image, on the GPU, against the oracle in raster order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, dense_gradients, random_inputs
from test_gpu_backward import TOLERANCE as GRADIENT_TOLERANCE
from test_gpu_backward import poison
from test_interval_patch import CASES, IMAGE, Case

import compilemask as cm
from compilemask.lowering.tiling_to_ttg.attention import HopperConfig, Schedule
from compilemask.lowering.tiling_to_ttg.attention_backward import HopperBackwardConfig
from compilemask.runtime.calls.gradient_inputs import GradientInputs
from compilemask.runtime.gpu.attention_cuda import ELEMENTS, attention_cuda
from compilemask.runtime.gpu.hopper import attention_hopper, has_hopper_kernel, takes_patches
from compilemask.runtime.gpu.hopper_backward import attention_backward_hopper

if torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs sm_90", allow_module_level=True)

TYPES = [torch.float16, torch.bfloat16]
LARGE = {
    "clear": Case(cm.clear(80, 96, 16, text=512), 512, (80, 96), 0, (8, 16), (8, 16)),
    "clear, odd": Case(cm.clear(124, 131, 8, text=77), 77, (124, 131), 61, (8, 16), (16, 8)),
    "natten3d": Case(cm.natten3d(8, 24, 30, (5, 9, 9)), 0, (8, 24, 30), 0, (4, 4, 8), (2, 8, 8)),
    "lower than the mask's": Case(cm.clear(80, 96, 8, text=100), 100, (61, 96), 19 * 96, (8, 16), (8, 16)),
    "high tiles": Case(cm.clear(80, 97, 16, text=500), 500, (80, 97), 3, (12, 16), (8, 16)),
}
ALL = {name: case for name, case in CASES.items() if case.keys != (1, 8, 16)} | LARGE
"""A patch of one slice cannot be shared by warpgroups."""


def config_of(case: Case, dim: int, dtype: torch.dtype, schedule: Schedule) -> HopperConfig:
    patches = case.patches
    config = HopperConfig.choose(dim, ELEMENTS[dtype], patches.queries.tile)
    return replace(config, schedule=schedule, query_patch=patches.query_patch, key_patch=patches.key_patch)


@lru_cache(maxsize=2)
def visible_of(case: Case) -> torch.Tensor:
    return case.mask.dense(case.patches.length, case.patches.length).cuda()


def check(
    name: str,
    dim: int,
    dtype: torch.dtype,
    *,
    heads: tuple[int, int] = (4, 2),
    batch: int = 2,
    schedule: Schedule = Schedule.ATOMIC,
    change: Callable[[torch.Tensor], torch.Tensor] = lambda x: x,
) -> None:
    """The kernel in memory full of NaN, with NaN where nobody looks, against the oracle and copies in patched order."""
    case = ALL[name]
    patches, length = case.patches, case.patches.length
    q, k, v = (change(x) for x in random_inputs(batch, *heads, length, length, dim, dtype, "cuda"))
    visible = visible_of(case)
    unseen = ~visible.flatten(0, 2).any(dim=0)
    k[:, :, unseen], v[:, :, unseen] = torch.nan, torch.nan
    descriptor = cm.compile(case.mask).descriptor(length, length, q.device, patches=patches).check()
    assert has_hopper_kernel(q, k, v, patches=patches)
    poison(q)
    out, lse = attention_hopper(q, k, v, descriptor, dim**-0.5, config_of(case, dim, dtype, schedule))
    expected, expected_lse = dense_attention(q, k.nan_to_num(), v.nan_to_num(), visible)
    assert_close(out, expected, TOLERANCE[dtype], "out")
    assert_close(lse, expected_lse, 1e-4, "lse")
    if patches.queries.tile == 128:
        assert_close(out, attention_cuda(q, k, v, descriptor, dim**-0.5)[0], TOLERANCE[dtype], "out beside copies")


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", ALL)
def test_forward(name: str, dim: int, schedule: Schedule) -> None:
    if dim == 128 and ALL[name].patches.queries.tile == 192:
        pytest.skip("tiles of 192 rows have D = 64")
    for dtype in TYPES:
        check(name, dim, dtype, schedule=schedule)


@pytest.mark.parametrize("name", ["clear", "natten3d"])
def test_strides(name: str) -> None:
    """Batches and heads of a video lie as one dimension, or there is one batch."""
    batch = 2 if len(ALL[name].sizes) == 2 else 1
    check(name, 64, torch.bfloat16, batch=batch, change=lambda x: x.transpose(1, 2).contiguous().transpose(1, 2))


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", ALL)
def test_backward(name: str, dim: int) -> None:
    case = ALL[name]
    patches, length = case.patches, case.patches.length
    if patches.query_patch != patches.key_patch:
        patches = replace(patches, query_patch=patches.key_patch)
    for dtype in TYPES:
        q, k, v = random_inputs(2, 4, 2, length, length, dim, dtype, "cuda")
        visible = visible_of(case)
        out, lse = dense_attention(q, k, v, visible)
        out, lse = out.to(dtype), lse.float()
        grad, grad_lse = torch.randn_like(q), torch.randn_like(lse)
        expected = dense_gradients(q, k, v, visible, grad, grad_lse)
        seen = visible.expand(2, 4, -1, -1)
        unseen = ~seen.flatten(0, 2).any(dim=0)
        k[:, :, unseen], v[:, :, unseen] = torch.nan, torch.inf
        q[~seen.any(dim=-1)] = grad[~seen.any(dim=-1)] = torch.nan
        descriptor = cm.compile(case.mask).descriptor(length, length, q.device, gradient=True, patches=patches)
        config = HopperBackwardConfig.choose(
            dim, ELEMENTS[dtype], query_patch=patches.query_patch, key_patch=patches.key_patch
        )
        poison(q, k, v)
        inputs = GradientInputs(grad, grad_lse, q, k, v, out, lse, descriptor, dim**-0.5)
        found = attention_backward_hopper(inputs, config)[:3]
        for letter, gradient, reference in zip("qkv", found, expected, strict=True):
            assert_close(gradient, reference, GRADIENT_TOLERANCE[dtype], f"gradient of {letter}")
            assert not gradient[reference == 0].any(), f"gradient of {letter} is not exactly 0"


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", ["clear", "natten3d"])
def test_through_the_public_interface(name: str, deterministic: bool) -> None:
    case = LARGE[name]
    length = case.patches.length
    patches = replace(case.patches, query_patch=case.keys)
    q, k, v = (x.requires_grad_() for x in random_inputs(1, 4, 2, length, length, 128, torch.bfloat16, "cuda"))
    descriptor = cm.compile(case.mask).descriptor(length, length, "cuda", gradient=True, patches=patches)
    visible, grad = visible_of(case), torch.randn_like(q)
    expected, _ = dense_attention(q, k, v, visible)
    references = dense_gradients(q, k, v, visible, grad)
    torch.use_deterministic_algorithms(deterministic)
    try:
        for mask in (descriptor, case.mask):
            poison(q, k, v)
            out = cm.attention(q, k, v, mask)
            found = torch.autograd.grad(out, (q, k, v), grad)
            assert_close(out, expected, TOLERANCE[torch.bfloat16], "out")
            for letter, gradient, reference in zip("qkv", found, references, strict=True):
                assert_close(gradient, reference, GRADIENT_TOLERANCE[torch.bfloat16], f"gradient of {letter}")
    finally:
        torch.use_deterministic_algorithms(False)


def test_no_copy_in_patched_order_is_made() -> None:
    """Beside the outputs, attention takes no memory of the size of its inputs."""
    length = 512 + 168 * 192
    mask = cm.clear(168, 192, 16, text=512)
    q, k, v = random_inputs(1, 4, 4, length, length, 128, torch.bfloat16, "cuda")
    choice = cm.compile(mask).patches_for(length, length)
    assert choice is not None
    assert choice.patches is not None
    assert takes_patches(q, k, v, choice.patches)
    cm.attention(q, k, v, mask)  # builds the descriptor, which is kept
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out, lse = cm.attention(q, k, v, mask, return_lse=True)
    peak = torch.cuda.max_memory_allocated() - before
    assert peak <= out.nbytes + lse.nbytes + q.nbytes // 4


def test_a_video_that_tma_cannot_see_as_one_is_copied() -> None:
    case = CASES["natten3d"]
    patches, length = case.patches, case.patches.length
    q, k, v = (
        x.transpose(1, 2).contiguous().transpose(1, 2)
        for x in random_inputs(2, 4, 2, length, length, 64, torch.float16, "cuda")
    )
    assert not has_hopper_kernel(q, k, v, patches=patches)
    descriptor = cm.compile(case.mask).descriptor(length, length, q.device, patches=patches)
    expected, _ = dense_attention(q, k, v, visible_of(case))
    assert_close(cm.attention(q, k, v, descriptor), expected, TOLERANCE[torch.float16])


def test_many_launches_agree() -> None:
    """Bit by bit, in programs that take tiles in any order."""
    case = CASES["clear"]
    patches, length = case.patches, case.patches.length
    assert case.sizes == IMAGE
    q, k, v = random_inputs(4, 16, 4, length, length, 128, torch.bfloat16, "cuda")
    descriptor = cm.compile(case.mask).descriptor(length, length, q.device, patches=patches)
    config = config_of(case, 128, q.dtype, Schedule.ATOMIC)
    first, lse = attention_hopper(q, k, v, descriptor, 0.1, config)
    for _ in range(200):
        out, again = attention_hopper(q, k, v, descriptor, 0.1, config)
        assert torch.equal(out, first)
        assert torch.equal(again, lse)
