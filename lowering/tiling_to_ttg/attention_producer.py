"""The producer: one warp that copies tiles of q, k and v to shared memory, as far ahead as there are empty buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xdsl.dialects.builtin import i32

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS, TILE
from compilemask.lowering.tiling_to_ttg.attention_frame import Frame, Ring
from compilemask.lowering.tiling_to_ttg.attention_maps import TileMap
from compilemask.lowering.tiling_to_ttg.attention_tile import Progress, Tile, write_record


def produce(frame: Frame, tile: Tile, progress: Progress) -> None:
    """Copies what a tile needs."""
    begin_tile(frame, tile, progress).finish()


def begin_tile(frame: Frame, tile: Tile, progress: Progress) -> Begun:
    """Copies the queries of a tile, and what its first visit needs.

    Keys come first: there is room for them while the tile before still needs its queries.
    """
    (batch, head), first = tile.batch_and_head(frame), (tile.first_key_tile, progress.visits)
    load = _Loader(frame, batch, frame.kb.trunc_div(head, frame.kb.arg("group")))
    load.first_keys(*first)
    _load_query(frame, tile, batch, head, progress.tiles)
    return Begun(frame, tile, load, load.first_values(*first))


class Begun(NamedTuple):
    """A tile of which the first visit's copies are on their way. The consumers are busy for a while then."""

    frame: Frame
    tile: Tile
    load: _Loader
    carried: Sequence[Value]

    def finish(self) -> None:
        """Copies what the other visits need."""
        frame, tile, load = self.frame, self.tile, self.load
        kb, pairs = frame.kb, tile.pairs(frame)
        with kb.for_loop(1, tile.n_partial, 1, self.carried) as partial:
            partial.yield_(*load.next(kb.load(pairs + partial.index * 2), partial.carried))
        runs = pairs + tile.n_partial * 2
        taken = kb.cast(tile.n_partial == 0, i32)
        with kb.for_loop(0, tile.n_runs, 1, [*partial.results, taken]) as each_run:
            *before, taken = each_run.carried
            start, end = (kb.load(runs + each_run.index * 2 + word) for word in range(2))
            with kb.for_loop(start + taken, end, 1, before) as full:
                full.yield_(*load.next(full.index, full.carried))
            each_run.yield_(*full.results, kb.constant(0, i32))
        load.last(each_run.results[:-1])


def name_tile(frame: Frame, tile: Tile, progress: Progress, records: int = 0) -> None:
    """Tells the other warps the program's next tile; so many `records` before named none."""
    _wait_before_cleaning(frame, tile, progress)
    write_record(frame, tile, progress.tiles + records)


def _wait_before_cleaning(frame: Frame, tile: Tile, progress: Progress) -> None:
    """Waits for the values of the last visits, if some of the tile's own, which lie in the same buffers, are cleaned.

    The cleaner does not follow visits that need no cleaning. It waits for a phase of a barrier by its parity: while the
    one before is still open, it would take the one before that for it.
    """
    kb, value = frame.kb, frame.value
    if not frame.config.clean_values:
        return
    with kb.if_else(tile.cleaned(frame) > 0) as some, some.then():
        for ago in range(1, frame.config.stages + 1):
            count = progress.visits - ago
            place, phase = value.place(kb, kb.maximum(count, 0))
            value.full[place].wait(phase, count >= 0)


def _load_query(frame: Frame, tile: Tile, batch: Value, head: Value, iteration: Value) -> None:
    source = frame.query_map
    for part in range(frame.config.consumers):
        if frame.config.is_persistent:
            frame.query_empty[part].wait((iteration % 2) ^ 1)
        frame.query_full[part].expect(source.bytes)
        row = tile.number * frame.config.rows + part * ROWS
        source.load(frame.queries.box(batch, head, row), frame.query[part], frame.query_full[part])


class _Loader:
    """Copies keys and values of one tile after the other. Between two of them loops carry the number of the next visit
    and, where keys run one tile ahead of values, the tile whose values are to come.
    """

    def __init__(self, frame: Frame, batch: Value, head: Value) -> None:
        self.frame, self.batch, self.head = frame, batch, head

    def first_keys(self, key_tile: Value, count: Value) -> None:
        """The first tile of keys."""
        self._load(self.frame.key, self.frame.key_map, key_tile, count)

    def first_values(self, key_tile: Value, count: Value) -> list[Value]:
        """The first tile of values, if values do not come later."""
        if self.frame.config.keys_run_ahead:
            return [count + 1, key_tile]
        self._load(self.frame.value, self.frame.value_map, key_tile, count)
        return [count + 1]

    def next(self, key_tile: Value, carried: Sequence[Value]) -> list[Value]:
        """A tile behind the first."""
        count, *behind = carried
        self._load(self.frame.key, self.frame.key_map, key_tile, count)
        self._load(self.frame.value, self.frame.value_map, *((behind[0], count - 1) if behind else (key_tile, count)))
        return [count + 1, *([key_tile] if behind else [])]

    def last(self, carried: Sequence[Value]) -> None:
        """What remains behind the last tile."""
        count, *behind = carried
        if behind:
            self._load(self.frame.value, self.frame.value_map, behind[0], count - 1)

    def _load(self, ring: Ring, source: TileMap, key_tile: Value, count: Value) -> None:
        box = self.frame.keys.box(self.batch, self.head, key_tile * TILE)
        place, phase = ring.place(self.frame.kb, count)
        ring.empty[place].wait(phase ^ 1)
        ring.full[place].expect(source.bytes)
        source.load(box, ring.buffers[place], ring.full[place])
