"""Attention on a GPU: picks the kernel for head_dim and dtype, and launches it over a descriptor."""

from __future__ import annotations

import torch

from compilemask.errors import DTypeError
from compilemask.runtime.compile_kernel import Options, kernel_for
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.launch import launch

WORD = 4
"""Bytes of an int32."""
ALIGNMENT = 16
"""Bytes that pointers and rows are aligned to, as the kernels assume."""


def attention_cuda(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, descriptor: Descriptor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [B, Hq, Sq, D] in the input type and lse [B, Hq, Sq] in float32. Does not wait. Takes checked arguments.

    Inputs whose last dimension is not contiguous, or whose rows are not aligned to 16 bytes, are copied.
    """
    query, key, value = (_aligned(x) for x in (query, key, value))
    batch, heads, queries, head_dim = query.shape
    out = torch.empty((batch, heads, queries, head_dim), dtype=query.dtype, device=query.device)
    lse = torch.empty((batch, heads, queries), dtype=torch.float32, device=query.device)
    text, options, block_q = attention_kernel(head_dim, query.dtype)
    kernel = kernel_for(text, query.device, options)
    tiles_per_query_tile = descriptor.layout.rows // block_q
    grid = (descriptor.layout.query_tiles * tiles_per_query_tile, heads, batch)
    arguments = kernel_arguments(query, key, value, out, lse, descriptor)
    launch(kernel, grid, query.device, [*arguments, scale])
    return out, lse


def kernel_arguments(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    descriptor: Descriptor,
) -> list[int]:
    """Arguments of the attention kernel in order, all but the scale."""
    layout = descriptor.layout
    base = descriptor.buffer.data_ptr()
    sections = (layout.tiles, layout.order, layout.visits, layout.patterns, layout.columns)
    head_stride = 1 if layout.heads > 1 else 0
    batch_stride = layout.heads if layout.batch > 1 else 0
    heads = query.shape[1]
    return [
        *(x.data_ptr() for x in (query, key, value, out, lse)),
        *(base + WORD * section for section in sections),
        *(stride for x in (query, key, value, out) for stride in x.stride()[:3]),
        *(heads, heads // max(key.shape[1], 1), layout.queries, layout.keys, layout.query_tiles),
        *(batch_stride, head_stride),
    ]


def _aligned(x: torch.Tensor) -> torch.Tensor:
    words = ALIGNMENT // x.element_size()
    rows = all(stride % words == 0 for stride, size in zip(x.stride()[:3], x.shape[:3], strict=True) if size > 1)
    if x.stride(-1) == 1 and x.data_ptr() % ALIGNMENT == 0 and rows:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def attention_kernel(head_dim: int, dtype: torch.dtype) -> tuple[str, Options, int]:
    """Triton IR of the attention kernel, its options, and the query rows of one of its programs."""
    raise DTypeError(f"no kernel for {dtype}")
