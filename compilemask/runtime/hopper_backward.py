"""The gradient of attention on a GPU: the Hopper kernel where it can be had, else the portable ones."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache, lru_cache, partial

import torch

from compilemask.dialects.triton.printing import print_generic
from compilemask.errors import TargetError
from compilemask.lowering.descriptor_layout import ceil_div
from compilemask.lowering.tiling_to_tt.attention_backward_total import ROWS as TOTAL_ROWS
from compilemask.lowering.tiling_to_tt.attention_backward_total import emit_total
from compilemask.lowering.tiling_to_ttg.attention_backward import HopperBackwardConfig, emit_backward
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS, TILE, kernel_head_dim
from compilemask.runtime import disk_cache
from compilemask.runtime.attention_backward_cuda import attention_backward_cuda, launch_side, numbers_of_rows
from compilemask.runtime.attention_cuda import ELEMENTS, WORD, strides
from compilemask.runtime.binary import Binary
from compilemask.runtime.compile_kernel import Options, kernel_for
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.driver import Argument, Kernel
from compilemask.runtime.gradient_inputs import GradientInputs, Gradients
from compilemask.runtime.gradient_memory import gradient_like
from compilemask.runtime.hopper import has_hopper_kernel
from compilemask.runtime.hopper_compile import HOPPER, compile_gpu_text, gpu_text
from compilemask.runtime.launch import launch
from compilemask.runtime.tensor_map import TensorMaps, is_aligned, is_readable

STATUS = 14
"""The header's word that says whether the descriptor had room."""


def attention_backward_gpu(inputs: GradientInputs) -> Gradients:
    """Gradients of query, key and value in their type. Does not wait.

    The Hopper kernel sums the gradient of queries in any order, unless PyTorch's deterministic algorithms are on: then
    runs are equal bit by bit.
    """
    query = inputs.query
    if has_hopper_kernel(query, inputs.key, inputs.value):
        config = _chosen(query.shape[3], query.dtype, not torch.are_deterministic_algorithms_enabled())
        if config is not None:
            return attention_backward_hopper(inputs, config)
    return attention_backward_cuda(inputs)


def attention_backward_hopper(inputs: GradientInputs, config: HopperBackwardConfig) -> Gradients:
    """The same by a variant of the Hopper kernel, for inputs of which `has_hopper_kernel` holds."""
    query, grad_out = inputs.query, inputs.grad_out
    gradients = Gradients(*(_gradient_like(x) for x in (query, inputs.key, inputs.value)), tables=[])
    if not _is_readable(grad_out):
        grad_out = grad_out.clone(memory_format=torch.contiguous_format)
    tensors = (query, inputs.key, inputs.value, grad_out)
    numbers = numbers_of_rows(inputs, grad_out, ceil_div(query.shape[2], TILE) * TILE)
    sums = query.new_zeros(query.shape, dtype=torch.float32) if config.sums_queries else None
    _launch_keys(config, tensors, numbers, sums, gradients[1:3], inputs.transposed, inputs.scale)
    if sums is None:
        launch_side("queries", [*tensors, gradients.query], numbers, inputs.descriptor, inputs.scale)
    else:
        _launch_total(sums, gradients.query, inputs.transposed, inputs.scale)
    return gradients


def _is_readable(x: torch.Tensor) -> bool:
    return is_aligned(x) and is_readable(x.shape, x.stride(), x.dtype.itemsize)


def _gradient_like(x: torch.Tensor) -> torch.Tensor:
    """Memory for a gradient that TMA can write."""
    gradient = gradient_like(x)
    return gradient if _is_readable(gradient) else torch.empty_like(x, memory_format=torch.contiguous_format)


# ---------------------------------------------------------------- launches


def _launch_keys(
    config: HopperBackwardConfig,
    inputs: Sequence[torch.Tensor],
    numbers: Sequence[torch.Tensor],
    sums: torch.Tensor | None,
    gradients: Sequence[torch.Tensor],
    transposed: Descriptor,
    scale: float,
) -> None:
    query, key = inputs[:2]
    (batch, heads, queries, head_dim), key_heads = query.shape, key.shape[1]
    rows = (config.queries, TILE, TILE, config.queries)
    maps = [_map(x, size) for x, size in zip(inputs, rows, strict=True)]
    maps += [_map(x.flatten(0, 1), 1, config.queries) for x in numbers]
    maps += [] if sums is None else [_map(sums, ROWS)]
    maps += [_map(x, ROWS) for x in gradients]
    layout, base = transposed.layout, transposed.buffer.data_ptr()
    arguments: list[Argument] = [
        *maps,
        *(base + WORD * section for section in (layout.tiles, layout.order, layout.visits, layout.patterns)),
        *(heads, heads // key_heads, queries, layout.queries, layout.query_tiles),
        *(layout.heads if layout.batch > 1 else 0, 1 if layout.heads > 1 else 0),
        scale,
    ]
    kernel = _kernel(kernel_head_dim(head_dim) or head_dim, query.dtype, config, query.device.index)
    launch(kernel, (layout.query_tiles, key_heads, batch), query.device, arguments)


def _launch_total(sums: torch.Tensor, gradient: torch.Tensor, transposed: Descriptor, scale: float) -> None:
    batch, heads, queries, head_dim = sums.shape
    kernel = kernel_for(_total_text(head_dim, gradient.dtype), sums.device, Options(4))
    status = transposed.buffer.data_ptr() + WORD * STATUS
    arguments = [sums.data_ptr(), gradient.data_ptr(), status, *strides(gradient), heads, queries, scale]
    launch(kernel, (ceil_div(queries, TOTAL_ROWS), heads, batch), sums.device, arguments)


def _map(x: torch.Tensor, rows: int, columns: int | None = None) -> bytes:
    return _maps(x.shape, x.stride(), x.dtype, rows, columns)[x.data_ptr()]


@lru_cache(maxsize=512)
def _maps(
    shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, rows: int, columns: int | None
) -> TensorMaps:
    return TensorMaps(shape, stride, dtype, rows, columns)


# ---------------------------------------------------------------- kernels


@lru_cache(maxsize=64)
def _total_text(head_dim: int, dtype: torch.dtype) -> str:
    return print_generic(emit_total(head_dim, ELEMENTS[dtype]))


def backward_text(head_dim: int, dtype: torch.dtype, config: HopperBackwardConfig) -> str:
    """A variant of the kernel in Triton-GPU IR. Raises LoweringError if there is none."""
    return gpu_text(emit_backward(head_dim, ELEMENTS[dtype], config))


@lru_cache(maxsize=64)
def backward_binary(head_dim: int, dtype: torch.dtype, config: HopperBackwardConfig) -> Binary:
    """A compiled variant of the kernel. Needs no GPU. Raises LoweringError or TargetError if there is none."""
    name = f"attention_backward {head_dim} {dtype} {config}"
    found = disk_cache.find(name, HOPPER)
    if found is None:
        found = compile_gpu_text(backward_text(head_dim, dtype, config))
        disk_cache.keep(name, HOPPER, found)
    return found


def forget() -> None:
    """Drop all kernels: those that are asked for from now on are compiled, or loaded from disk, anew."""
    backward_binary.cache_clear()
    _kernel.cache_clear()


@lru_cache(maxsize=64)
def _kernel(head_dim: int, dtype: torch.dtype, config: HopperBackwardConfig, device: int) -> Kernel:
    binary = backward_binary(head_dim, dtype, config)
    with torch.cuda.device(device):
        return Kernel(binary, cache(partial(backward_text, head_dim, dtype, config)), device)


@cache
def _chosen(head_dim: int, dtype: torch.dtype, sums_queries: bool) -> HopperBackwardConfig | None:
    """The variant for these inputs; None, and a warning, if the installed Triton does not compile it."""
    dim = kernel_head_dim(head_dim) or head_dim
    config = HopperBackwardConfig.choose(dim, ELEMENTS[dtype], sums_queries=sums_queries)
    try:
        backward_binary(dim, dtype, config)
    except TargetError as error:
        warnings.warn(f"gradients use the portable kernels: {error}", RuntimeWarning, stacklevel=2)
        return None
    return config
