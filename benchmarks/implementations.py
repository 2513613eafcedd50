"""What benchmarks compare: each implementation prepares a case once and then runs one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from cases import Case

import compilemask as cm
from compilemask.runtime.gpu.hopper import best_rows

Call = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Prepared:
    """Calls that can be timed: the forward pass alone and, where it is apart, building the mask, and both.

    A build that is not `capturable` copies from the host, and is timed as a plain call.
    """

    forward: Call
    build: Callable[[], object] | None = None
    both: Call | None = None
    capturable: bool = True


def compilemask(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Prepared:
    """This project, along a descriptor in the tiles that `cm.attention` asks for."""
    compiled = cm.compile(case.mask)

    def build() -> cm.Descriptor:
        # Not `compiled.descriptor`: it keeps what depends on host integers alone.
        if not q.requires_grad:
            return _built(compiled, q.shape[2], k.shape[2], q.device, best_rows(q, k, v))
        descriptor = _built(compiled, q.shape[2], k.shape[2], q.device)
        return replace(descriptor, transposed=_built(compiled.transposed, k.shape[2], q.shape[2], q.device))

    descriptor = build()
    return Prepared(lambda: cm.attention(q, k, v, descriptor), build, lambda: cm.attention(q, k, v, build()))


def _built(
    compiled: cm.Compiled, queries: int, keys: int, device: torch.device, rows: int | None = None
) -> cm.Descriptor:
    program = compiled.program if rows is None else compiled.program.in_tiles_of(rows)
    return program.build(compiled.parameters, queries, keys, device)


def _flex(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, str]) -> Prepared:
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

    torch._dynamo.reset()
    attend = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    is_grouped = q.shape[1] != k.shape[1]
    build_compiled = torch.compile(create_block_mask, dynamic=False)

    def build() -> BlockMask:
        return build_compiled(case.predicate, None, None, q.shape[2], k.shape[2], device=str(q.device))

    def forward(block_mask: BlockMask) -> torch.Tensor:
        return attend(q, k, v, block_mask=block_mask, enable_gqa=is_grouped, kernel_options=options or None)

    return Prepared(partial(forward, build()), build, lambda: forward(build()), capturable=False)


def flex_triton(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Prepared:
    """FlexAttention's Triton backend, compiled."""
    return _flex(case, q, k, v, {})


def flex_fa4(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Prepared:
    """FlexAttention with FlashAttention 4 behind it."""
    return _flex(case, q, k, v, {"BACKEND": "FLASH"})


def cudnn(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Prepared:
    """cuDNN through scaled_dot_product_attention; causal only."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if case.name != "causal":
        raise ValueError("cuDNN is compared on causal only")

    def forward() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    return Prepared(forward)


def fa4(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Prepared:
    """FlashAttention 4's own causal kernel, in its [B, S, H, D] layout."""
    from flash_attn.cute.interface import _flash_attn_fwd

    if case.name != "causal":
        raise ValueError("FlashAttention 4 alone is compared on causal only")
    moved = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    scale = q.shape[-1] ** -0.5

    def forward() -> torch.Tensor:
        return _flash_attn_fwd(*moved, softmax_scale=scale, return_lse=True, causal=True)[0].transpose(1, 2)

    return Prepared(forward)


IMPLEMENTATIONS = {
    "compilemask": compilemask,
    "flex-triton": flex_triton,
    "flex-fa4": flex_fa4,
    "cudnn": cudnn,
    "fa4": fa4,
}
