"""The kernel `attention_backward_total`: the gradient of queries from its sum in float32, which another one has left.

The sum lies in the blocks of `sum_blocks.py`, still without the scale. If the descriptor that was followed had no room
for all visits, as the status in its header says, nobody knows what is missing from the sum: the gradient is NaN.

Where tiles are patches, the sum is in patched order, of `queries` places. `row_blocks` counts a head's blocks of rows.
Grid: (ceil(queries / ROWS), Hq, B).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.dialects.builtin import AnyFloat, ModuleOp

from compilemask.lowering.tiling_to_tt.attention_addresses import VECTOR_BYTES, Addresses, stride_arguments
from compilemask.lowering.tiling_to_tt.builder import Arg, KernelBuilder, Value, f32, i32, i64, ptr
from compilemask.lowering.tiling_to_tt.patch_order import PatchOrder, geometry_arguments
from compilemask.lowering.tiling_to_tt.sum_blocks import SIDE, WORDS, blocks_of, place_in_block

NAME = "attention_backward_total"
ROWS = 32
"""Rows of a program."""


def kernel_arguments(element_type: AnyFloat, patch: Sequence[int] | None = None) -> list[Arg]:
    """The kernel's arguments in order."""
    return [
        Arg("sum_q", ptr(f32), VECTOR_BYTES),
        Arg("grad_q", ptr(element_type), VECTOR_BYTES),
        Arg("status", ptr(i32)),
        *stride_arguments(("grad_q",), element_type.bitwidth // 8, aligned=True),
        *(Arg(name, i32) for name in ("heads", "queries", "row_blocks")),
        *geometry_arguments(patch),
        Arg("scale", f32),
    ]


class _Frame(Addresses):
    def __init__(self, kb: KernelBuilder, dim: int) -> None:
        self.kb, self.batch, self.dim = kb, kb.program_id(2), dim

    @property
    def head_dim(self) -> int:
        return self.dim


def emit_total(head_dim: int, element_type: AnyFloat, patch: Sequence[int] | None = None) -> ModuleOp:
    """A module with the kernel, for a head_dim that is a multiple of 8; `patch` as in `attention_backward_rows`."""
    kb = KernelBuilder(NAME, kernel_arguments(element_type, patch))
    frame = _Frame(kb, head_dim)
    first, head = kb.program_id(0) * ROWS, kb.program_id(1)
    row = (first + kb.arange(0, ROWS))[:, None]
    inside = row < kb.arg("queries")
    factor = kb.where(kb.load(kb.arg("status")) == 0, kb.arg("scale"), math.nan)
    mask = frame.with_dims(inside)
    total = kb.load(_sums(frame, head, first) + _places(row, frame.dims()), mask, 0.0) * factor
    origin = frame.origin("grad_q", "grad_q", head)
    if patch is None:
        address = frame.block(origin, "grad_q", first, ROWS)
    else:
        position, exists = PatchOrder(kb, patch).positions_from(first, ROWS)
        address, mask = frame.rows_at(origin, "grad_q", position), frame.with_dims(exists[:, None])
    kb.store(address, kb.cast(total, element_type), mask)
    return kb.finish()


def _sums(frame: _Frame, head: Value, first: Value) -> Value:
    """Address of the blocks of the program's rows."""
    kb = frame.kb
    blocks = (frame.batch * kb.arg("heads") + head) * kb.arg("row_blocks") + kb.trunc_div(first, SIDE)
    return kb.arg("sum_q") + kb.cast(blocks, i64) * (blocks_of(SIDE, frame.head_dim) * WORDS)


def _places(row: Value, column: Value) -> Value:
    """Where elements lie behind the first one of the blocks of their rows."""
    return (column >> 6) * WORDS + place_in_block(row, column)
