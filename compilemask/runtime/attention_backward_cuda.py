"""The gradient of attention on a GPU: picks the kernels for head_dim and dtype, and launches them over descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from compilemask.dialects.triton.printing import print_generic
from compilemask.lowering.descriptor_layout import ceil_div
from compilemask.lowering.patch_grid import PatchGrid
from compilemask.lowering.tiling_to_tt.attention_backward_config import BackwardConfig, Side
from compilemask.lowering.tiling_to_tt.attention_backward_keys import emit_keys
from compilemask.lowering.tiling_to_tt.attention_backward_queries import emit_queries
from compilemask.lowering.tiling_to_tt.attention_backward_rows import ROWS, emit_rows
from compilemask.runtime.attention_cuda import ELEMENTS, WORD, is_aligned, readable, strides
from compilemask.runtime.compile_kernel import Options, kernel_for, target_of
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.gradient_inputs import GradientInputs, Gradients, no_gradients
from compilemask.runtime.gradient_memory import gradient_like
from compilemask.runtime.launch import launch

EMITTERS = {"keys": emit_keys, "queries": emit_queries}


class BackwardKernel(NamedTuple):
    """One variant of a kernel: Triton IR, how Triton schedules it, and the rows of a program."""

    text: str
    options: Options
    rows: int


@lru_cache(maxsize=256)
def backward_kernel(side: Side, head_dim: int, dtype: torch.dtype, target: str, aligned: bool = True) -> BackwardKernel:
    """The kernel of one side. Raises LoweringError for targets that it does not know."""
    config = BackwardConfig.choose(side, head_dim, ELEMENTS[dtype], target, aligned=aligned)
    text = print_generic(EMITTERS[side](head_dim, ELEMENTS[dtype], config))
    return BackwardKernel(text, Options(config.num_warps, config.num_stages), config.rows)


@lru_cache(maxsize=64)
def rows_kernel(
    head_dim: int, dtype: torch.dtype, aligned: bool, with_grad_lse: bool, patch: Sequence[int] | None = None
) -> str:
    """Triton IR of the kernel that comes before the two sides."""
    module = emit_rows(head_dim, ELEMENTS[dtype], aligned=aligned, with_grad_lse=with_grad_lse, patch=patch)
    return print_generic(module)


def attention_backward_cuda(inputs: GradientInputs) -> Gradients:
    """Gradients of query, key and value in their type. Does not wait.

    Nothing is summed by atomics: runs are equal bit by bit.
    """
    if inputs.is_empty:
        return no_gradients(inputs)
    tensors = [readable(x) for x in (inputs.query, inputs.key, inputs.value, inputs.grad_out)]
    gradients = Gradients(*(gradient_like(x) for x in (inputs.query, inputs.key, inputs.value)), tables=[])
    numbers = numbers_of_rows(inputs, tensors[3], inputs.query.shape[2])
    launch_side("queries", [*tensors, gradients.query], numbers, inputs.descriptor, inputs.scale)
    launch_side("keys", [*tensors, gradients.key, gradients.value], numbers, inputs.transposed, inputs.scale)
    return gradients


def numbers_of_rows(
    inputs: GradientInputs, grad: torch.Tensor, stored: int, grid: PatchGrid | None = None
) -> list[torch.Tensor]:
    """`shift` and `delta`, [B, Hq, stored] float32, of which the first Sq belong to queries; in patched order if given.

    `grad` is the gradient of the output as kernels can read it.
    """
    out, lse, grad_lse = readable(inputs.out), inputs.lse, inputs.grad_lse
    batch, heads, queries, head_dim = out.shape
    shift, delta = (lse.new_empty(batch, heads, stored) for _ in range(2))
    given = [lse] if grad_lse is None else [lse, grad_lse.float().contiguous()]
    aligned = is_aligned(out) and is_aligned(grad)
    text = rows_kernel(head_dim, out.dtype, aligned, grad_lse is not None, None if grid is None else grid.patch)
    kernel = kernel_for(text, out.device, Options(4))
    arguments = [*(x.data_ptr() for x in (out, grad, *given, shift, delta)), *strides(out), *strides(grad)]
    arguments += [heads, queries, stored, *(() if grid is None else grid.geometry)]
    launch(kernel, (ceil_div(stored, ROWS), heads, batch), out.device, arguments)
    return [shift, delta]


def launch_side(
    side: Side, tensors: Sequence[torch.Tensor], numbers: Sequence[torch.Tensor], along: Descriptor, scale: float
) -> None:
    """One kernel; the last of `tensors` are its outputs, and `along` has the side's positions as its rows."""
    query, output, layout = tensors[0], tensors[-1], along.layout
    target = str(target_of(query.device))
    aligned = all(is_aligned(x) for x in tensors)
    text, options, rows = backward_kernel(side, query.shape[3], query.dtype, target, aligned)
    grid = (layout.query_tiles * (layout.rows // rows), output.shape[1], output.shape[0])
    kernel = kernel_for(text, query.device, options)
    launch(kernel, grid, query.device, [*kernel_arguments(tensors, numbers, along), scale])


def kernel_arguments(tensors: Sequence[torch.Tensor], numbers: Sequence[torch.Tensor], along: Descriptor) -> list[int]:
    """Arguments of one side's kernel in order, all but the scale."""
    query, key, layout = tensors[0], tensors[1], along.layout
    base = along.buffer.data_ptr()
    sections = (layout.tiles, layout.order, layout.visits, layout.patterns, layout.columns)
    return [
        *(x.data_ptr() for x in (*tensors, *numbers)),
        *(base + WORD * section for section in sections),
        *(stride for x in tensors for stride in strides(x)),
        *(query.shape[1], query.shape[1] // key.shape[1], query.shape[2], key.shape[2], numbers[0].shape[2]),
        layout.query_tiles,
        *(layout.heads if layout.batch > 1 else 0, 1 if layout.heads > 1 else 0),
    ]
