"""Addresses of rows in tensors [B, H, S, D] whose last dimension is contiguous.

Offsets of batches, heads and blocks of rows are 64-bit, those inside a block 32-bit: 127 times a row stride must fit.
"""

from __future__ import annotations

from compilemask.lowering.tiling_to_tt.attention_config import padded_head_dim
from compilemask.lowering.tiling_to_tt.builder import Arg, KernelBuilder, Value, i32, i64

VECTOR_BYTES = 16


def stride_arguments(tensors: tuple[str, ...], element_bytes: int, aligned: bool) -> list[Arg]:
    """Strides of batches, heads and rows of each tensor, in elements; `aligned` to 16 bytes."""
    divisor = VECTOR_BYTES // element_bytes if aligned else None
    return [Arg(f"{tensor}_{dim}", i64, divisor) for tensor in tensors for dim in ("b", "h", "s")]


class Addresses:
    """What a program knows of where it stands; a frame derives from it."""

    kb: KernelBuilder
    batch: Value

    @property
    def head_dim(self) -> int:
        """D."""
        raise NotImplementedError

    @property
    def padded(self) -> int:
        """Columns of a block of rows."""
        return padded_head_dim(self.head_dim)

    def dims(self) -> Value:
        """[1, padded] positions along D."""
        return self.kb.arange(0, self.padded)[None, :]

    def with_dims(self, mask: Value | None) -> Value | None:
        """A mask of rows [rows, 1], or none, together with the columns that exist."""
        if self.padded == self.head_dim:
            return mask
        exists = self.dims() < self.head_dim
        return exists if mask is None else mask & exists

    def origin(self, pointer: str, tensor: str, head: Value) -> Value:
        """Address of the first row of this program's batch and of a head."""
        kb = self.kb
        batch, head = kb.cast(self.batch, i64), kb.cast(head, i64)
        return kb.arg(pointer) + (batch * kb.arg(f"{tensor}_b") + head * kb.arg(f"{tensor}_h"))

    def block(self, origin: Value, tensor: str, first: Value, rows: int) -> Value:
        """[rows, padded] addresses of consecutive rows from `first`."""
        kb, stride = self.kb, self.kb.arg(f"{tensor}_s")
        base = origin + kb.cast(first, i64) * stride
        within = kb.arange(0, rows)[:, None] * kb.cast(stride, i32)
        return base + (within + self.dims())

    def rows_at(self, origin: Value, tensor: str, rows: Value) -> Value:
        """[n, padded] addresses of rows [n] that may lie anywhere."""
        kb = self.kb
        return origin + (kb.cast(rows, i64)[:, None] * kb.arg(f"{tensor}_s") + kb.cast(self.dims(), i64))
