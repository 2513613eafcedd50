"""In which order programs take tiles of all heads: a balance of work first, then use of the cache.

A descriptor lists the tiles of a mask longest first. Programs take the tiles of some heads together, whose keys and
values fit the L2 cache, and then those of the next heads. A tile that takes far longer than most, of text that sees a
whole image for example, would begin last in the last heads and keep one processor busy when all others are done; so the
long tiles of all heads come before everything else.

Programs are soon done with heads of a sparse mask: what passes the cache besides, queries and outputs, is no less than
keys and values then, so that fewer heads are computed together. With a dense one they need enough tiles for a balance.
"""

from __future__ import annotations

from typing import NamedTuple

from xdsl.dialects.builtin import i32

from compilemask.dialects.triton.layouts import WARP_SIZE, BlockedLayout
from compilemask.lowering.descriptor_layout import ORDER_WORDS, tile_cost
from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_config import TILE
from compilemask.lowering.tiling_to_ttg.builder import GpuKernelBuilder

LONG = 4
"""A tile is long if it takes longer than so many tiles of the middle rank. Heads together have some 500 tiles, four for
each processor: what is shorter ends with the others even if it begins in the last heads."""
SPARSE = 4
"""A mask is sparse if a tile of the middle rank takes less than a part of this of one that sees all keys."""
N_PARTIAL, N_FULL = 2, 4
"""Words of a record in launch order."""


def long_tiles(kb: GpuKernelBuilder, tiles: Value, num_warps: int) -> Value:
    """How many of a head's tiles are long, the first 32 at most, going by the first mask of the descriptor."""
    return _longer_than(kb, _middle_cost(kb, tiles), tiles, num_warps)


def _longer_than(kb: GpuKernelBuilder, middle: Value, tiles: Value, num_warps: int) -> Value:
    rank = kb.arange(0, WARP_SIZE, BlockedLayout.of([1], [WARP_SIZE], [num_warps], [0]))
    exists = rank < tiles
    return kb.reduce(kb.cast(exists & (_cost(kb, rank, exists) > middle * LONG), i32), 0, "sum")


def _middle_cost(kb: GpuKernelBuilder, tiles: Value) -> Value:
    return _cost(kb, kb.trunc_div(tiles, 2))


def _cost(kb: GpuKernelBuilder, rank: Value, exists: Value | None = None) -> Value:
    record = kb.arg("order") + rank * ORDER_WORDS
    partial, full = (
        kb.load(record + word) if exists is None else kb.load(record + word, exists, 0) for word in (N_PARTIAL, N_FULL)
    )
    return tile_cost(partial, full)


class Order(NamedTuple):
    """What the order depends on: heads in all, heads `together`, the tiles of a head, and how many of them are long."""

    heads: Value
    together: Value | int
    tiles: Value
    long: Value

    @classmethod
    def of_queries(cls, kb: GpuKernelBuilder, num_warps: int) -> Order:
        """Of a persistent program of the forward kernel."""
        tiles = kb.arg("query_tiles")
        middle = _middle_cost(kb, tiles)
        is_sparse = middle * SPARSE < tile_cost(0, kb.ceil_div(kb.arg("keys"), TILE))
        together = kb.where(is_sparse, kb.arg("sparse_heads_together"), kb.arg("heads_together"))
        return cls(kb.arg("all_heads"), together, tiles, _longer_than(kb, middle, tiles, num_warps))

    def place(self, kb: GpuKernelBuilder, position: Value) -> tuple[Value, Value]:
        """Rank and head of the tile at a position, 0 <= position < heads * tiles.

        All heads' long ranks come first, then the others, group by group of heads.
        """
        long = self.long
        behind = position - self.heads * long
        rank, head = self._place_in_group(kb, behind, (self.tiles - long) * self.together)
        is_long = behind < 0
        return (
            kb.where(is_long, kb.trunc_div(position, self.heads), long + rank),
            kb.where(is_long, kb.trunc_rem(position, self.heads), head),
        )

    def _place_in_group(self, kb: GpuKernelBuilder, position: Value, tiles: Value) -> tuple[Value, Value]:
        first_head = kb.trunc_div(position, tiles) * self.together
        in_group = kb.trunc_rem(position, tiles)
        heads = kb.minimum(self.heads - first_head, self.together)
        return kb.trunc_div(in_group, heads), first_head + kb.trunc_rem(in_group, heads)


def own_place(kb: GpuKernelBuilder, tiles: Value, num_warps: int) -> tuple[Value, Value]:
    """Rank and head of the tile of this program, of a grid that takes one head behind the other."""
    order = Order(kb.arg("all_heads"), 1, tiles, long_tiles(kb, tiles, num_warps))
    return order.place(kb, kb.program_id(0))


def folded(kb: GpuKernelBuilder, rank: Value, tiles: Value) -> Value:
    """The second half of the ranks backwards: of two programs that share a processor, started half a grid apart, one
    gets a long tile and the other a short one.
    """
    half = kb.trunc_div(tiles + 1, 2)
    return kb.where(rank < half, rank, tiles - 1 - (rank - half))
