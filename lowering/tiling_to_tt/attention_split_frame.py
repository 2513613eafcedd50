"""Where a program of the split kernel stands: its rows, which may belong to several heads, and its share of the visits.

Let a query tile have `rows` = min(Sq, 128) rows. The rows of `together` heads, which share a key head and a mask, stand
one behind the other: row p of them is row p % rows of the tile, of head p // rows. A program computes `block_q` of
them, over one of `splits` shares of what the tile visits.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import AnyFloat

from compilemask.dialects.tiling import AttentionOp
from compilemask.lowering.descriptor_layout import ORDER_WORDS
from compilemask.lowering.tiling_to_tt.attention_addresses import VECTOR_BYTES, stride_arguments
from compilemask.lowering.tiling_to_tt.attention_config import TILE, AttentionConfig
from compilemask.lowering.tiling_to_tt.attention_frame import SECTIONS, SIZES, Frame, is_valid
from compilemask.lowering.tiling_to_tt.builder import Arg, KernelBuilder, Value, f32, i32, i64, ptr

INPUTS = ("q", "k", "v")
PARTS = ("parts", "peaks", "totals")
"""What a program leaves for `attention_combine`: [B, Hq, Sq, splits, D], and twice [B, Hq, Sq, splits], f32."""
SPLIT_SIZES = (*SIZES, "splits", "together")
MOST_SPLITS = 512
"""Numbers of visits times splits are 32-bit."""


def kernel_arguments(element_type: AnyFloat, aligned: bool) -> list[Arg]:
    """The kernel's arguments in order; strides count elements, and the last dimension of each tensor is contiguous."""
    return [
        *(Arg(name, ptr(element_type), VECTOR_BYTES if aligned else None) for name in INPUTS),
        Arg("parts", ptr(f32), VECTOR_BYTES),
        *(Arg(name, ptr(f32)) for name in PARTS[1:]),
        *(Arg(name, ptr(i32)) for name in SECTIONS),
        *stride_arguments(INPUTS, element_type.bitwidth // 8, aligned),
        *(Arg(name, i32) for name in SPLIT_SIZES),
        Arg("scale", f32),
    ]


@dataclass(frozen=True)
class SplitFrame(Frame):
    """A frame whose rows may belong to several heads; `head` is the first of them."""

    heads_of_rows: Value
    """[block_q]"""
    rows: Value
    """[block_q] positions in the sequence."""
    split: Value
    first_visit: Value
    """Of the program's share, among the partial tiles of the tile and then its full tiles."""
    end_visit: Value

    def load_query(self) -> Value:
        """The program's rows of q, 0 for rows that do not exist."""
        kb = self.kb
        origin = self.origin("q", "q", self.head)
        heads = kb.cast(self.heads_of_rows - self.head, i64)[:, None] * kb.arg("q_h")
        addresses = self.rows_at(origin, "q", self.rows) + heads
        return kb.load(addresses, self.with_dims(self.inside[:, None]), 0.0).named("query")

    def parts_of_rows(self) -> Value:
        """[block_q] i64: which of all parts of rows are the program's."""
        kb = self.kb
        heads = kb.cast(self.batch * kb.arg("heads") + self.heads_of_rows, i64)
        rows = heads * kb.cast(kb.arg("queries"), i64) + kb.cast(self.rows, i64)
        return rows * kb.cast(kb.arg("splits"), i64) + kb.cast(self.split, i64)


def open_split_frame(kb: KernelBuilder, op: AttentionOp, config: AttentionConfig) -> SplitFrame:
    """Reads the tile's record; splits of a block of rows stand side by side in the grid, then the blocks of a tile."""
    x, y, batch = kb.program_id(0), kb.program_id(1), kb.program_id(2)
    together, splits, queries = (kb.arg(name) for name in ("together", "splits", "queries"))
    head = (y * together).named("head")
    rows_of_tile = kb.minimum(queries, TILE)
    blocks = kb.ceil_div(rows_of_tile * together, config.block_q)
    block = kb.trunc_div(x, splits)
    split = kb.trunc_rem(x, splits).named("split")
    mask = batch * kb.arg("mask_batch_stride") + head * kb.arg("mask_head_stride")
    rank = mask * kb.arg("query_tiles") + kb.trunc_div(block, blocks)
    launch = kb.arg("order") + rank * ORDER_WORDS
    tile, first_pair, n_partial, n_runs, n_full = (kb.load(launch + word) for word in range(5))
    tile = tile.named("tile")
    first = kb.trunc_rem(block, blocks) * config.block_q
    places = first + kb.arange(0, config.block_q)
    in_tile, of_head = kb.trunc_rem(places, rows_of_tile), kb.trunc_div(places, rows_of_tile)
    first_row = (tile * TILE + kb.trunc_rem(first, rows_of_tile)).named("first_row")
    valid = is_valid(kb, op, config, n_partial)
    visits = valid & (first_row < queries)
    n_visits = kb.where(visits, n_partial + n_full, 0)
    return SplitFrame(
        kb=kb,
        op=op,
        config=config,
        batch=batch,
        head=head,
        key_head=kb.trunc_div(head, kb.arg("group")),
        tile=tile,
        row_in_tile=in_tile,
        first_row=first_row,
        inside=(of_head < together) & (tile * TILE + in_tile < queries),
        cut_off=tile * TILE + TILE > queries,
        first_pair=first_pair,
        n_partial=kb.where(visits, n_partial, 0),
        n_runs=kb.where(visits, n_runs, 0),
        valid=valid,
        heads_of_rows=head + of_head,
        rows=tile * TILE + in_tile,
        split=split,
        first_visit=_share(kb, split, n_visits),
        end_visit=_share(kb, split + 1, n_visits),
    )


def _share(kb: KernelBuilder, split: Value, visits: Value) -> Value:
    """The first visit of a split; shares differ by one at most. There are no more than 2^21 visits."""
    return kb.trunc_div(split * visits, kb.arg("splits"))
