"""The producer: one warp that copies tiles of q, k and v to shared memory, as far ahead as there are empty buffers."""

from __future__ import annotations

from xdsl.dialects.builtin import i32

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS, TILE
from compilemask.lowering.tiling_to_ttg.attention_frame import Frame, Ring
from compilemask.lowering.tiling_to_ttg.attention_maps import Box, TileMap
from compilemask.lowering.tiling_to_ttg.attention_tile import Progress, Tile


def produce(frame: Frame, tile: Tile, progress: Progress) -> None:
    """Copies what a tile needs."""
    kb, count = frame.kb, progress.visits
    batch, head = tile.batch_and_head(frame)
    _load_query(frame, tile, batch, head, progress.tiles)
    key_head = kb.trunc_div(head, kb.arg("group"))
    _load_pair(frame, batch, key_head, tile.first_key_tile, count)
    pairs = tile.pairs(frame)
    with kb.for_loop(1, tile.n_partial, 1, [count + 1]) as partial:
        _load_pair(frame, batch, key_head, kb.load(pairs + partial.index * 2), partial.carried[0])
        partial.yield_(partial.carried[0] + 1)
    runs = pairs + tile.n_partial * 2
    taken = kb.cast(tile.n_partial == 0, i32)
    with kb.for_loop(0, tile.n_runs, 1, [partial.results[0], taken]) as each_run:
        start, end = (kb.load(runs + each_run.index * 2 + word) for word in range(2))
        with kb.for_loop(start + each_run.carried[1], end, 1, [each_run.carried[0]]) as full:
            _load_pair(frame, batch, key_head, full.index, full.carried[0])
            full.yield_(full.carried[0] + 1)
        each_run.yield_(full.results[0], kb.constant(0, taken.dtype))


def _load_query(frame: Frame, tile: Tile, batch: Value, head: Value, iteration: Value) -> None:
    source = frame.query_map
    for part in range(frame.config.consumers):
        if frame.config.is_persistent:
            frame.query_empty[part].wait((iteration % 2) ^ 1)
        frame.query_full[part].expect(source.bytes)
        row = tile.number * frame.config.rows + part * ROWS
        source.load(frame.queries.box(batch, head, row), frame.query[part], frame.query_full[part])


def _load_pair(frame: Frame, batch: Value, head: Value, key_tile: Value, count: Value) -> None:
    """Keys and values of a tile."""
    for ring, source in ((frame.key, frame.key_map), (frame.value, frame.value_map)):
        _load(frame, ring, source, frame.keys.box(batch, head, key_tile * TILE), count)


def _load(frame: Frame, ring: Ring, source: TileMap, box: Box, count: Value) -> None:
    place, phase = frame.place(count)
    ring.empty[place].wait(phase ^ 1)
    ring.full[place].expect(source.bytes)
    source.load(box, ring.buffers[place], ring.full[place])
