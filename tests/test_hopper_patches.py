"""The Hopper kernels on patches of an image, executed in numpy, against dense attention in raster order."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, random_inputs
from patch_cases import Visible, descriptor_of, disk, parts, scattered
from test_hopper_kernel import ELEMENT, PROGRAMS, storage
from xdsl.dialects.builtin import ModuleOp, f16

import compilemask as cm
from compilemask.dialects.semantics.triton_gpu import TensorMap, run_kernel
from compilemask.errors import LoweringError
from compilemask.lowering.patch_grid import Patches
from compilemask.lowering.tiling_to_tt.attention import attention_module, attention_op
from compilemask.lowering.tiling_to_ttg.attention import HopperConfig, Schedule, emit
from compilemask.lowering.tiling_to_ttg.attention_config import Patch, kernel_head_dim
from compilemask.lowering.tiling_to_ttg.attention_frame import kernel_arguments
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.scoring import score_op

IMAGES = {
    "whole patches": Patches(0, (16, 32), 512, (8, 16), (8, 16)),
    "odd sides, text around": Patches(70, (19, 37), 70 + 703 + 150, (8, 16), (8, 16)),
    "text before": Patches(128, (9, 17), 128 + 153, (8, 16), (16, 8)),
    "text behind": Patches(0, (20, 9), 180 + 1, (16, 8), (8, 16)),
    "narrow": Patches(5, (200, 3), 605, (64, 2), (32, 4)),
    "video": Patches(0, (5, 9, 11), 495, (4, 4, 8), (4, 4, 8)),
    "video, text around": Patches(130, (3, 7, 17), 130 + 357 + 20, (2, 8, 8), (4, 4, 8)),
}
SMALL = {
    "image": Patches(30, (9, 17), 30 + 153 + 20, (8, 16), (16, 8)),
    "video": Patches(30, (3, 5, 9), 30 + 135 + 20, (2, 8, 8), (4, 4, 8)),
}
HIGH = Patches(60, (19, 17), 60 + 323 + 9, (12, 16), (8, 16))
"""Tiles of 192 queries."""


@lru_cache
def kernel_of(head_dim: int, dtype: torch.dtype, config: HopperConfig) -> ModuleOp:
    return emit(attention_op(attention_module(head_dim, ELEMENT[dtype])), config)


def config_of(patches: Patches, head_dim: int = 64, dtype: torch.dtype = torch.float16) -> HopperConfig:
    config = HopperConfig.choose(kernel_head_dim(head_dim) or 0, ELEMENT[dtype], patches.queries.tile)
    return replace(config, query_patch=patches.query_patch, key_patch=patches.key_patch)


def run(
    config: HopperConfig,
    descriptor: Descriptor,
    patches: Patches,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    *,
    seed: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of a kernel, in memory that was full of NaN."""
    batch, heads = q.shape[:2]
    out, lse = q.new_full(q.shape, torch.nan), torch.full(q.shape[:3], torch.nan)
    layout = descriptor.layout
    sections = [descriptor.order, descriptor.visits, descriptor.patterns, descriptor.columns]
    values: list[Any] = [
        *(TensorMap(part) for x in (q, k, v, out) for part in parts(x, patches.keys, storage)),
        lse.numpy().reshape(-1),
        *(section.contiguous().numpy().reshape(-1) for section in sections),
        *([np.zeros(2, np.int32)] if config.schedule is Schedule.ATOMIC else []),
        *(heads, heads // k.shape[1], layout.queries, layout.keys, layout.query_tiles),
        *(layout.heads if layout.batch > 1 else 0, 1 if layout.heads > 1 else 0),
        *(batch * heads, 1, layout.query_tiles),
        *(patches.origin, patches.length, *patches.sizes),
        scale,
    ]
    names = [argument.name for argument in kernel_arguments(config)]
    tiles = layout.query_tiles * batch * heads
    kernel = kernel_of(kernel_head_dim(q.shape[3]) or 0, q.dtype, config)
    programs = min(PROGRAMS, tiles) if config.is_persistent else tiles
    run_kernel(kernel, programs, dict(zip(names, values, strict=True)), seed=seed)
    return out, lse


def check(
    patches: Patches,
    visible: Visible,
    *,
    heads: tuple[int, int] = (1, 1),
    batch: int = 1,
    head_dim: int = 64,
    dtype: torch.dtype = torch.float16,
    config: HopperConfig | None = None,
    seed: int = 0,
) -> None:
    """Attention of random inputs, NaN in all keys and values that nobody sees, against the oracle."""
    scale = 1 / math.sqrt(head_dim)
    masks = torch.from_numpy(visible.reshape(*visible.shape[:-2] or (1, 1), *visible.shape[-2:]))
    q, k, v = random_inputs(batch, *heads, patches.length, patches.length, head_dim, dtype)
    unseen = ~masks.flatten(0, 2).any(dim=0)
    k[:, :, unseen], v[:, :, unseen] = torch.nan, torch.nan
    descriptor = descriptor_of(masks.numpy(), patches)
    config = config_of(patches, head_dim, dtype) if config is None else config
    out, lse = run(config, descriptor, patches, q, k, v, scale, seed=seed)
    expected, expected_lse = dense_attention(q, k.nan_to_num(), v.nan_to_num(), masks, scale)
    assert_close(out, expected, TOLERANCE[dtype], "out")
    assert_close(lse, expected_lse, 1e-4, "lse")


@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str) -> None:
    check(IMAGES[name], disk(IMAGES[name], 4))


@pytest.mark.parametrize("name", SMALL)
def test_rows_that_see_nothing_and_keys_that_nobody_sees(name: str) -> None:
    check(SMALL[name], scattered(SMALL[name]), seed=1)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(("head_dim", "dtype"), [(64, torch.bfloat16), (128, torch.float16), (128, torch.bfloat16)])
def test_types_and_head_dims(head_dim: int, dtype: torch.dtype, name: str) -> None:
    check(SMALL[name], disk(SMALL[name], 5), head_dim=head_dim, dtype=dtype)


@pytest.mark.parametrize("name", SMALL)
def test_columns_that_the_kernel_has_and_the_tensors_have_not(name: str) -> None:
    check(SMALL[name], disk(SMALL[name], 5), head_dim=40)


@pytest.mark.parametrize("name", SMALL)
def test_batches_and_groups_with_masks_of_their_own(name: str) -> None:
    patches = SMALL[name]
    masks = np.stack([scattered(patches, seed) for seed in range(8)]).reshape(2, 4, patches.length, -1)
    check(patches, masks, heads=(4, 2), batch=2)


@pytest.mark.parametrize("schedule", Schedule)
def test_tiles_of_192_queries(schedule: Schedule) -> None:
    config = replace(config_of(HIGH), schedule=schedule)
    check(HIGH, disk(HIGH, 5), config=config, seed=1)


@pytest.mark.parametrize("schedule", [Schedule.STATIC, Schedule.ATOMIC])
def test_persistent_programs(schedule: Schedule) -> None:
    patches = SMALL["image"]
    check(patches, scattered(patches), heads=(2, 1), config=replace(config_of(patches), schedule=schedule))


@pytest.mark.parametrize(
    ("query_patch", "key_patch", "message"),
    [
        ((8, 16), None, "not cut from one image"),
        ((8, 16), (4, 4, 8), "not cut from one image"),
        ((12, 16), (8, 16), "no tile of 128"),
        ((8, 16), (8, 8), "no tile of 128"),
        ((8, 16), (1, 128), "whole slices"),
        ((128,), (128,), "2 or 3 axes"),
        ((2, 4, 4, 4), (2, 4, 4, 4), "2 or 3 axes"),
        ((-8, -16), (8, 16), "no tile of 128"),
    ],
)
def test_what_is_no_patch(query_patch: Patch, key_patch: Patch | None, message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        HopperConfig(query_patch=query_patch, key_patch=key_patch)


def test_modified_scores_have_no_kernel() -> None:
    config = HopperConfig(query_patch=(8, 16), key_patch=(8, 16))
    score = score_op(cm.score.softcap(30.0).plan.text)
    with pytest.raises(LoweringError, match="modified scores"):
        emit(attention_op(attention_module(128, f16, score=score)), config)
