"""Attention on a GPU: picks the kernel for head_dim and dtype, and launches it over a descriptor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from xdsl.dialects.builtin import AnyFloat, bf16, f16, f32

from compilemask.dialects.triton.printing import print_generic
from compilemask.errors import DescriptorError
from compilemask.lowering.descriptor_layout import KEYS, Layout
from compilemask.lowering.tiling_to_tt.attention import AttentionConfig, attention_module, attention_op, emit
from compilemask.lowering.tiling_to_tt.attention_config import TILE
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.gpu.compile_kernel import Options, kernel_for, target_of
from compilemask.runtime.gpu.launch import launch
from compilemask.runtime.patched import attend_in_patched_order
from compilemask.runtime.scoring import UNMODIFIED, Scoring, score_op

WORD = 4
"""Bytes of an int32."""
ALIGNMENT = 16
"""Bytes that a thread loads at once, if pointers and rows are aligned to them."""
LONGEST_ROW_STRIDE = (2**31 - 1) // KEYS
"""In elements: addresses inside a tile are 32-bit."""
ELEMENTS: dict[torch.dtype, AnyFloat] = {torch.float16: f16, torch.bfloat16: bf16, torch.float32: f32}


class AttentionKernel(NamedTuple):
    """One variant of the kernel: Triton IR, how Triton schedules it, and the query rows of a program."""

    text: str
    options: Options
    block_q: int


@lru_cache(maxsize=256)
def attention_kernel(
    head_dim: int, dtype: torch.dtype, target: str, aligned: bool = True, score: str = ""
) -> AttentionKernel:
    """The kernel for a head_dim (at most 256), a dtype, a target such as 'cuda:90' and a structure of scores.

    `aligned` kernels take pointers and strides that are multiples of 16 bytes. Raises LoweringError for other targets.
    """
    element = ELEMENTS[dtype]
    config = AttentionConfig.choose(head_dim, element, target, aligned=aligned)
    text = print_generic(emit(attention_op(attention_module(head_dim, element, score=score_op(score))), config))
    return AttentionKernel(text, Options(config.num_warps, config.num_stages), config.block_q)


def attention_cuda(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    descriptor: Descriptor,
    scale: float,
    scoring: Scoring = UNMODIFIED,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [B, Hq, Sq, D] in the input type and lse [B, Hq, Sq] in float32. Does not wait. Takes checked arguments.

    Inputs whose last dimension is not contiguous are copied, and all are for tiles that are patches. Pointwise weights
    leave lse undefined. Raises DescriptorError unless query tiles have 128 rows.
    """
    if descriptor.layout.rows != TILE:
        raise DescriptorError(
            f"the descriptor has tiles of {descriptor.layout.rows} query rows; for these inputs expected {TILE}"
        )
    if descriptor.layout.patches is not None:
        return attend_in_patched_order(attention_cuda, query, key, value, descriptor, scale)
    query, key, value = (readable(x) for x in (query, key, value))
    batch, heads, queries, head_dim = query.shape
    out = torch.empty((batch, heads, queries, head_dim), dtype=query.dtype, device=query.device)
    lse = torch.empty((batch, heads, queries), dtype=torch.float32, device=query.device)
    if not out.numel():
        return out, lse
    aligned = all(is_aligned(x) for x in (query, key, value, out))
    target = str(target_of(query.device))
    text, options, block_q = attention_kernel(head_dim, query.dtype, target, aligned, scoring.text)
    kernel = kernel_for(text, query.device, options)
    grid = (descriptor.layout.query_tiles * (descriptor.layout.rows // block_q), heads, batch)
    arguments = kernel_arguments(query, key, value, out, lse, descriptor)
    scoring = scoring.for_kernels()
    launch(kernel, grid, query.device, [*arguments, scale, *scoring.kernel_arguments()])
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
    return [
        *(x.data_ptr() for x in (query, key, value, out, lse)),
        *section_addresses(descriptor),
        *(stride for x in (query, key, value, out) for stride in strides(x)),
        *sizes_of(query, key, descriptor.layout),
    ]


def section_addresses(descriptor: Descriptor) -> list[int]:
    """Where the sections are that the kernel reads."""
    layout, base = descriptor.layout, descriptor.buffer.data_ptr()
    return [base + WORD * section for section in (layout.order, layout.visits, layout.patterns, layout.columns)]


def sizes_of(query: torch.Tensor, key: torch.Tensor, layout: Layout) -> list[int]:
    """Numbers of heads and positions, and how masks lie in the descriptor."""
    heads = query.shape[1]
    return [
        *(heads, heads // key.shape[1], layout.queries, layout.keys, layout.query_tiles),
        *(layout.heads if layout.batch > 1 else 0, 1 if layout.heads > 1 else 0),
    ]


def strides(x: torch.Tensor) -> list[int]:
    """Strides of batches, heads and rows; 0 where there is only one."""
    return strides_of(x.shape, x.stride())


def strides_of(shape: Sequence[int], stride: Sequence[int]) -> list[int]:
    """As `strides`, of a tensor of this shape."""
    return [step if size > 1 else 0 for step, size in zip(stride[:3], shape[:3], strict=True)]


def readable(x: torch.Tensor) -> torch.Tensor:
    """The tensor as kernels can read it: a copy if its last dimension is not contiguous or its rows lie far apart."""
    if (x.stride(-1) == 1 or x.shape[-1] == 1) and x.stride(-2) <= LONGEST_ROW_STRIDE:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def is_aligned(x: torch.Tensor) -> bool:
    """Whether a tensor starts at a multiple of 16 bytes, and all its rows too."""
    return x.data_ptr() % ALIGNMENT == 0 and all(s * x.element_size() % ALIGNMENT == 0 for s in strides(x))
