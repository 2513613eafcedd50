"""The gradient of attention on a GPU: the Hopper kernel where it can be had, else the portable ones."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial

import torch

from compilemask.dialects.triton.printing import print_generic
from compilemask.errors import DescriptorError, LoweringError, TargetError
from compilemask.lowering.descriptor_layout import ceil_div
from compilemask.lowering.patch_grid import Patches, PatchGrid
from compilemask.lowering.tiling_to_tt.attention_backward_total import ROWS as TOTAL_ROWS
from compilemask.lowering.tiling_to_tt.attention_backward_total import emit_total
from compilemask.lowering.tiling_to_ttg.attention_backward import HopperBackwardConfig, emit_backward
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS, TILE, Patch, kernel_head_dim
from compilemask.runtime import disk_cache
from compilemask.runtime.attention_backward_cuda import attention_backward_cuda, launch_queries, numbers_of_rows
from compilemask.runtime.attention_cuda import ELEMENTS, WORD, strides
from compilemask.runtime.binary import Binary
from compilemask.runtime.compile_kernel import Options, kernel_for
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.driver import Argument, Kernel
from compilemask.runtime.gradient_inputs import GradientInputs, Gradients
from compilemask.runtime.gradient_memory import gradient_like
from compilemask.runtime.hopper import has_hopper_kernel
from compilemask.runtime.hopper_backward_queries import queries_plan
from compilemask.runtime.hopper_compile import HOPPER, compile_gpu_text, gpu_text
from compilemask.runtime.launch import launch
from compilemask.runtime.patch_maps import PatchMaps, geometry_of, has_patch_maps, patch_shapes_of
from compilemask.runtime.patched import gradients_in_patched_order
from compilemask.runtime.score_gradient import gradients_of_tensors
from compilemask.runtime.tensor_map import TensorMaps, is_aligned, is_readable

STATUS = 14
"""The header's word that says whether the descriptor had room."""


def attention_backward_gpu(inputs: GradientInputs) -> Gradients:
    """Gradients of query, key and value in their type. Does not wait.

    The Hopper kernel sums the gradient of queries in any order, unless PyTorch's deterministic algorithms are on: then
    runs are equal bit by bit.
    """
    query, layout = inputs.query, inputs.transposed.layout
    if not inputs.scoring.region and has_hopper_kernel(query, inputs.key, inputs.value, patches=layout.patches):
        sums_queries = not torch.are_deterministic_algorithms_enabled()
        config = _chosen(query.shape[3], query.dtype, sums_queries, *reversed(patch_shapes_of(layout)))
        if config is not None:
            return attention_backward_hopper(inputs, config)
    if layout.patches is not None:
        return gradients_in_patched_order(attention_backward_gpu, inputs)
    return attention_backward_cuda(inputs)


def attention_backward_hopper(inputs: GradientInputs, config: HopperBackwardConfig) -> Gradients:
    """The same by a variant of the Hopper kernel, for inputs of which `has_hopper_kernel` holds."""
    query, grad_out, layout = inputs.query, inputs.grad_out, inputs.transposed.layout
    if patch_shapes_of(layout) != (config.key_patch, config.query_patch):
        raise DescriptorError(f"the descriptor has {layout.patches or 'no patches'}, the kernel is {config}")
    grad_query, *others = (_gradient_like(x, layout.patches) for x in (query, inputs.key, inputs.value))
    if not _is_readable(grad_out, layout.patches):
        grad_out = grad_out.clone(memory_format=torch.contiguous_format)
    tensors = (query, inputs.key, inputs.value, grad_out)
    # The transposed descriptor has keys down and queries across.
    queries = None if layout.patches is None else layout.patches.keys
    places = query.shape[2] if queries is None else queries.tiles * TILE
    numbers = numbers_of_rows(inputs, grad_out, ceil_div(places, TILE) * TILE, queries)
    shape = (*query.shape[:2], places, query.shape[3])
    sums = query.new_zeros(shape, dtype=torch.float32) if config.sums_queries else None
    _launch_keys(config, tensors, numbers, sums, others, inputs.transposed, inputs.scale)
    if sums is None:
        _launch_queries([*tensors, grad_query], numbers, inputs)
    else:
        _launch_total(sums, grad_query, inputs.transposed, inputs.scale)
    delta = numbers[1][..., : query.shape[2]]
    return Gradients(grad_query, *others, tables=gradients_of_tensors(inputs, delta, []))


def _is_readable(x: torch.Tensor, patches: Patches | None) -> bool:
    size = x.dtype.itemsize
    return (
        is_aligned(x)
        and is_readable(x.shape, x.stride(), size)
        and (patches is None or has_patch_maps(x.shape, x.stride(), size, patches.sizes))
    )


def _gradient_like(x: torch.Tensor, patches: Patches | None) -> torch.Tensor:
    """Memory for a gradient that TMA can write."""
    gradient = gradient_like(x)
    return gradient if _is_readable(gradient, patches) else torch.empty_like(x, memory_format=torch.contiguous_format)


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
    (batch, heads, _, head_dim), key_heads = query.shape, key.shape[1]
    layout, base = transposed.layout, transposed.buffer.data_ptr()
    patches = layout.patches
    keys, queries = (None, None) if patches is None else (patches.queries, patches.keys)
    sides = ((config.queries, queries), (TILE, keys), (TILE, keys), (config.queries, queries))
    maps = [part for x, (rows, grid) in zip(inputs, sides, strict=True) for part in _maps_of(x, rows, grid)]
    maps += [_map(x.flatten(0, 1), 1, config.queries) for x in numbers]
    maps += [] if sums is None else [_map(sums.flatten(0, 1)[None], ROWS)]
    maps += [part for x in gradients for part in _maps_of(x, ROWS, keys)]
    arguments: list[Argument] = [
        *maps,
        *(base + WORD * section for section in (layout.tiles, layout.order, layout.visits, layout.patterns)),
        *(heads, heads // key_heads, layout.keys, layout.queries, layout.query_tiles),
        *(layout.heads if layout.batch > 1 else 0, 1 if layout.heads > 1 else 0),
        batch * key_heads,
        *geometry_of(layout),
        scale,
    ]
    kernel = _kernel(kernel_head_dim(head_dim) or head_dim, query.dtype, config, query.device.index)
    launch(kernel, (layout.query_tiles * batch * key_heads, 1, 1), query.device, arguments)


def _launch_queries(tensors: Sequence[torch.Tensor], numbers: Sequence[torch.Tensor], inputs: GradientInputs) -> None:
    """By the kernel for Hopper, else by the portable one; the last of `tensors` is the output."""
    plan = queries_plan(tensors, numbers[0].shape[2], inputs.descriptor)
    if plan is None:
        launch_queries(tensors, numbers, inputs)
    else:
        plan.launch(tensors, numbers, inputs.descriptor, inputs.scale)


def _launch_total(sums: torch.Tensor, gradient: torch.Tensor, transposed: Descriptor, scale: float) -> None:
    (batch, heads, queries, head_dim), layout = sums.shape, transposed.layout
    text = _total_text(head_dim, gradient.dtype, None if layout.patches is None else layout.patches.key_patch)
    kernel = kernel_for(text, sums.device, Options(4))
    status = transposed.buffer.data_ptr() + WORD * STATUS
    arguments = [sums.data_ptr(), gradient.data_ptr(), status, *strides(gradient), heads, queries]
    arguments += [*geometry_of(layout), scale]
    launch(kernel, (ceil_div(queries, TOTAL_ROWS), heads, batch), sums.device, arguments)


def _map(x: torch.Tensor, rows: int, columns: int | None = None) -> bytes:
    return _maps(x.shape, x.stride(), x.dtype, rows, columns)[x.data_ptr()]


def _maps_of(x: torch.Tensor, rows: int, grid: PatchGrid | None) -> Sequence[bytes]:
    """The maps of a tensor in order."""
    if grid is None:
        return [_map(x, rows)]
    return _patch_maps(x.shape, x.stride(), x.dtype, rows, grid).at(x.data_ptr())


_patch_maps = lru_cache(maxsize=512)(PatchMaps.of)


@lru_cache(maxsize=512)
def _maps(
    shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, rows: int, columns: int | None
) -> TensorMaps:
    return TensorMaps(shape, stride, dtype, rows, columns)


# ---------------------------------------------------------------- kernels


@lru_cache(maxsize=64)
def _total_text(head_dim: int, dtype: torch.dtype, patch: Patch | None) -> str:
    return print_generic(emit_total(head_dim, ELEMENTS[dtype], patch))


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
def _chosen(
    head_dim: int,
    dtype: torch.dtype,
    sums_queries: bool,
    query_patch: Patch | None = None,
    key_patch: Patch | None = None,
) -> HopperBackwardConfig | None:
    """The variant for these inputs; None if there is none for such patches, and, with a warning, if the installed
    Triton does not compile it.

    With patches there is none without sums, beside which the gradient of queries is left to a portable kernel.
    """
    dim = kernel_head_dim(head_dim) or head_dim
    if query_patch is not None and not sums_queries:
        return None
    try:
        config = HopperBackwardConfig.choose(dim, ELEMENTS[dtype], sums_queries=sums_queries)
        config = replace(config, query_patch=query_patch, key_patch=key_patch)
    except LoweringError:
        return None
    try:
        backward_binary(dim, dtype, config)
    except TargetError as error:
        warnings.warn(f"gradients use the portable kernels: {error}", RuntimeWarning, stacklevel=2)
        return None
    return config
