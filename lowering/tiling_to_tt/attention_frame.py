"""Where a program of the attention kernel stands: its arguments, query tile and rows."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Attribute

from compilemask.dialects.tiling import AttentionOp
from compilemask.lowering.descriptor_layout import ORDER_WORDS
from compilemask.lowering.tiling_to_tt.attention_addresses import VECTOR_BYTES, Addresses, stride_arguments
from compilemask.lowering.tiling_to_tt.attention_config import TILE, AttentionConfig
from compilemask.lowering.tiling_to_tt.builder import Arg, KernelBuilder, Value, f32, i32, ptr

TENSORS = ("q", "k", "v", "o")
SECTIONS = ("order", "visits", "patterns", "columns")
SIZES = ("heads", "group", "queries", "keys", "query_tiles", "mask_batch_stride", "mask_head_stride")


def kernel_arguments(element_type: AnyFloat, aligned: bool) -> list[Arg]:
    """The kernel's arguments in order; strides count elements, and the last dimension of each tensor is contiguous."""
    pointer = VECTOR_BYTES if aligned else None
    return [
        *(Arg(name, ptr(element_type), pointer) for name in ("q", "k", "v", "out")),
        Arg("lse", ptr(f32)),
        *(Arg(name, ptr(i32)) for name in SECTIONS),
        *stride_arguments(TENSORS, element_type.bitwidth // 8, aligned),
        *(Arg(name, i32) for name in SIZES),
        Arg("scale", f32),
    ]


@dataclass(frozen=True)
class Frame(Addresses):
    """Shared by the kernel's parts. Scalars are i32 unless said otherwise."""

    kb: KernelBuilder
    op: AttentionOp
    config: AttentionConfig
    batch: Value
    head: Value
    key_head: Value
    tile: Value
    """Query tile of the descriptor."""
    row_in_tile: Value
    """[block_q] rows inside the tile."""
    first_row: Value
    """First row of this program in the sequence."""
    inside: Value
    """[block_q] i1: the row exists."""
    cut_off: Value
    """i1: some rows of the tile do not exist."""
    first_pair: Value
    n_partial: Value
    n_runs: Value
    valid: Value
    """i1: the descriptor has room for this tile's visits, and the scale is one that this variant takes."""

    @property
    def element_type(self) -> Attribute:
        """T."""
        return self.op.element_type

    @property
    def head_dim(self) -> int:
        """D."""
        return self.op.head_dim

    def load_query(self) -> Value:
        """The program's rows of q, 0 for rows behind the last."""
        kb = self.kb
        addresses = self.block(self.origin("q", "q", self.head), "q", self.first_row, self.config.block_q)
        query = kb.load(addresses, self.with_dims(self.inside[:, None]), 0.0)
        return query.named("query")


def open_frame(kb: KernelBuilder, op: AttentionOp, config: AttentionConfig) -> Frame:
    """Reads the tile's record; a program whose rows all lie behind the last visits nothing."""
    x, head, batch = kb.program_id(0), kb.program_id(1), kb.program_id(2)
    mask = batch * kb.arg("mask_batch_stride") + head * kb.arg("mask_head_stride")
    first_tile = mask * kb.arg("query_tiles")
    launch = kb.arg("order") + (first_tile + kb.trunc_div(x, config.programs_per_tile)) * ORDER_WORDS
    tile, first_pair, n_partial, n_runs = (kb.load(launch + word) for word in range(4))
    tile = tile.named("tile")
    in_tile = kb.trunc_rem(x, config.programs_per_tile) * config.block_q
    first_row = (tile * TILE + in_tile).named("first_row")
    valid = is_valid(kb, op, config, n_partial)
    visits = valid & (first_row < kb.arg("queries"))
    lanes = kb.arange(0, config.block_q)
    return Frame(
        kb,
        op,
        config,
        batch,
        head,
        kb.trunc_div(head, kb.arg("group")),
        tile,
        in_tile + lanes,
        first_row,
        first_row + lanes < kb.arg("queries"),
        tile * TILE + TILE > kb.arg("queries"),
        first_pair,
        kb.where(visits, n_partial, 0),
        kb.where(visits, n_runs, 0),
        valid,
    )


def is_valid(kb: KernelBuilder, op: AttentionOp, config: AttentionConfig, n_partial: Value) -> Value:
    """i1: the descriptor has room for the tile's visits, and the scale is one that this variant takes."""
    has_room = n_partial >= 0
    if op.score.blocks or config.negative_scale:
        return has_room
    return has_room & (kb.arg("scale") >= 0.0)
