"""One tile of query rows: which it is, from the descriptor, and which tiles of keys it visits."""

from __future__ import annotations

from typing import NamedTuple

from xdsl.dialects.builtin import i32

from compilemask.lowering.descriptor_layout import ORDER_WORDS
from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_config import HopperConfig
from compilemask.lowering.tiling_to_ttg.attention_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_order import Order, folded
from compilemask.lowering.tiling_to_ttg.builder import GpuKernelBuilder
from compilemask.lowering.tiling_to_ttg.shared_words import load_words, store_words

NO_TILE = -1
"""The number in a record that says that the program is done."""
ALL_PARTS = -1


class Tile(NamedTuple):
    """Numbers of a tile, all i32. Visits are its partial tiles, then the full tiles of its runs."""

    number: Value
    """Query tile of the descriptor; NO_TILE if there is no tile."""
    head: Value
    """Batch times heads plus query head."""
    batch: Value
    first_pair: Value
    n_partial: Value
    """-1 if the build had no room for the tile's visits."""
    n_runs: Value
    n_full: Value
    first_key_tile: Value
    """Of the first visit; one behind the last key tile if there is none."""
    first_pattern: Value
    """Of the first visit, if it is a partial tile."""
    unseen: Value
    """Not 0 if there may be keys that no query sees: their values may hold anything."""
    second_pattern: Value
    third_pattern: Value
    """Of the next partial tiles, `with_patterns`; 0 if there is none."""
    position: Value
    """In the launch order."""
    parts: Value
    """A bit per consumer: whether it stores its rows, in the second pass."""

    @property
    def exists(self) -> Value:
        """Whether there is a tile."""
        return self.number != NO_TILE

    def is_valid(self, frame: Frame) -> Value:
        """i1: the build had room for its visits, and the kernel takes the scale."""
        valid = self.n_partial >= 0
        return valid if frame.op.score.blocks else valid & (frame.kb.arg("scale") >= 0.0)

    def without_faults(self, frame: Frame) -> Tile:
        """The same, visiting nothing if it has no room for its visits."""
        none = self.n_partial < 0
        n_partial, n_runs, n_full = (frame.kb.where(none, 0, x) for x in (self.n_partial, self.n_runs, self.n_full))
        return self._replace(n_partial=n_partial, n_runs=n_runs, n_full=n_full)

    def with_patterns(self, frame: Frame) -> Tile:
        """The same, with the patterns behind the first."""
        pairs = self.pairs(frame)
        second, third = (self.pattern(frame, pairs, index) for index in (1, 2))
        return self._replace(second_pattern=second, third_pattern=third)

    def pattern(self, frame: Frame, pairs: Value, index: Value | int) -> Value:
        """Of the index-th partial tile, from the address of the first pair; 0 if there is none."""
        return frame.kb.load(pairs + index * 2 + 1, self.n_partial > index, 0)

    def pairs(self, frame: Frame) -> Value:
        """Address of the first pair."""
        return frame.kb.arg("visits") + self.first_pair * 2

    def batch_and_head(self, frame: Frame) -> tuple[Value, Value]:
        """Batch and query head."""
        return self.batch, self.head - self.batch * frame.kb.arg("heads")

    def visits(self, frame: Frame) -> Value:
        """How many tiles of keys it visits; a tile that sees nothing visits one, which does not exist."""
        return frame.kb.maximum(self.n_partial + self.n_full, 1)

    def cleaned(self, frame: Frame) -> Value:
        """Visits whose values are cleaned: the first ones, if any."""
        return frame.kb.where(self.unseen != 0, self.n_partial, 0)


class Progress(NamedTuple):
    """What a program has done before a tile: tiles, visits, and those of them whose values were cleaned."""

    tiles: Value
    visits: Value
    cleaned: Value

    def after(self, frame: Frame, tile: Tile) -> Progress:
        """The same behind a tile."""
        return Progress(self.tiles + 1, self.visits + tile.visits(frame), self.cleaned + tile.cleaned(frame))


def tile_at(kb: GpuKernelBuilder, config: HopperConfig, position: Value, order: Order | None = None) -> Tile:
    """Reads the tile at a position of the launch order, 0 <= position < all_heads * query_tiles; persistent programs
    know the `order`.
    """
    query_tiles, heads = kb.arg("query_tiles"), kb.arg("all_heads")
    if order is not None:
        rank, head = order.place(kb, position)
    else:
        # All run at once, or nearly so: groups would change nothing, and take time.
        rank, head = kb.trunc_div(position, heads), kb.trunc_rem(position, heads)
        rank = folded(kb, rank, query_tiles) if config.programs > 1 else rank
    batch, of_batch = kb.trunc_div(head, kb.arg("heads")), kb.trunc_rem(head, kb.arg("heads"))
    mask = batch * kb.arg("mask_batch_stride") + of_batch * kb.arg("mask_head_stride")
    record = kb.arg("order") + (mask * query_tiles + rank) * ORDER_WORDS
    index, *words = (kb.load(record + word) for word in range(ORDER_WORDS))
    unknown = kb.constant(0, i32)
    words += [unknown, unknown, position, kb.constant(ALL_PARTS, i32)]
    return Tile(index.named("tile"), head, batch, *words)


def write_record(frame: Frame, tile: Tile | None, iteration: Value) -> None:
    """Tells the other warps the program's next tile, or that there is none, when they have read the one before."""
    kb = frame.kb
    assert frame.record is not None
    assert frame.record_full is not None
    assert frame.record_empty is not None
    frame.record_empty.wait((iteration % 2) ^ 1)
    store_words(kb, frame.record, tile or (), NO_TILE)
    frame.record_full.arrive()


def read_record(frame: Frame, num_warps: int, iteration: Value) -> Tile:
    """The program's next tile, if there is one, when the producer has written it."""
    assert frame.record is not None
    assert frame.record_full is not None
    assert frame.record_empty is not None
    frame.record_full.wait(iteration % 2)
    words = load_words(frame.kb, frame.record, num_warps, len(Tile._fields))
    frame.record_empty.arrive()
    return Tile(*words)
