"""The gradient of queries by the Hopper kernel that sums nothing in memory: the plan of a launch, and its kernel."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache, lru_cache, partial
from typing import NamedTuple

import torch

from compilemask.errors import TargetError
from compilemask.lowering.descriptor_layout import Layout
from compilemask.lowering.tiling_to_ttg.attention_backward_queries import HopperQueriesConfig, emit_backward_queries
from compilemask.lowering.tiling_to_ttg.attention_backward_queries_frame import SECTIONS
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS, kernel_head_dim
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.gpu.attention_cuda import ELEMENTS, WORD
from compilemask.runtime.gpu.binary import Binary
from compilemask.runtime.gpu.driver import Argument, Grid, Kernel
from compilemask.runtime.gpu.hopper_compile import gpu_text, kept_binary
from compilemask.runtime.gpu.launch import launch
from compilemask.runtime.gpu.tensor_map import TensorMaps

Form = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape and strides of a tensor."""


class QueriesPlan(NamedTuple):
    """All of a launch that its inputs' addresses do not decide."""

    kernel: Kernel
    grid: Grid
    maps: tuple[TensorMaps, ...]
    """Of query, key, value, the gradient of the output, and that of query."""
    sections: tuple[int, ...]
    """Where in a descriptor the sections start that the kernel reads, in bytes."""
    numbers: tuple[int, ...]
    device: torch.device

    def launch(
        self, tensors: Sequence[torch.Tensor], numbers: Sequence[torch.Tensor], descriptor: Descriptor, scale: float
    ) -> None:
        """Starts the kernel for tensors in the order of `maps`, and `shift` and `delta`. Does not wait."""
        base = descriptor.buffer.data_ptr()
        arguments: list[Argument] = [
            *(maps[x.data_ptr()] for maps, x in zip(self.maps, tensors, strict=True)),
            *(x.data_ptr() for x in numbers),
            *(base + section for section in self.sections),
            *self.numbers,
            scale,
        ]
        launch(self.kernel, self.grid, self.device, arguments)


def queries_plan(tensors: Sequence[torch.Tensor], stored: int, descriptor: Descriptor) -> QueriesPlan | None:
    """The plan for tensors in the order of `QueriesPlan.maps`, which TMA can read; None if there is no kernel."""
    query = tensors[0]
    forms = tuple((tuple(x.shape), x.stride()) for x in tensors)
    return _plan(forms, query.dtype, query.device, stored, descriptor.layout)


@lru_cache(maxsize=256)
def _plan(
    forms: tuple[Form, ...], dtype: torch.dtype, device: torch.device, stored: int, layout: Layout
) -> QueriesPlan | None:
    (batch, heads, queries, head_dim), (_, key_heads, keys, _) = forms[0][0], forms[1][0]
    config = _chosen(head_dim, dtype)
    if config is None:
        return None
    rows = (ROWS, config.keys, config.keys, ROWS, ROWS)
    numbers = (
        *(heads, heads // key_heads, queries, keys, stored, layout.query_tiles),
        *(layout.heads if layout.batch > 1 else 0, 1 if layout.heads > 1 else 0),
        batch * heads,
    )
    return QueriesPlan(
        kernel=_kernel(kernel_head_dim(head_dim) or head_dim, dtype, config, device.index),
        grid=(layout.query_tiles * batch * heads, 1, 1),
        maps=tuple(TensorMaps(*form, dtype, size) for form, size in zip(forms, rows, strict=True)),
        sections=tuple(WORD * getattr(layout, name) for name in SECTIONS),
        numbers=numbers,
        device=device,
    )


# ---------------------------------------------------------------- kernels


def queries_text(head_dim: int, dtype: torch.dtype, config: HopperQueriesConfig) -> str:
    """A variant of the kernel in Triton-GPU IR. Raises LoweringError if there is none."""
    return gpu_text(emit_backward_queries(head_dim, ELEMENTS[dtype], config))


@lru_cache(maxsize=64)
def queries_binary(head_dim: int, dtype: torch.dtype, config: HopperQueriesConfig) -> Binary:
    """A compiled variant of the kernel. Needs no GPU. Raises LoweringError or TargetError if there is none."""
    name = f"attention_backward_queries {head_dim} {dtype} {config}"
    return kept_binary(name, partial(queries_text, head_dim, dtype, config))


def forget() -> None:
    """Drop all kernels: those that are asked for from now on are compiled, or loaded from disk, anew."""
    for kept in (queries_binary, _kernel, _plan):
        kept.cache_clear()


@lru_cache(maxsize=64)
def _kernel(head_dim: int, dtype: torch.dtype, config: HopperQueriesConfig, device: int) -> Kernel:
    binary = queries_binary(head_dim, dtype, config)
    with torch.cuda.device(device):
        return Kernel(binary, partial(queries_text, head_dim, dtype, config), device)


@cache
def _chosen(head_dim: int, dtype: torch.dtype) -> HopperQueriesConfig | None:
    """The variant for these inputs; None, and a warning, if the installed Triton does not compile it."""
    dim = kernel_head_dim(head_dim) or head_dim
    config = HopperQueriesConfig.choose(dim, ELEMENTS[dtype])
    try:
        queries_binary(dim, dtype, config)
    except TargetError as error:
        warnings.warn(f"the gradient of queries uses the portable kernel: {error}", RuntimeWarning, stacklevel=2)
        return None
    return config
