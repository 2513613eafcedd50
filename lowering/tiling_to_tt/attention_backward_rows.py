"""The kernel `attention_backward_rows`: what the other backward kernels need to know of each query row.

`shift` is the log-sum-exp in base 2, +inf in a row that sees nothing, so that all its weights are 0. `delta` is the
gradient along the row's output less that of its log-sum-exp, 0 in such a row. Both have `stored` >= Sq numbers per
head; rows behind Sq see nothing. Grid: (ceil(stored / ROWS), Hq, B).
"""

from __future__ import annotations

import math

from xdsl.dialects.builtin import AnyFloat, ModuleOp

from compilemask.lowering.tiling_to_tt.attention_addresses import VECTOR_BYTES, Addresses, stride_arguments
from compilemask.lowering.tiling_to_tt.attention_backward_frame import numbers_of_head
from compilemask.lowering.tiling_to_tt.attention_softmax import LOG2_E
from compilemask.lowering.tiling_to_tt.builder import Arg, KernelBuilder, Value, f32, i32, ptr

NAME = "attention_backward_rows"
ROWS = 32
"""Rows of a program."""


def kernel_arguments(element_type: AnyFloat, aligned: bool, with_grad_lse: bool) -> list[Arg]:
    """The kernel's arguments in order."""
    tensors = ("out", "grad")
    return [
        *(Arg(name, ptr(element_type), VECTOR_BYTES if aligned else None) for name in tensors),
        *(Arg(name, ptr(f32)) for name in ("lse", *(["grad_lse"] if with_grad_lse else []), "shift", "delta")),
        *stride_arguments(tensors, element_type.bitwidth // 8, aligned),
        *(Arg(name, i32) for name in ("heads", "queries", "stored")),
    ]


class _Frame(Addresses):
    def __init__(self, kb: KernelBuilder, dim: int) -> None:
        self.kb, self.batch, self.dim = kb, kb.program_id(2), dim

    @property
    def head_dim(self) -> int:
        return self.dim


def emit_rows(head_dim: int, element_type: AnyFloat, *, aligned: bool, with_grad_lse: bool) -> ModuleOp:
    """A module with the kernel."""
    kb = KernelBuilder(NAME, kernel_arguments(element_type, aligned, with_grad_lse))
    frame = _Frame(kb, head_dim)
    first, head = kb.program_id(0) * ROWS, kb.program_id(1)
    row = first + kb.arange(0, ROWS)
    inside = row < kb.arg("queries")

    def numbers(name: str, length: str) -> Value:
        return numbers_of_head(kb, name, frame.batch, head, length) + row

    def load_rows(tensor: str) -> Value:
        addresses = frame.block(frame.origin(tensor, tensor, head), tensor, first, ROWS)
        return kb.cast(kb.load(addresses, frame.with_dims(inside[:, None]), 0.0), f32)

    lse = kb.load(numbers("lse", "queries"), inside, -math.inf)
    blind = lse == -math.inf
    delta = kb.reduce(load_rows("out") * load_rows("grad"), 1, "sum")
    if with_grad_lse:
        delta = delta - kb.load(numbers("grad_lse", "queries"), inside, 0.0)
    stored = row < kb.arg("stored")
    kb.store(numbers("shift", "stored"), kb.where(blind, math.inf, lse * LOG2_E), stored)
    kb.store(numbers("delta", "stored"), kb.where(blind, 0.0, delta), stored)
    return kb.finish()
