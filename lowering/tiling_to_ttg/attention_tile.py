"""One tile of query rows: which it is, from the descriptor, and which tiles of keys it visits.

Programs take tiles in an order for the cache and the balance of work: `heads_together` heads at once, whose keys and
values fit the L2 cache, then the next ones; among those heads the longest tiles first, heads fastest.
"""

from __future__ import annotations

from typing import NamedTuple

from xdsl.dialects.builtin import i32

from compilemask.dialects.triton.layouts import WARP_SIZE, BlockedLayout
from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_config import TILE
from compilemask.lowering.tiling_to_ttg.attention_frame import RECORD_WORDS, Frame


class Tile(NamedTuple):
    """Numbers of a tile, all i32. Visits are its partial tiles, then the full tiles of its runs."""

    index: Value
    """Query tile of the descriptor."""
    head: Value
    """Batch times heads plus query head."""
    first_pair: Value
    n_partial: Value
    """-1 if the build had no room for the tile's visits."""
    n_runs: Value
    n_full: Value

    def without_faults(self, frame: Frame) -> Tile:
        """The same, visiting nothing if it has no room for its visits."""
        none = self.n_partial < 0
        n_partial, n_runs, n_full = (frame.kb.where(none, 0, x) for x in (self.n_partial, self.n_runs, self.n_full))
        return self._replace(n_partial=n_partial, n_runs=n_runs, n_full=n_full)

    def pairs(self, frame: Frame) -> Value:
        """Address of the first pair."""
        return frame.kb.arg("visits") + self.first_pair * 2

    def batch_and_head(self, frame: Frame) -> tuple[Value, Value]:
        """Batch and query head."""
        heads = frame.kb.arg("heads")
        return frame.kb.trunc_div(self.head, heads), frame.kb.trunc_rem(self.head, heads)


def tile_at(frame: Frame, position: Value) -> Tile:
    """Reads the tile at a position of the launch order, 0 <= position < all_heads * query_tiles."""
    kb = frame.kb
    query_tiles, together = kb.arg("query_tiles"), kb.arg("heads_together")
    of_group = together * query_tiles
    first_head = kb.trunc_div(position, of_group) * together
    in_group = kb.trunc_rem(position, of_group)
    heads = kb.minimum(together, kb.arg("all_heads") - first_head)
    head = first_head + kb.trunc_rem(in_group, heads)
    batch, of_batch = kb.trunc_div(head, kb.arg("heads")), kb.trunc_rem(head, kb.arg("heads"))
    mask = batch * kb.arg("mask_batch_stride") + of_batch * kb.arg("mask_head_stride")
    first = mask * query_tiles
    index = kb.load(kb.arg("order") + (first + kb.trunc_div(in_group, heads))).named("tile")
    record = kb.arg("tiles") + (first + index) * RECORD_WORDS
    words = [kb.load(record + word) for word in range(4)]
    return Tile(index, head, *words)


def first_visit(frame: Frame, tile: Tile) -> tuple[Value, Value]:
    """The first key tile, one behind the last if none is visited, and the tiles of the first run that it takes."""
    kb = frame.kb
    visits_any = tile.n_partial + tile.n_runs > 0
    none = kb.ceil_div(kb.arg("keys"), TILE)
    key_tile = kb.where(visits_any, kb.load(tile.pairs(frame), visits_any, 0), none)
    return key_tile.named("key_tile"), kb.cast(tile.n_partial == 0, tile.n_runs.dtype)


def write_record(frame: Frame, tile: Tile | None, iteration: Value) -> None:
    """Tells the other warps the program's next tile, or that there is none, when they have read the one before."""
    kb = frame.kb
    assert frame.record is not None
    assert frame.record_full is not None
    assert frame.record_empty is not None
    index = kb.arange(0, RECORD_WORDS, _record_layout(1))
    words = kb.full((RECORD_WORDS,), int(tile is not None), i32, _record_layout(1))
    for position, word in enumerate(tile or (), start=1):
        words = kb.where(index == position, word, words)
    frame.record_empty.wait((iteration % 2) ^ 1)
    frame.record.store(words)
    frame.record_full.arrive()


def read_record(frame: Frame, num_warps: int, iteration: Value) -> tuple[Value, Tile]:
    """Whether there is a tile, and the tile, when the producer has written it."""
    kb, layout = frame.kb, _record_layout(num_warps)
    assert frame.record is not None
    assert frame.record_full is not None
    assert frame.record_empty is not None
    frame.record_full.wait(iteration % 2)
    words = frame.record.load(layout)
    frame.record_empty.arrive()
    index = kb.arange(0, RECORD_WORDS, layout)
    exists, *tile = (kb.reduce(kb.where(index == i, words, 0), 0, "sum") for i in range(1 + len(Tile._fields)))
    return exists != 0, Tile(*tile)


def _record_layout(num_warps: int) -> BlockedLayout:
    """Every thread holds the whole record."""
    return BlockedLayout.of([RECORD_WORDS], [WARP_SIZE], [num_warps], [0])
