"""Where a program of a backward kernel stands: its rows, and what they visit.

The rows are those of one side: queries, which follow the descriptor of the mask, or keys, which follow that of its
transpose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xdsl.dialects.builtin import AnyFloat

from compilemask.lowering.descriptor_layout import ORDER_WORDS, TILE_WORDS
from compilemask.lowering.tiling_to_tt.attention_addresses import VECTOR_BYTES, Addresses, stride_arguments
from compilemask.lowering.tiling_to_tt.attention_backward_config import BackwardConfig, Side
from compilemask.lowering.tiling_to_tt.attention_config import TILE
from compilemask.lowering.tiling_to_tt.attention_patterns import Patterns
from compilemask.lowering.tiling_to_tt.builder import Arg, KernelBuilder, Value, f32, i32, i64, ptr

INPUTS = ("q", "k", "v", "grad")
SECTIONS = ("tiles", "order", "visits", "patterns", "columns")
_ACROSS: dict[Side, str] = {"keys": "queries", "queries": "keys"}
SIZES = ("heads", "group", "queries", "keys", "stored", "tiles_of_a_mask", "mask_batch_stride", "mask_head_stride")


def kernel_arguments(outputs: Sequence[str], element_type: AnyFloat, aligned: bool) -> list[Arg]:
    """The kernel's arguments in order. `shift` and `delta` are [B, Hq, stored] f32: see `attention_backward_rows`."""
    tensors = (*INPUTS, *outputs)
    return [
        *(Arg(name, ptr(element_type), VECTOR_BYTES if aligned else None) for name in tensors),
        *(Arg(name, ptr(f32)) for name in ("shift", "delta")),
        *(Arg(name, ptr(i32)) for name in SECTIONS),
        *stride_arguments(tensors, element_type.bitwidth // 8, aligned),
        *(Arg(name, i32) for name in SIZES),
        Arg("scale", f32),
    ]


class Visits(NamedTuple):
    """What the program's rows visit for one query head: scalars."""

    first_pair: Value
    n_partial: Value
    n_runs: Value
    missing: Value
    """1 if the descriptor had no room for it, 0 else."""


@dataclass(frozen=True)
class BackwardFrame(Addresses):
    """Shared by the parts of a kernel. Scalars are i32 unless said otherwise."""

    kb: KernelBuilder
    dim: int
    element_type: AnyFloat
    config: BackwardConfig
    side: Side
    batch: Value
    tile: Value
    """Tile of the descriptor."""
    row_in_tile: Value
    """[rows] rows inside the tile."""
    first_row: Value
    """First row of this program in the sequence."""
    inside: Value
    """[rows] i1: the row exists."""

    @property
    def head_dim(self) -> int:
        """D."""
        return self.dim

    @property
    def patterns(self) -> Patterns:
        """The patterns of the program's rows."""
        kb = self.kb
        cut_off = self.tile * TILE + TILE > kb.arg(self.side)
        return Patterns(kb, self.config.width, self.row_in_tile, self.inside, cut_off, kb.arg(_ACROSS[self.side]))

    def visits(self, head: Value) -> Visits:
        """What the program's rows visit for a query head; nothing if all of them lie behind the last."""
        kb = self.kb
        record = kb.arg("tiles") + (mask_of(kb, self.batch, head) * kb.arg("tiles_of_a_mask") + self.tile) * TILE_WORDS
        first_pair, n_partial, n_runs = (kb.load(record + word) for word in range(3))
        missing = kb.cast(n_partial < 0, i32)
        exists = self.first_row < kb.arg(self.side)
        n_partial, n_runs = (kb.where(exists, kb.maximum(count, 0), 0) for count in (n_partial, n_runs))
        return Visits(first_pair, n_partial, n_runs, missing)

    # ---- rows of tensors ----

    def load_rows(self, tensor: str, head: Value) -> Value:
        """[rows, padded]: the program's rows of a tensor, 0 behind the last."""
        return self.kb.load(self._own_rows(tensor, head), self.with_dims(self.inside[:, None]), 0.0).named(tensor)

    def store_rows(self, tensor: str, head: Value, gradient: Value, missing: Value) -> None:
        """Writes the program's rows that exist: NaN if visits were missing."""
        kb = self.kb
        gradient = kb.cast(kb.where(missing == 0, gradient, math.nan), self.element_type)
        kb.store(self._own_rows(tensor, head), gradient, self.with_dims(self.inside[:, None]))

    def _own_rows(self, tensor: str, head: Value) -> Value:
        return self.block(self.origin(tensor, tensor, head), tensor, self.first_row, self.config.rows)

    def of_queries(self, name: str, head: Value) -> Value:
        """Where the numbers of a head's queries begin in `shift` or `delta`."""
        return numbers_of_head(self.kb, name, self.batch, head, "stored")


def mask_of(kb: KernelBuilder, batch: Value, head: Value) -> Value:
    """The number of the mask of a batch and a query head."""
    return batch * kb.arg("mask_batch_stride") + head * kb.arg("mask_head_stride")


def mask_of_head(kb: KernelBuilder, head: Value) -> Value:
    """The number of the mask of a query head that is counted over batches."""
    return mask_of(kb, kb.trunc_div(head, kb.arg("heads")), kb.trunc_rem(head, kb.arg("heads")))


def numbers_of_head(kb: KernelBuilder, name: str, batch: Value, head: Value, length: str) -> Value:
    """Address of the first number of a head in an argument of shape [B, Hq, length]."""
    row = batch * kb.arg("heads") + head
    return kb.arg(name) + kb.cast(row, i64) * kb.cast(kb.arg(length), i64)


def open_frame(
    kb: KernelBuilder, dim: int, element_type: AnyFloat, config: BackwardConfig, side: Side, head: Value
) -> BackwardFrame:
    """Reads which tile is this program's, from the launch order of the mask of a query head."""
    x, batch = kb.program_id(0), kb.program_id(2)
    rank = mask_of(kb, batch, head) * kb.arg("tiles_of_a_mask") + kb.trunc_div(x, config.programs_per_tile)
    tile = kb.load(kb.arg("order") + rank * ORDER_WORDS).named("tile")
    in_tile = kb.trunc_rem(x, config.programs_per_tile) * config.rows
    first_row = (tile * TILE + in_tile).named("first_row")
    lanes = kb.arange(0, config.rows)
    inside = first_row + lanes < kb.arg(side)
    return BackwardFrame(kb, dim, element_type, config, side, batch, tile, in_tile + lanes, first_row, inside)
