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
from compilemask.runtime.calls.gradient_inputs import GradientInputs, Gradients
from compilemask.runtime.calls.gradient_memory import gradient_like
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.gpu.attention_cuda import ALIGNMENT, ELEMENTS, WORD, is_aligned, readable, strides, strides_of
from compilemask.runtime.gpu.compile_kernel import Options, kernel_for, target_of
from compilemask.runtime.gpu.driver import Grid, Kernel
from compilemask.runtime.gpu.launch import empty, launch
from compilemask.runtime.score_gradient import DeviceSums, gradients_of_tensors, no_gradients, wanted_tables
from compilemask.runtime.scoring import Scoring, score_op


class BackwardKernel(NamedTuple):
    """One variant of a kernel: Triton IR, how Triton schedules it, and the rows of a program."""

    text: str
    options: Options
    rows: int


@lru_cache(maxsize=256)
def backward_kernel(
    side: Side,
    head_dim: int,
    dtype: torch.dtype,
    target: str,
    aligned: bool = True,
    score: str = "",
    wanted: tuple[int, ...] = (),
) -> BackwardKernel:
    """The kernel of one side, for a structure of scores; that of queries also has gradients of captured tables.

    Raises LoweringError for targets that it does not know.
    """
    element = ELEMENTS[dtype]
    config = BackwardConfig.choose(side, head_dim, element, target, aligned=aligned)
    if side == "keys":
        module = emit_keys(head_dim, element, config, score_op(score))
    else:
        module = emit_queries(head_dim, element, config, score_op(score), wanted)
    return BackwardKernel(print_generic(module), Options(config.num_warps, config.num_stages), config.rows)


@lru_cache(maxsize=64)
def rows_kernel(
    head_dim: int,
    dtype: torch.dtype,
    aligned: bool,
    with_grad_lse: bool,
    patch: Sequence[int] | None = None,
    clears_sums: bool = False,
) -> str:
    """Triton IR of the kernel that comes before the two sides."""
    return print_generic(
        emit_rows(
            head_dim,
            ELEMENTS[dtype],
            aligned=aligned,
            with_grad_lse=with_grad_lse,
            patch=patch,
            clears_sums=clears_sums,
        )
    )


def attention_backward_cuda(inputs: GradientInputs) -> Gradients:
    """Gradients of query, key and value, and of what a score modification captures. Does not wait.

    Runs are equal bit by bit, but for tables of which a head reads several entries: those are summed by atomics. Raises
    GradientError for them if PyTorch's deterministic algorithms are on.
    """
    if inputs.is_empty:
        return no_gradients(inputs)
    tensors = [readable(x) for x in (inputs.query, inputs.key, inputs.value, inputs.grad_out)]
    grad_query, *others = (gradient_like(x) for x in (inputs.query, inputs.key, inputs.value))
    numbers = numbers_of_rows(inputs, tensors[3], inputs.query.shape[2])
    scoring = inputs.scoring.for_kernels()
    totals = _launch_queries([*tensors, grad_query], numbers, inputs, scoring)
    keys = _Side("keys", [*tensors, *others], inputs.transposed, scoring.region)
    keys.launch(numbers, inputs.scale, scoring.kernel_arguments() if scoring.region else [])
    tables = gradients_of_tensors(inputs, numbers[1], totals)
    return Gradients(grad_query, *others, tables=tables)


def launch_queries(tensors: Sequence[torch.Tensor], numbers: Sequence[torch.Tensor], inputs: GradientInputs) -> None:
    """The kernel of queries, without a score modification; the last of `tensors` is its output."""
    _Side("queries", tensors, inputs.descriptor).launch(numbers, inputs.scale)


def _launch_queries(
    tensors: Sequence[torch.Tensor], numbers: Sequence[torch.Tensor], inputs: GradientInputs, scoring: Scoring
) -> list[torch.Tensor]:
    """The kernel of queries; the gradients of captured tables, in float32."""
    wanted = wanted_tables(inputs)
    side = _Side("queries", tensors, inputs.descriptor, scoring.region, tuple(wanted))
    if not scoring.region:
        side.launch(numbers, inputs.scale)
        return []
    sums = DeviceSums(scoring.text, wanted, inputs.query, side.grid[0])
    side.launch(numbers, inputs.scale, [*scoring.kernel_arguments(), *sums.arguments()])
    return sums.totals()


def numbers_of_rows(
    inputs: GradientInputs,
    grad: torch.Tensor,
    stored: int,
    grid: PatchGrid | None = None,
    sums: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """`shift` and `delta`, [B, Hq, stored] float32, of which the first Sq belong to queries; in patched order if given.

    `grad` is the gradient of the output as kernels can read it. `sums`, of the gradient of queries, are zeroed.
    """
    out, lse, grad_lse = readable(inputs.out), inputs.lse.contiguous(), inputs.grad_lse
    batch, heads, *_ = out.shape
    shape, stride = (batch, heads, stored), (heads * stored, stored, 1)
    shift, delta = (empty(shape, stride, torch.float32, out.device) for _ in range(2))
    given = (lse,) if grad_lse is None else (lse, grad_lse.float().contiguous())
    addresses = [x.data_ptr() for x in (out, grad, *given, shift, delta, *(() if sums is None else (sums,)))]
    starts_aligned = not (addresses[0] | addresses[1]) % ALIGNMENT
    form = (out.shape, out.stride(), grad.stride(), out.dtype, out.device)
    plan = _rows_plan(*form, starts_aligned, grad_lse is not None, stored, grid, sums is not None)
    launch(plan.kernel, plan.grid, out.device, addresses + plan.numbers)
    return [shift, delta]


class _RowsPlan(NamedTuple):
    """All of that launch that addresses do not decide, but for whether they are aligned."""

    kernel: Kernel
    grid: Grid
    numbers: list[int]
    """The arguments behind addresses."""


@lru_cache(maxsize=256)
def _rows_plan(
    shape: Sequence[int],
    stride: Sequence[int],
    grad_stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    starts_aligned: bool,
    with_grad_lse: bool,
    stored: int,
    grid: PatchGrid | None,
    clears_sums: bool,
) -> _RowsPlan:
    batch, heads, queries, head_dim = shape
    steps = strides_of(shape, stride) + strides_of(shape, grad_stride)
    aligned = starts_aligned and all(step * dtype.itemsize % ALIGNMENT == 0 for step in steps)
    text = rows_kernel(head_dim, dtype, aligned, with_grad_lse, None if grid is None else grid.patch, clears_sums)
    numbers = [*steps, heads, queries, stored, *(() if grid is None else grid.geometry)]
    return _RowsPlan(kernel_for(text, device, Options(4)), (ceil_div(stored, ROWS), heads, batch), numbers)


def forget() -> None:
    """Drop the kernels that plans hold."""
    _rows_plan.cache_clear()


class _Side:
    """The kernel of one side; the last of `tensors` are its outputs, and `along` has the side's positions as rows."""

    def __init__(
        self,
        side: Side,
        tensors: Sequence[torch.Tensor],
        along: Descriptor,
        score: str = "",
        wanted: tuple[int, ...] = (),
    ) -> None:
        query, output, layout = tensors[0], tensors[-1], along.layout
        aligned = all(is_aligned(x) for x in tensors)
        target = str(target_of(query.device))
        kernel = backward_kernel(side, query.shape[3], query.dtype, target, aligned, score, wanted)
        self.tensors, self.along, self.kernel = tensors, along, kernel
        self.grid = (layout.query_tiles * (layout.rows // kernel.rows), output.shape[1], output.shape[0])

    def launch(self, numbers: Sequence[torch.Tensor], scale: float, more: Sequence[int | float] = ()) -> None:
        """Launches it; `more` are the arguments of a score modification."""
        device = self.tensors[0].device
        kernel = kernel_for(self.kernel.text, device, self.kernel.options)
        launch(kernel, self.grid, device, [*kernel_arguments(self.tensors, numbers, self.along), scale, *more])


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
