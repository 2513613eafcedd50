"""Zeroes keys of a step that no query of the tile sees: their slopes are 0, but 0 times NaN or infinity is NaN."""

from __future__ import annotations

from xdsl.dialects.builtin import i32

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_backward_cleaning import BOTH, CLEANED_BARRIER
from compilemask.lowering.tiling_to_ttg.attention_backward_queries_frame import Frame, QueryTile
from compilemask.lowering.tiling_to_ttg.attention_config import CONSUMERS, TILE
from compilemask.lowering.tiling_to_ttg.attention_frame import PATTERN_WORDS
from compilemask.lowering.tiling_to_ttg.builder import slice_of
from compilemask.lowering.tiling_to_ttg.builder_memory import Buffer


def clean_keys(frame: Frame, part: int, tile: QueryTile, keys: Buffer, pattern: Value, first: Value) -> None:
    """Zeroes a warpgroup's share of the keys [keys, D] from `first` on, and waits for the other's."""
    kb, layout = frame.kb, frame.layouts.rows
    count = frame.config.keys // CONSUMERS
    in_tile = (first + part * count) % TILE + kb.arange(0, count, slice_of(layout, 1))
    rows = keys.part((part * count, 0), (count, frame.head_dim))
    if frame.config.scores_ahead:
        # The other warpgroup may still read the keys, for its scores.
        kb.bar_sync(CLEANED_BARRIER, BOTH)
    rows.store(kb.where(_is_seen(frame, tile, pattern, in_tile)[:, None], rows.load(layout), 0.0))
    kb.fence_async_shared()
    kb.bar_sync(CLEANED_BARRIER, BOTH)


def _is_seen(frame: Frame, tile: QueryTile, pattern: Value, in_tile: Value) -> Value:
    """i1: some query that exists sees these keys of the tile. Columns of shared patterns know no end of queries."""
    kb, layout = frame.kb, slice_of(frame.layouts.scores, 1)
    lane, bit = (in_tile >> 1) & (PATTERN_WORDS - 1), (in_tile >> 3) * 2 + (in_tile & 1)
    word = kb.full(in_tile.shape, 0, i32, kb.layout_of(in_tile))
    row = kb.arange(0, TILE // 2, layout)
    for number in range(PATTERN_WORDS):
        seen = kb.constant(0, i32)
        for half in range(2):
            at = row + half * (TILE // 2)
            address = kb.arg("patterns") + ((pattern * TILE + at) * PATTERN_WORDS + number)
            exists = tile.number * TILE + at < kb.arg("queries")
            seen = seen | kb.reduce(kb.load(address, exists, 0), 0, "or")
        word = kb.where(lane == number, seen, word)
    return (kb.shift_right_unsigned(word, bit) & 1) != 0
