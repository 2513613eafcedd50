"""Attention on a GPU with keys split among programs: two launches, and a workspace between them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from compilemask.dialects.triton.printing import print_generic
from compilemask.lowering.descriptor_layout import Layout, ceil_div
from compilemask.lowering.tiling_to_tt.attention import attention_module, attention_op
from compilemask.lowering.tiling_to_tt.attention_combine import emit_combine
from compilemask.lowering.tiling_to_tt.attention_config import TILE
from compilemask.lowering.tiling_to_tt.attention_split import emit_split
from compilemask.lowering.tiling_to_tt.attention_split_config import split_config
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.gpu.attention_cuda import (
    ELEMENTS,
    AttentionKernel,
    is_aligned,
    readable,
    section_addresses,
    sizes_of,
    strides,
)
from compilemask.runtime.gpu.compile_kernel import Options, Source, kernels_for, target_of
from compilemask.runtime.gpu.launch import empty, launch
from compilemask.runtime.gpu.split_keys import Split, split_of
from compilemask.runtime.scoring import Scoring, score_op

FLOAT = 4
"""Bytes of a float32."""
COMBINE_OPTIONS = Options(num_warps=4, num_stages=1)


@lru_cache(maxsize=256)
def split_kernel(
    head_dim: int, dtype: torch.dtype, target: str, rows: int, aligned: bool = True, score: str = ""
) -> AttentionKernel:
    """The kernel for so many rows of a tile, all heads together; the rest as for `attention_kernel`."""
    element = ELEMENTS[dtype]
    config = split_config(head_dim, element, target, rows, aligned=aligned)
    text = print_generic(emit_split(attention_op(attention_module(head_dim, element, score=score_op(score))), config))
    return AttentionKernel(text, Options(config.num_warps, config.num_stages), config.block_q)


@lru_cache(maxsize=64)
def combine_text(head_dim: int, dtype: torch.dtype) -> str:
    """The kernel that puts parts together, in Triton IR."""
    return print_generic(emit_combine(head_dim, ELEMENTS[dtype]))


def split_for(
    query: torch.Tensor, key: torch.Tensor, layout: Layout, scoring: Scoring, processors: int
) -> Split | None:
    """The split for attention along a descriptor on a GPU with so many processors; None if it is not split."""
    return split_along(query.shape, key.shape, layout, scoring, processors)


def split_along(
    query_shape: Sequence[int], key_shape: Sequence[int], layout: Layout, scoring: Scoring, processors: int
) -> Split | None:
    """`split_for`, of inputs of these shapes."""
    if layout.rows != TILE or layout.patches is not None:
        return None
    batch, heads, queries, _ = query_shape
    heads_differ = layout.heads > 1 or bool(scoring.text)
    split = split_of(batch, heads, key_shape[1], queries, key_shape[2], processors, heads_differ=heads_differ)
    return None if split is None or scoring.is_pointwise else split


def attention_split(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    descriptor: Descriptor,
    scale: float,
    scoring: Scoring,
    split: Split,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [B, Hq, Sq, D] in the input type and lse [B, Hq, Sq] in float32. Does not wait. Takes checked arguments.

    Inputs whose last dimension is not contiguous are copied. The split is one that `split_for` has given.
    """
    query, key, value = (readable(x) for x in (query, key, value))
    batch, heads, queries, head_dim = query.shape
    device = query.device
    out = empty(query.shape, (heads * queries * head_dim, queries * head_dim, head_dim, 1), query.dtype, device)
    lse = empty(query.shape[:3], (heads * queries, queries, 1), torch.float32, device)
    parts = lse.numel() * split.splits
    workspace = empty((parts * (head_dim + 2),), (1,), torch.float32, device)
    rows = split.together * min(queries, TILE)
    aligned = all(is_aligned(x) for x in (query, key, value))
    text, options, block_q = split_kernel(head_dim, query.dtype, str(target_of(device)), rows, aligned, scoring.text)
    combining = combine_text(head_dim, query.dtype)
    sources = [Source(text, lambda: text, options), Source(combining, lambda: combining, COMBINE_OPTIONS)]
    splitting, joining = kernels_for(sources, device)
    scoring = scoring.for_kernels()
    pointers = parts_of(workspace, parts, head_dim)
    arguments = split_arguments(query, key, value, pointers, descriptor, split)
    blocks = descriptor.layout.query_tiles * ceil_div(rows, block_q)
    grid = (blocks * split.splits, heads // split.together, batch)
    launch(splitting, grid, device, [*arguments, scale, *scoring.kernel_arguments()])
    launch(joining, (lse.numel(), 1, 1), device, [*pointers, out.data_ptr(), lse.data_ptr(), split.splits])
    return out, lse


def parts_of(workspace: torch.Tensor, parts: int, head_dim: int) -> list[int]:
    """Addresses of outputs, maxima and sums of so many parts of rows in a workspace of (D + 2) numbers for each."""
    base = workspace.data_ptr()
    return [base + FLOAT * parts * numbers for numbers in (0, head_dim, head_dim + 1)]


def split_arguments(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    parts: list[int],
    descriptor: Descriptor,
    split: Split,
) -> list[int]:
    """Arguments of the split kernel in order, all but the scale and those of the score."""
    return [
        *(x.data_ptr() for x in (query, key, value)),
        *parts,
        *section_addresses(descriptor),
        *(stride for x in (query, key, value) for stride in strides(x)),
        *sizes_of(query, key, descriptor.layout),
        *split,
    ]
