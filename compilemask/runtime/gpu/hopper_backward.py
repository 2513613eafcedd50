"""The gradient of attention on a GPU: the Hopper kernel where it can be had, else the portable ones."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache, lru_cache, partial
from itertools import accumulate
from operator import mul
from typing import NamedTuple

import torch

from compilemask.dialects.triton.printing import print_generic
from compilemask.errors import DescriptorError, LoweringError, TargetError
from compilemask.lowering.descriptor_layout import Layout, ceil_div
from compilemask.lowering.patch_grid import Patches, PatchGrid
from compilemask.lowering.tiling_to_tt.attention_backward_total import ROWS as TOTAL_ROWS
from compilemask.lowering.tiling_to_tt.attention_backward_total import emit_total
from compilemask.lowering.tiling_to_tt.sum_blocks import SIDE, WORDS, blocks_of
from compilemask.lowering.tiling_to_ttg.attention_backward import HopperBackwardConfig, emit_backward
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import SECTIONS
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS, TILE, Patch, kernel_head_dim
from compilemask.runtime.calls.gradient_inputs import GradientInputs, Gradients
from compilemask.runtime.calls.gradient_memory import gradient_like
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.gpu.attention_backward_cuda import attention_backward_cuda, launch_queries, numbers_of_rows
from compilemask.runtime.gpu.attention_cuda import ELEMENTS, WORD, strides_of
from compilemask.runtime.gpu.binary import Binary
from compilemask.runtime.gpu.compile_kernel import Options, kernel_for
from compilemask.runtime.gpu.driver import Argument, Grid, Kernel
from compilemask.runtime.gpu.hopper import Kind, is_supported, kind_of
from compilemask.runtime.gpu.hopper_backward_queries import Form, queries_plan
from compilemask.runtime.gpu.hopper_compile import gpu_text, kept_binary
from compilemask.runtime.gpu.launch import empty, launch
from compilemask.runtime.gpu.patch_maps import PatchMaps, geometry_of, has_patch_maps, patch_shapes_of
from compilemask.runtime.gpu.tensor_map import TensorMaps, is_aligned, is_readable
from compilemask.runtime.patched import gradients_in_patched_order
from compilemask.runtime.score_gradient import gradients_of_tensors

STATUS = 14
"""The header's word that says whether the descriptor had room."""


def attention_backward_gpu(inputs: GradientInputs) -> Gradients:
    """Gradients of query, key and value in their type. Does not wait.

    The Hopper kernel sums the gradient of queries in any order, unless PyTorch's deterministic algorithms are on: then
    runs are equal bit by bit.
    """
    query, key, value, layout = inputs.query, inputs.key, inputs.value, inputs.transposed.layout
    if not inputs.scoring.region and is_aligned(query, key, value):
        inputs = _with_aligned_gradient(inputs)
        sums_queries = not torch.are_deterministic_algorithms_enabled()
        plan = plan_along(kind_of(query, key, value), inputs.grad_out.stride(), layout, sums_queries)
        if plan is not None:
            return gradients_by(plan, inputs)
    if layout.patches is not None:
        return gradients_in_patched_order(attention_backward_gpu, inputs)
    return attention_backward_cuda(inputs)


def attention_backward_hopper(inputs: GradientInputs, config: HopperBackwardConfig) -> Gradients:
    """The same by a variant of the Hopper kernel, for inputs of which `has_hopper_kernel` holds."""
    inputs = _with_aligned_gradient(inputs)
    kind = kind_of(inputs.query, inputs.key, inputs.value)
    return gradients_by(_plan(kind, inputs.grad_out.stride(), inputs.transposed.layout, config), inputs)


def _with_aligned_gradient(inputs: GradientInputs) -> GradientInputs:
    if is_aligned(inputs.grad_out):
        return inputs
    return inputs._replace(grad_out=inputs.grad_out.clone(memory_format=torch.contiguous_format))


def gradients_by(plan: Plan, inputs: GradientInputs) -> Gradients:
    """Gradients by the plan for such inputs, which are aligned. Does not wait."""
    query, key, value, grad_out = inputs.query, inputs.key, inputs.value, inputs.grad_out
    if plan.copies_gradient:
        grad_out = grad_out.clone(memory_format=torch.contiguous_format)
    grad_query, grad_key, grad_value = (empty(*form, query.dtype, plan.device) for form in plan.gradients)
    tensors, total = (query, key, value, grad_out), plan.total
    if total is None:
        numbers = numbers_of_rows(inputs, grad_out, plan.stored, plan.queries)
        plan.launch((*tensors, *numbers, grad_key, grad_value), None, inputs.transposed, inputs.scale)
        _launch_queries([*tensors, grad_query], numbers, inputs)
    else:
        sums = empty(*total.form, torch.float32, plan.device)
        numbers = numbers_of_rows(inputs, grad_out, plan.stored, plan.queries, sums)
        plan.launch((*tensors, *numbers, grad_key, grad_value), sums, inputs.transposed, inputs.scale)
        total.launch(sums, grad_query, inputs.transposed, inputs.scale)
    has_tables = any(inputs.wanted)
    tables = gradients_of_tensors(inputs, numbers[1][..., : query.shape[2]], []) if has_tables else []
    return Gradients(grad_query, grad_key, grad_value, tables)


def _launch_queries(tensors: Sequence[torch.Tensor], numbers: Sequence[torch.Tensor], inputs: GradientInputs) -> None:
    """By the kernel for Hopper, else by the portable one; the last of `tensors` is the output."""
    plan = queries_plan(tensors, numbers[0].shape[2], inputs.descriptor)
    if plan is None:
        launch_queries(tensors, numbers, inputs)
    else:
        plan.launch(tensors, numbers, inputs.descriptor, inputs.scale)


# ---------------------------------------------------------------- plans


class TotalPlan(NamedTuple):
    """The launch that rounds what was summed of the gradient of queries."""

    kernel: Kernel
    grid: Grid
    form: Form
    """Of the sums: the blocks of `sum_blocks.py`, in the order in which the kernel of keys reads queries."""
    numbers: tuple[int, ...]

    def launch(self, sums: torch.Tensor, gradient: torch.Tensor, transposed: Descriptor, scale: float) -> None:
        """Starts the kernel. Does not wait."""
        status = transposed.buffer.data_ptr() + WORD * STATUS
        addresses = (sums.data_ptr(), gradient.data_ptr(), status)
        launch(self.kernel, self.grid, sums.device, [*addresses, *self.numbers, scale])


class Plan(NamedTuple):
    """All of the launches that their inputs' addresses do not decide."""

    kernel: Kernel
    """Of keys."""
    grid: Grid
    maps: tuple[tuple[TensorMaps, int, int], ...]
    """In the order of the kernel's arguments: the number of the tensor, and in bytes how far from its start."""
    sections: tuple[int, ...]
    """Where in a descriptor the sections start that the kernel reads, in bytes."""
    numbers: tuple[int, ...]
    gradients: tuple[Form, ...]
    """Of query, key and value."""
    stored: int
    """Rows of numbers that belong to queries."""
    queries: PatchGrid | None
    """The image that queries are in patches of."""
    copies_gradient: bool
    """Whether TMA cannot read the gradient of the output."""
    total: TotalPlan | None
    device: torch.device

    def launch(
        self, tensors: Sequence[torch.Tensor], sums: torch.Tensor | None, transposed: Descriptor, scale: float
    ) -> None:
        """Starts the kernel of keys for the tensors that `maps` number. Does not wait."""
        addresses = [x.data_ptr() for x in tensors]
        base = transposed.buffer.data_ptr()
        arguments: list[Argument] = [
            *[maps[addresses[number] + offset] for maps, number, offset in self.maps],
            *([] if sums is None else [sums.data_ptr()]),
            *[base + section for section in self.sections],
            *self.numbers,
            scale,
        ]
        launch(self.kernel, self.grid, self.device, arguments)


@lru_cache(maxsize=256)
def plan_along(kind: Kind, grad_stride: Sequence[int], layout: Layout, sums_queries: bool) -> Plan | None:
    """The plan for aligned inputs and the transposed layout; None if the Hopper kernel does not take them."""
    if not is_supported(kind, layout.patches):
        return None
    config = _chosen(kind.query_shape[3], kind.dtype, sums_queries, *reversed(patch_shapes_of(layout)))
    return None if config is None else _plan(kind, grad_stride, layout, config)


@lru_cache(maxsize=256)
def _plan(kind: Kind, grad_stride: Sequence[int], layout: Layout, config: HopperBackwardConfig) -> Plan:
    """The plan of a variant."""
    if patch_shapes_of(layout) != (config.key_patch, config.query_patch):
        raise DescriptorError(f"the descriptor has {layout.patches or 'no patches'}, the kernel is {config}")
    (batch, heads, length, head_dim), key_heads = kind.query_shape, kind.key_shape[1]
    # The transposed descriptor has keys down and queries across.
    patches = layout.patches
    keys, queries = (None, None) if patches is None else (patches.queries, patches.keys)
    places = length if queries is None else queries.tiles * TILE
    stored = ceil_div(places, TILE) * TILE
    of_queries, of_keys = tuple(kind.query_shape), tuple(kind.key_shape)
    query, grad_out = ((of_queries, tuple(stride)) for stride in (kind.query_stride, grad_stride))
    key, value = ((of_keys, tuple(stride)) for stride in (kind.key_stride, kind.value_stride))
    copies_gradient = not _is_readable(grad_out, kind.dtype, patches)
    if copies_gradient:
        grad_out = _contiguous(of_queries)
    gradients = tuple(_form_of_gradient(form, kind.dtype, patches) for form in (query, key, value))
    total = _total_plan(kind, gradients[0], places, stored, layout) if config.sums_queries else None
    numbers = TensorMaps(*_contiguous((batch * heads, stored)), torch.float32, 1, config.queries)
    maps = [
        _maps(query, kind.dtype, config.queries, queries),
        _maps(key, kind.dtype, TILE, keys),
        _maps(value, kind.dtype, TILE, keys),
        _maps(grad_out, kind.dtype, config.queries, queries),
        *([(numbers, 0)],) * 2,
        *(_maps(form, kind.dtype, ROWS, keys) for form in gradients[1:]),
    ]
    return Plan(
        kernel=_kernel(kernel_head_dim(head_dim) or head_dim, kind.dtype, config, kind.device.index),
        grid=(layout.query_tiles * batch * key_heads, 1, 1),
        maps=tuple((part, number, offset) for number, parts in enumerate(maps) for part, offset in parts),
        sections=tuple(WORD * getattr(layout, name) for name in SECTIONS),
        numbers=(
            *(heads, heads // key_heads, layout.keys, layout.queries, layout.query_tiles),
            *(layout.heads if layout.batch > 1 else 0, 1 if layout.heads > 1 else 0),
            batch * key_heads,
            *geometry_of(layout),
        ),
        gradients=gradients,
        stored=stored,
        queries=queries,
        copies_gradient=copies_gradient,
        total=total,
        device=kind.device,
    )


def _total_plan(kind: Kind, gradient: Form, places: int, stored: int, layout: Layout) -> TotalPlan:
    batch, heads, _, head_dim = kind.query_shape
    text = _total_text(head_dim, kind.dtype, None if layout.patches is None else layout.patches.key_patch)
    return TotalPlan(
        kernel=kernel_for(text, kind.device, Options(4)),
        grid=(ceil_div(places, TOTAL_ROWS), heads, batch),
        form=_contiguous((batch * heads * blocks_of(stored, head_dim), WORDS)),
        numbers=(*strides_of(*gradient), heads, places, stored // SIDE, *geometry_of(layout)),
    )


def _maps(form: Form, dtype: torch.dtype, rows: int, grid: PatchGrid | None) -> Sequence[tuple[TensorMaps, int]]:
    """The maps of a tensor in order, and how far from its start what they show begins."""
    if grid is None:
        return [(TensorMaps(*form, dtype, rows), 0)]
    found = PatchMaps.of(*form, dtype, rows, grid)
    return [(found.sequence, 0), (found.before, 0), (found.image, found.offset)]


def _is_readable(form: Form, dtype: torch.dtype, patches: Patches | None) -> bool:
    size = dtype.itemsize
    return is_readable(*form, size) and (patches is None or has_patch_maps(*form, size, patches.sizes))


def _form_of_gradient(form: Form, dtype: torch.dtype, patches: Patches | None) -> Form:
    """Of memory for a gradient that TMA can write."""
    shape, stride = form
    found = (shape, gradient_like(torch.empty_strided(shape, stride, dtype=dtype, device="meta")).stride())
    return found if _is_readable(found, dtype, patches) else _contiguous(shape)


def _contiguous(shape: tuple[int, ...]) -> Form:
    return shape, tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1]


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
    return kept_binary(name, partial(backward_text, head_dim, dtype, config))


def forget() -> None:
    """Drop all kernels: those that are asked for from now on are compiled, or loaded from disk, anew."""
    for kept in (backward_binary, _kernel, _plan, plan_along):
        kept.cache_clear()


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
        config = HopperBackwardConfig.choose(
            dim, ELEMENTS[dtype], sums_queries=sums_queries, query_patch=query_patch, key_patch=key_patch
        )
    except LoweringError:
        return None
    try:
        backward_binary(dim, dtype, config)
    except TargetError as error:
        warnings.warn(f"gradients use the portable kernels: {error}", RuntimeWarning, stacklevel=2)
        return None
    return config
