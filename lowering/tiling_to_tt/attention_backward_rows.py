"""The kernel `attention_backward_rows`: what the other backward kernels need to know of each query row.

`shift` is the log-sum-exp in base 2, +inf in a row that sees nothing, so that all its weights are 0. `delta` is the
gradient along the row's output less that of its log-sum-exp, 0 in such a row. Both have `stored` >= Sq numbers per
head; rows behind Sq see nothing. Where tiles are patches, both are in patched order, and missing rows see nothing.
With `clears_sums`, memory for the sum of the gradient of queries (`sum_blocks.py`) is zeroed beside that.
Grid: (ceil(stored / ROWS), Hq, B).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.dialects.builtin import AnyFloat, ModuleOp

from compilemask.lowering.tiling_to_tt.attention_addresses import VECTOR_BYTES, Addresses, stride_arguments
from compilemask.lowering.tiling_to_tt.attention_backward_frame import numbers_of_head
from compilemask.lowering.tiling_to_tt.attention_softmax import LOG2_E
from compilemask.lowering.tiling_to_tt.builder import Arg, KernelBuilder, Value, f32, i32, i64, ptr
from compilemask.lowering.tiling_to_tt.patch_order import PatchOrder, geometry_arguments
from compilemask.lowering.tiling_to_tt.sum_blocks import SIDE, blocks_of

NAME = "attention_backward_rows"
ROWS = 32
"""Rows of a program."""


def kernel_arguments(
    element_type: AnyFloat,
    aligned: bool,
    with_grad_lse: bool,
    patch: Sequence[int] | None = None,
    clears_sums: bool = False,
) -> list[Arg]:
    """The kernel's arguments in order."""
    tensors = ("out", "grad")
    sums = [Arg("sum_q", ptr(f32), VECTOR_BYTES)] if clears_sums else []
    return [
        *(Arg(name, ptr(element_type), VECTOR_BYTES if aligned else None) for name in tensors),
        *(Arg(name, ptr(f32)) for name in ("lse", *(["grad_lse"] if with_grad_lse else []), "shift", "delta")),
        *sums,
        *stride_arguments(tensors, element_type.bitwidth // 8, aligned),
        *(Arg(name, i32) for name in ("heads", "queries", "stored")),
        *geometry_arguments(patch),
    ]


class _Frame(Addresses):
    def __init__(self, kb: KernelBuilder, dim: int) -> None:
        self.kb, self.batch, self.dim = kb, kb.program_id(2), dim

    @property
    def head_dim(self) -> int:
        return self.dim


def emit_rows(
    head_dim: int,
    element_type: AnyFloat,
    *,
    aligned: bool,
    with_grad_lse: bool,
    patch: Sequence[int] | None = None,
    clears_sums: bool = False,
) -> ModuleOp:
    """A module with the kernel; with `patch`, for tiles of 128 queries that are such patches of an image.

    With `clears_sums`, `stored` is a multiple of 64.
    """
    kb = KernelBuilder(NAME, kernel_arguments(element_type, aligned, with_grad_lse, patch, clears_sums))
    frame = _Frame(kb, head_dim)
    first, head = kb.program_id(0) * ROWS, kb.program_id(1)
    place = first + kb.arange(0, ROWS)
    if patch is None:
        row, inside = place, place < kb.arg("queries")
    else:
        row, inside = PatchOrder(kb, patch).positions_from(first, ROWS)

    def numbers(name: str, length: str, at: Value) -> Value:
        return numbers_of_head(kb, name, frame.batch, head, length) + at

    def load_rows(tensor: str) -> Value:
        origin = frame.origin(tensor, tensor, head)
        addresses = frame.block(origin, tensor, first, ROWS) if patch is None else frame.rows_at(origin, tensor, row)
        return kb.cast(kb.load(addresses, frame.with_dims(inside[:, None]), 0.0), f32)

    lse = kb.load(numbers("lse", "queries", row), inside, -math.inf)
    blind = lse == -math.inf
    delta = kb.reduce(load_rows("out") * load_rows("grad"), 1, "sum")
    if with_grad_lse:
        delta = delta - kb.load(numbers("grad_lse", "queries", row), inside, 0.0)
    stored = place < kb.arg("stored")
    kb.store(numbers("shift", "stored", place), kb.where(blind, math.inf, lse * LOG2_E), stored)
    kb.store(numbers("delta", "stored", place), kb.where(blind, 0.0, delta), stored)
    if clears_sums:
        _clear_sums(frame, head, first)
    return kb.finish()


def _clear_sums(frame: _Frame, head: Value, first: Value) -> None:
    """Zeroes a program's share of a head's blocks: they are as many numbers as rows of padded columns."""
    kb, columns = frame.kb, blocks_of(SIDE, frame.dim) * SIDE
    row_of_head = kb.cast(frame.batch * kb.arg("heads") + head, i64) * kb.cast(kb.arg("stored"), i64)
    share = kb.arg("sum_q") + (row_of_head + kb.cast(first, i64)) * columns
    kb.store(share + kb.arange(0, ROWS * columns), kb.zeros((ROWS * columns,), f32))
