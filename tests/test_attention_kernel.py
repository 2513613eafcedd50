"""The attention kernel, executed in numpy over descriptors built on the CPU, against dense attention in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, random_inputs
from sample_masks import MASKS
from xdsl.dialects.builtin import AnyFloat, ModuleOp, bf16, f16, f32

import compilemask
from compilemask.dialects.semantics.triton import run_kernel
from compilemask.language.mask import Mask
from compilemask.lowering.tiling_to_tt.attention import AttentionConfig, attention_module, attention_op, emit
from compilemask.runtime import compile
from compilemask.runtime.descriptor import Descriptor

ELEMENT: dict[torch.dtype, AnyFloat] = {torch.float16: f16, torch.bfloat16: bf16, torch.float32: f32}
LSE_TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-4, torch.bfloat16: 1e-4}


def run(
    kernel: ModuleOp,
    config: AttentionConfig,
    descriptor: Descriptor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of a kernel, in memory that was full of NaN."""
    batch, heads, queries, head_dim = q.shape
    out, lse = torch.full_like(q, torch.nan), torch.full(q.shape[:3], torch.nan)
    layout = descriptor.layout
    sections = [descriptor.tiles, descriptor.order, descriptor.visits, descriptor.patterns, descriptor.columns]
    arguments: list[Any] = [
        *(_memory(x) for x in (q, k, v, out)),
        lse.numpy().reshape(-1),
        *(section.contiguous().numpy().reshape(-1) for section in sections),
        *(stride for x in (q, k, v, out) for stride in x.contiguous().stride()[:3]),
        *(heads, heads // k.shape[1], layout.queries, layout.keys, layout.query_tiles),
        *(layout.heads if layout.batch > 1 else 0, 1 if layout.heads > 1 else 0),
        scale,
    ]
    run_kernel(kernel, (layout.query_tiles * config.programs_per_tile, heads, batch), arguments, seed=0)
    return torch.from_numpy(arguments[3]).view(out.dtype).view(out.shape), lse


def _memory(x: torch.Tensor) -> np.ndarray:
    """A flat copy as the interpreter takes it: bf16 as its bits."""
    flat = x.contiguous().reshape(-1).clone()
    return flat.view(torch.int16).numpy().view(np.uint16) if x.dtype == torch.bfloat16 else flat.numpy()


def kernel_of(dtype: torch.dtype, head_dim: int, config: AttentionConfig) -> ModuleOp:
    return emit(attention_op(attention_module(head_dim, ELEMENT[dtype])), config)


def check(
    mask: Mask,
    queries: int,
    keys: int,
    *,
    heads: tuple[int, int] = (1, 1),
    batch: int = 1,
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    blocks: tuple[int, int] = (64, 64),
    scale: float | None = None,
    aligned: bool = True,
) -> None:
    """Attention of random inputs, NaN in all keys that nobody sees, against the oracle."""
    config = AttentionConfig(*blocks, aligned=aligned)
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    q, k, v = random_inputs(batch, *heads, queries, keys, head_dim, dtype)
    visible = mask.dense(queries, keys)
    if visible.shape[:2] == (1, 1):
        unseen = ~visible[0, 0].any(dim=0)
        k[:, :, unseen], v[:, :, unseen] = torch.nan, torch.nan
    descriptor = compile(mask).descriptor(queries, keys).check()
    out, lse = run(kernel_of(dtype, head_dim, config), config, descriptor, q, k, v, scale)
    expected, expected_lse = dense_attention(q, k.nan_to_num(), v, visible, scale)
    assert_close(out, expected, TOLERANCE[dtype], "out")
    assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    check(MASKS[name](400, 400), 400, 400, heads=(4, 2), batch=2)


@pytest.mark.parametrize("blocks", [(64, 32), (64, 64), (64, 128), (128, 32), (128, 64), (128, 128)])
def test_blocks(blocks: tuple[int, int]) -> None:
    check(compilemask.causal(), 300, 300, blocks=blocks)
    check(compilemask.window(150, 20), 300, 300, blocks=blocks)
