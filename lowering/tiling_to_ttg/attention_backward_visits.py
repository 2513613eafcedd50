"""Which queries the keys of a program are seen by: its tile of the transposed descriptor, for each query head.

Visits are the partial tiles of queries, then the runs of full ones. In a tile that the end of the keys cuts off, all
visits are masked: scores of missing keys are 0, and their weights may be infinite.
"""

from __future__ import annotations

from typing import NamedTuple

from xdsl.dialects.builtin import i32

from compilemask.dialects.triton.layouts import SliceLayout
from compilemask.lowering.descriptor_layout import ORDER_WORDS, TILE_WORDS
from compilemask.lowering.tiling_to_tt.attention_backward_frame import mask_of_head
from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_bits import lanes_of, octets_seen
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS, TILE
from compilemask.lowering.tiling_to_ttg.attention_frame import PATTERN_WORDS
from compilemask.lowering.tiling_to_ttg.attention_order import own_place
from compilemask.lowering.tiling_to_ttg.builder import slice_of

SURELY_SEEN = 7
"""The word of a tile's record that counts rows which see their own position."""
UNSEEN = 7
"""The word of a record in launch order that says whether some position across may be seen by no row."""


class KeyTile(NamedTuple):
    """The tile of keys of a program, all i32."""

    number: Value
    head: Value
    """Batch times key heads plus key head."""

    def batch_and_head(self, frame: Frame) -> tuple[Value, Value]:
        """Batch and key head."""
        kb = frame.kb
        key_heads = kb.trunc_div(kb.arg("heads"), kb.arg("group"))
        return kb.trunc_div(self.head, key_heads), kb.trunc_rem(self.head, key_heads)

    def is_cut_off(self, frame: Frame) -> Value:
        """i1: some of the 128 keys do not exist."""
        return frame.keys.is_ragged(self.number * TILE, TILE)


class Visits(NamedTuple):
    """By whom the tile is seen in a query head; numbers are i32."""

    head: Value
    """Batch times query heads plus query head."""
    pairs: Value
    """Address of the first pair."""
    n_partial: Value
    n_runs: Value
    surely_seen: Value
    """How many of the keys are surely seen, namely by the query at their own position."""
    blind: Value
    """Not 0 if there may be queries that see nothing."""
    missing: Value
    """1 if the descriptor had no room for the tile's visits, 0 else."""

    def span(self, frame: Frame, index: Value, pair: tuple[Value, Value]) -> tuple[Value, Value]:
        """First query of the index-th visit, and the one behind its last, from its pair of words."""
        kb, (first, second) = frame.kb, pair
        end = kb.where(index < self.n_partial, first + 1, second)
        return first * TILE, kb.minimum(end * TILE, kb.arg("queries"))

    def pair(self, frame: Frame, index: Value | int) -> tuple[Value, Value]:
        """The words of the index-th visit, 0 if there is none: query tile and pattern, or first and end of a run."""
        kb = frame.kb
        first, second = (
            kb.load(self.pairs + index * 2 + word, self.n_partial + self.n_runs > index, 0) for word in range(2)
        )
        return first, second

    def end_of_run(self, frame: Frame, index: Value) -> Value:
        """The second word of the index-th visit if it is a run: kept from the pair, it would be spilled, for the rare
        masked visit that is one.
        """
        return frame.kb.load(self.pairs + index * 2 + 1, index >= self.n_partial, 0)


def own_tile(frame: Frame, num_warps: int) -> KeyTile:
    """The tile of this program, of one head behind the other; but the long tiles of all heads come first."""
    kb = frame.kb
    tiles = kb.arg("key_tiles")
    rank, head = own_place(kb, tiles, num_warps)
    first = mask_of_head(kb, head * kb.arg("group")) * tiles
    index = kb.load(kb.arg("order") + (first + rank) * ORDER_WORDS)
    return KeyTile(index.named("key_tile"), head)


def visits_of(frame: Frame, tile: KeyTile, member: Value) -> Visits:
    """By whom the tile is seen in a head of the group that reads its key head."""
    kb = frame.kb
    head = tile.head * kb.arg("group") + member
    first = mask_of_head(kb, head) * kb.arg("key_tiles")
    record = kb.arg("tiles") + (first + tile.number) * TILE_WORDS
    first_pair, n_partial, n_runs = (kb.load(record + word) for word in range(3))
    return Visits(
        head,
        kb.arg("visits") + first_pair * 2,
        kb.maximum(n_partial, 0),
        kb.where(n_partial < 0, 0, n_runs),
        kb.load(record + SURELY_SEEN),
        kb.load(kb.arg("order") + first * ORDER_WORDS + UNSEEN),
        kb.cast(n_partial < 0, i32),
    )


class Patterns:
    """Who sees whom in a warpgroup's 64 rows of the tile: a word for each row and lane of its quad."""

    def __init__(self, frame: Frame, part: int, tile: KeyTile, visits: Visits) -> None:
        self.frame, self.part, self.visits = frame, part, visits
        kb, layout = frame.kb, self.layout(frame)
        row = kb.arange(0, ROWS, slice_of(layout, 1))[:, None] + part * ROWS
        lane = kb.arange(0, PATTERN_WORDS, slice_of(layout, 0))[None, :]
        self.exists = frame.keys.positions(tile.number * TILE, row) < frame.keys.length
        self.addresses = kb.arg("patterns") + (row * PATTERN_WORDS + lane)

    @staticmethod
    def layout(frame: Frame) -> SliceLayout:
        """Of words."""
        return lanes_of(frame.layouts.scores, frame.config.queries)

    def words(self, index: Value | int, pattern: Value) -> Value:
        """[64, 4] of the index-th visit: its pattern, or all of its queries if it is full. Missing keys see nobody."""
        kb = self.frame.kb
        is_partial = self.visits.n_partial > index
        everybody = kb.where(self.exists, -1, 0)
        return kb.load(self.addresses + pattern * (TILE * PATTERN_WORDS), self.exists & is_partial, everybody)

    def fetched(self, index: Value | int, pattern: Value) -> tuple[Value, Value]:
        """The words, and bits of the octets of queries of which some see a key of the warpgroup."""
        seeing = octets_seen(self.frame.kb, self.part, pattern, self.visits.n_partial > index, -1)
        return self.words(index, pattern), seeing
