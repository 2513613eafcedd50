"""The Hopper backward kernels on patches of an image, executed in numpy, against the oracle in raster order."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from compare import assert_close, dense_attention, random_inputs
from patch_cases import Visible, descriptor_of, disk, parts, scattered
from test_backward_kernels import TOLERANCE, Problem
from test_hopper_backward_kernel import poisoned_sums
from test_hopper_kernel import ELEMENT, storage
from test_hopper_patches import IMAGES, SMALL
from xdsl.dialects.builtin import ModuleOp

from compilemask.dialects.semantics import triton as portable
from compilemask.dialects.semantics.triton_gpu import TensorMap, run_kernel
from compilemask.errors import LoweringError
from compilemask.lowering.patch_grid import Patches
from compilemask.lowering.tiling_to_tt import attention_backward_rows, attention_backward_total
from compilemask.lowering.tiling_to_tt.sum_blocks import SIDE
from compilemask.lowering.tiling_to_ttg.attention_backward import HopperBackwardConfig, emit_backward
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import kernel_arguments

TILE = 128


class PatchProblem(Problem):
    """Inputs in raster order, and the transposed descriptor in patched order."""

    def __init__(
        self,
        patches: Patches,
        visible: Visible,
        heads: tuple[int, int] = (1, 1),
        batch: int = 1,
        head_dim: int = 64,
        dtype: torch.dtype = torch.float16,
    ) -> None:
        self.patches, self.scale = patches, 1 / math.sqrt(head_dim)
        self.visible = torch.from_numpy(visible.reshape(*visible.shape[:-2] or (1, 1), *visible.shape[-2:]))
        self.q, self.k, self.v = random_inputs(batch, *heads, patches.length, patches.length, head_dim, dtype)
        transposed = replace(patches, query_patch=patches.key_patch, key_patch=patches.query_patch)
        self.along = descriptor_of(self.visible.numpy().swapaxes(2, 3), transposed)
        out, lse = dense_attention(self.q, self.k, self.v, self.visible, self.scale)
        self.out, self.lse = out.to(dtype), lse.float()
        self.grad, _, _ = random_inputs(batch, heads[0], 1, patches.length, 1, head_dim, dtype, seed=1)
        self.grad_lse = torch.randn(self.lse.shape, generator=torch.Generator().manual_seed(2))

    @property
    def stored(self) -> int:
        """Places of queries in whole tiles."""
        return self.patches.queries.tiles * TILE

    @property
    def geometry(self) -> list[int]:
        """The kernels' arguments of the image."""
        return [self.patches.origin, self.patches.length, *self.patches.sizes]


def rows_of(problem: PatchProblem) -> list[np.ndarray]:
    """`shift` and `delta` [B * Hq, NQ * 128] in patched order, and cleared blocks of the sum."""
    batch, heads, queries, dim = problem.q.shape
    kernel = attention_backward_rows.emit_rows(
        dim,
        ELEMENT[problem.q.dtype],
        aligned=True,
        with_grad_lse=True,
        patch=problem.patches.query_patch,
        clears_sums=True,
    )
    shift, delta = (np.full(batch * heads * problem.stored, np.nan, np.float32) for _ in range(2))
    sums = poisoned_sums(batch * heads, problem.stored, dim)
    tensors = (problem.out, problem.grad)
    values = [
        *(storage(x).reshape(-1) for x in tensors),
        *(problem.lse.numpy().ravel(), problem.grad_lse.numpy().ravel(), shift, delta, sums.reshape(-1)),
        *(stride for x in tensors for stride in x.stride()[:3]),
        *(heads, queries, problem.stored),
        *problem.geometry,
    ]
    portable.run_kernel(kernel, (problem.stored // attention_backward_rows.ROWS, heads, batch), values, seed=0)
    return [shift.reshape(-1, problem.stored), delta.reshape(-1, problem.stored), sums]


def total(problem: PatchProblem, sums: np.ndarray) -> torch.Tensor:
    """The gradient of queries from its sum."""
    batch, heads, _, dim = problem.q.shape
    grad_q = problem.q.new_full(problem.q.shape, torch.nan)
    values = [
        *(sums.reshape(-1), storage(grad_q).reshape(-1), problem.along.header[14:15].numpy()),
        *grad_q.stride()[:3],
        *(heads, problem.stored, problem.stored // SIDE, *problem.geometry, problem.scale),
    ]
    kernel = attention_backward_total.emit_total(dim, ELEMENT[problem.q.dtype], problem.patches.query_patch)
    portable.run_kernel(kernel, (problem.stored // attention_backward_total.ROWS, heads, batch), values, seed=0)
    return grad_q


@lru_cache
def kernel_of(head_dim: int, dtype: torch.dtype, config: HopperBackwardConfig) -> ModuleOp:
    return emit_backward(head_dim, ELEMENT[dtype], config)


def backward(problem: PatchProblem, config: HopperBackwardConfig, seed: int) -> list[torch.Tensor]:
    """Gradients of k and v, in memory that was full of NaN, and that of q if the kernel sums it."""
    (batch, heads, _, dim), layout = problem.q.shape, problem.along.layout
    key_heads, along = problem.k.shape[1], problem.along
    *numbers, sums = rows_of(problem)
    gradients = [x.new_full(x.shape, torch.nan) for x in (problem.k, problem.v)]

    def maps(*tensors: torch.Tensor) -> list[np.ndarray]:
        return [part for x in tensors for part in parts(x, problem.patches.keys, storage)]

    arrays = [*maps(problem.q, problem.k, problem.v, problem.grad), *numbers]
    arrays += maps(*gradients)
    sections = (along.tiles, along.order, along.visits, along.patterns, along.columns)
    values: list[Any] = [
        *map(TensorMap, arrays),
        *([sums.reshape(-1)] if config.sums_queries else []),
        *(section.contiguous().numpy().reshape(-1) for section in sections),
        *(heads, heads // key_heads, layout.keys, layout.queries, layout.query_tiles),
        *(layout.heads if layout.batch > 1 else 0, 1 if layout.heads > 1 else 0),
        batch * key_heads,
        *problem.geometry,
        problem.scale,
    ]
    names = [argument.name for argument in kernel_arguments(config)]
    kernel = kernel_of(dim, problem.q.dtype, config)
    run_kernel(kernel, layout.query_tiles * batch * key_heads, dict(zip(names, values, strict=True)), seed=seed)
    return [*gradients, *([total(problem, sums)] if config.sums_queries else [])]


def check(problem: PatchProblem, *, sums_queries: bool = True, seed: int = 0) -> None:
    """Gradients of random inputs, NaN in what nobody may notice, against the oracle's; exactly 0 where those are."""
    problem.poison()
    dtype, patches = problem.q.dtype, problem.patches
    config = HopperBackwardConfig.choose(
        problem.q.shape[3],
        ELEMENT[dtype],
        sums_queries=sums_queries,
        query_patch=patches.query_patch,
        key_patch=patches.key_patch,
    )
    grad_q, *expected = problem.expected()
    expected += [grad_q] if sums_queries else []
    for name, reference, found in zip("kvq"[: len(expected)], expected, backward(problem, config, seed), strict=True):
        assert_close(found, reference, TOLERANCE[dtype], f"gradient of {name}")
        assert not found[reference == 0].any(), f"gradient of {name} is not exactly 0"


@pytest.mark.parametrize("name", ["odd sides, text around", "narrow", "video, text around"])
def test_images(name: str) -> None:
    check(PatchProblem(IMAGES[name], disk(IMAGES[name], 4)))


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", SMALL)
def test_rows_that_see_nothing_and_keys_that_nobody_sees(name: str, head_dim: int) -> None:
    check(PatchProblem(SMALL[name], scattered(SMALL[name]), head_dim=head_dim), seed=1)


@pytest.mark.parametrize("sums_queries", [True, False])
@pytest.mark.parametrize("dtype", ELEMENT)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_types_and_head_dims(head_dim: int, dtype: torch.dtype, sums_queries: bool) -> None:
    patches = SMALL["image" if sums_queries else "video"]
    check(PatchProblem(patches, disk(patches, 5), head_dim=head_dim, dtype=dtype), sums_queries=sums_queries)


@pytest.mark.parametrize("name", SMALL)
def test_batches_and_groups_with_masks_of_their_own(name: str) -> None:
    patches = SMALL[name]
    masks = np.stack([scattered(patches, seed) for seed in range(8)]).reshape(2, 4, patches.length, -1)
    check(PatchProblem(patches, masks, (4, 2), 2))


@pytest.mark.parametrize("name", SMALL)
def test_full_tiles_with_missing_keys(name: str) -> None:
    """Scores of missing keys are 0, so that their weights overflow where all scores of a row are far below."""
    patches = SMALL[name]
    problem = PatchProblem(patches, disk(patches, 1000), dtype=torch.bfloat16)
    problem.q[:], problem.k[:], problem.scale = 1 + problem.q.abs(), -problem.k.abs() - 1, 8.0
    out, lse = dense_attention(problem.q, problem.k, problem.v, problem.visible, problem.scale)
    problem.out, problem.lse = out.to(problem.q.dtype), lse.float()
    assert problem.lse.max() < -200
    check(problem)


def test_what_is_no_patch() -> None:
    with pytest.raises(LoweringError, match="no tile of 128"):
        HopperBackwardConfig(query_patch=(12, 16), key_patch=(8, 16))
    with pytest.raises(LoweringError, match="not cut from one image"):
        HopperBackwardConfig(key_patch=(8, 16))
