"""Builds descriptors on the CPU from a mask's interval form, word for word what the device's kernels build."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compilemask.lowering.descriptor_layout import (
    COLUMN_ROWS,
    KEYS,
    MAGIC,
    PATCHES_WORD,
    STATUS_OVERFLOW,
    TILE_WORDS,
    VERSION,
    Layout,
    diagonal_steps,
    diagonal_unit,
    tile_cost,
)
from compilemask.lowering.patch_grid import PATCH_WORDS
from compilemask.runtime.cpu.bits import Ints, keys_below, pack, to_int32
from compilemask.runtime.cpu.row_intervals import MEMBERS_AT_ONCE, IntervalSet
from compilemask.runtime.descriptor import Descriptor

TILES_AT_ONCE = 256
"""Tiles whose bits are worked on at a time."""

EMPTY, PARTIAL, FULL = 0, 1, 2

Predicate = Callable[[NDArray[Any], NDArray[Any]], NDArray[np.bool_]]


@dataclass(frozen=True)
class RowsOfMask:
    """One mask over its rows: `inner` is visible, nothing outside `outer` is; in between, the predicate(q, kv) decides.

    An exact mask has no predicate, and `inner` is `outer`.
    """

    inner: IntervalSet
    outer: IntervalSet
    predicate: Predicate | None = None


@dataclass(frozen=True)
class Diagonals:
    """The shared patterns of one mask: the slots' diagonals and bits, without the cut at the last key."""

    diagonals: tuple[int, ...]
    words: Ints
    """[slots before the cut, R, 4]"""


@dataclass(frozen=True)
class _Tiles:
    """One mask's tiles: their classes [NQ, NK] and, unless patterns are shared, the words of partial ones [n, R, 4]."""

    classes: NDArray[np.uint8]
    words: Ints | None
    own: Ints
    """[NQ], how many rows surely see the key at their own position"""


def build(layout: Layout, masks: Sequence[RowsOfMask], shared: Sequence[Diagonals] | None = None) -> Descriptor:
    """The descriptor of `layout.masks` masks, in time and memory O(rows * intervals + tiles)."""
    buffer = np.zeros(layout.words, dtype=np.int32)
    tiles = [_classify(layout, mask, with_words=shared is None) for mask in masks]
    pairs, patterns, status = _write_tiles(layout, buffer, tiles, shared)
    if shared is not None:
        patterns = layout.pattern_capacity
        _write_shared(layout, buffer, shared)
    shape = (layout.batch, layout.heads, layout.queries, layout.keys, layout.rows, KEYS)
    counts = (layout.query_tiles, layout.key_tiles, layout.pair_capacity, layout.pattern_capacity)
    buffer[:PATCHES_WORD] = (MAGIC, VERSION, *shape, *counts, pairs, patterns, status, layout.shared)
    if layout.patches is not None:
        buffer[PATCHES_WORD : PATCHES_WORD + PATCH_WORDS] = layout.patches.words
    return Descriptor(torch.from_numpy(buffer), layout)


# ---- classes ----


def _classify(layout: Layout, mask: RowsOfMask, with_words: bool) -> _Tiles:
    rows, tiles = layout.rows, layout.query_tiles
    classes = np.zeros((tiles, layout.key_tiles), dtype=np.uint8)
    words: list[Ints] = []
    at_once = max(1, MEMBERS_AT_ONCE // max(rows, layout.key_tiles))
    for first in range(0, tiles, at_once):
        stop = min(tiles, first + at_once)
        ends = np.minimum(np.arange(first, stop) * rows + rows, layout.queries)
        every = (ends - np.arange(first, stop) * rows)[:, None] * KEYS
        inner = mask.inner.coverage(first * rows, int(ends[-1]), rows)
        chunk = classes[first:stop]
        chunk[inner > 0] = PARTIAL
        chunk[inner == every] = FULL
        if mask.predicate is not None:
            outer = mask.outer.coverage(first * rows, int(ends[-1]), rows)
            open_tiles = np.nonzero((outer > 0) & (inner < every))
            found, bits = _decide(layout, mask, open_tiles[0] + first, open_tiles[1], with_words)
            chunk[open_tiles] = found
            words.extend(bits)
        elif with_words:
            partial = np.nonzero(chunk == PARTIAL)
            words.extend(_words_of(layout, mask, partial[0] + first, partial[1]))
    empty = np.zeros((0, rows, 4), dtype=np.int64)
    own = np.add.reduceat(_sees_itself(layout, mask), np.arange(0, layout.queries, rows), dtype=np.int64)
    return _Tiles(classes, np.concatenate([empty, *words]) if with_words else None, own)


def _sees_itself(layout: Layout, mask: RowsOfMask) -> NDArray[np.bool_]:
    """Which rows surely see the key at their own position; no row is sure if the two lie in patches of other shapes."""
    patches = layout.patches
    if patches is not None and patches.query_patch != patches.key_patch:
        return np.zeros(layout.queries, dtype=np.bool_)
    return mask.inner.holds(np.arange(layout.queries))


def _decide(
    layout: Layout, mask: RowsOfMask, tile: Ints, key_tile: Ints, with_words: bool
) -> tuple[NDArray[np.uint8], list[Ints]]:
    """Classes of tiles in which the predicate must be asked, and the words of the partial ones."""
    found, kept = np.zeros(len(tile), dtype=np.uint8), list[Ints]()
    for start in range(0, len(tile), TILES_AT_ONCE):
        part = slice(start, start + TILES_AT_ONCE)
        (words,) = _words_of(layout, mask, tile[part], key_tile[part])
        seen = np.unpackbits(to_int32(words).view(np.uint8).reshape(len(words), -1), axis=1).sum(axis=1, dtype=np.int64)
        every = np.minimum(layout.queries - tile[part] * layout.rows, layout.rows) * KEYS
        found[part] = np.where(seen == every, FULL, np.where(seen > 0, PARTIAL, EMPTY))
        if with_words:
            kept.append(words[found[part] == PARTIAL])
    return found, kept


def _words_of(layout: Layout, mask: RowsOfMask, tile: Ints, key_tile: Ints) -> list[Ints]:
    """Bits of tiles, in chunks [n, R, 4]; rows behind the last query have none."""
    result: list[Ints] = []
    for start in range(0, len(tile), TILES_AT_ONCE):
        part = slice(start, start + TILES_AT_ONCE)
        rows = tile[part, None] * layout.rows + np.arange(layout.rows)
        exists = rows < layout.queries
        rows = np.minimum(rows, layout.queries - 1)
        first_key = key_tile[part] * KEYS
        words = mask.inner.words(rows, first_key)
        if mask.predicate is not None:
            keys = first_key[:, None, None] + np.arange(KEYS)
            asked = pack(np.broadcast_to(mask.predicate(rows[:, :, None], keys), (*rows.shape, KEYS)))
            words |= mask.outer.words(rows, first_key) & asked
        result.append(words * exists[:, :, None])
    return result


# ---- sections ----


def _write_tiles(
    layout: Layout, buffer: NDArray[np.int32], tiles: list[_Tiles], shared: Sequence[Diagonals] | None
) -> tuple[int, int, int]:
    """Writes records, order, pairs, sources and stored patterns. Returns the pairs and patterns used and the status."""
    rows = layout.masks * layout.query_tiles
    classes = np.concatenate([part.classes for part in tiles]).reshape(rows, layout.key_tiles)
    partial, full = classes == PARTIAL, classes == FULL
    begins, ends = _runs(full)
    counts = [x.sum(axis=1, dtype=np.int64) for x in (partial, begins, full)]
    n_partial, n_runs, n_full = counts
    first_pair = np.cumsum(n_partial + n_runs) - (n_partial + n_runs)
    first_pattern = np.zeros_like(n_partial) if layout.shared else np.cumsum(n_partial) - n_partial
    fits = first_pair + n_partial + n_runs <= layout.pair_capacity
    if not layout.shared:
        fits &= first_pattern + n_partial <= layout.pattern_capacity
    own = np.concatenate([part.own for part in tiles])
    shown = (np.where(fits, n_partial, -1), np.where(fits, n_runs, 0), np.where(fits, n_full, 0))
    records = np.stack([np.where(fits, first_pair, 0), *shown, *counts, own], axis=1)
    buffer[layout.tiles : layout.tiles + rows * TILE_WORDS] = records.ravel()
    pairs = buffer[layout.visits : layout.visits + 2 * layout.pair_capacity].reshape(-1, 2)
    _write_runs(pairs, begins & fits[:, None], ends & fits[:, None], first_pair + n_partial)
    t, key_tile = np.nonzero(partial & fits[:, None])
    within = _position_in_row(t, n_partial)
    number = _shared_pattern(layout, t, key_tile, shared) if shared is not None else first_pattern[t] + within
    pairs[first_pair[t] + within] = np.stack([key_tile, number], axis=1)
    _write_order(layout, buffer, records)
    if shared is None:
        _write_stored(layout, buffer, tiles, fits[np.nonzero(partial)[0]], t, key_tile)
    return int((n_partial + n_runs)[fits].sum()), int(n_partial[fits].sum()), 0 if fits.all() else STATUS_OVERFLOW


def _runs(full: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Where runs of full tiles begin, and where they have their last tile."""
    begins, ends = full.copy(), full.copy()
    begins[:, 1:] &= ~full[:, :-1]
    ends[:, :-1] &= ~full[:, 1:]
    return begins, ends


def _position_in_row(row: Ints, counts: Ints) -> Ints:
    """For entries sorted by row, with `counts` entries in each row that has any here: their position within the row."""
    present = np.zeros_like(counts)
    present[row] = counts[row]
    return np.arange(len(row)) - (np.cumsum(present) - present)[row]


def _write_runs(pairs: NDArray[np.int32], begins: NDArray[np.bool_], ends: NDArray[np.bool_], first: Ints) -> None:
    t, begin = np.nonzero(begins)
    _, last = np.nonzero(ends)
    within = _position_in_row(t, begins.sum(axis=1, dtype=np.int64))
    pairs[first[t] + within] = np.stack([begin, last + 1], axis=1)


def _write_order(layout: Layout, buffer: NDArray[np.int32], records: Ints) -> None:
    """Records in launch order; the pairs must have been written."""
    first_pair, n_partial, n_runs, _, partial, _, full, own = records.T
    visits = buffer[layout.visits : layout.visits + 2 * layout.pair_capacity].reshape(-1, 2)
    first = np.zeros((len(records), 2), dtype=np.int64)
    visits_any = np.maximum(n_partial, 0) + n_runs > 0
    first[visits_any] = visits[first_pair[visits_any]]
    key_tile = np.where(visits_any, first[:, 0], layout.key_tiles)
    pattern = np.where(n_partial > 0, first[:, 1], 0)
    cost = tile_cost(partial, full).reshape(layout.masks, layout.query_tiles)
    unseen = own.reshape(cost.shape).sum(axis=1, keepdims=True) < layout.lengths[1]
    tile = np.broadcast_to(np.arange(layout.query_tiles), cost.shape)
    order = np.lexsort((-tile, -cost), axis=1)
    words = [x.reshape(cost.shape) for x in (*records.T[:4], key_tile, pattern)]
    launches = np.stack([tile, *words, np.broadcast_to(unseen, cost.shape)], axis=2)
    launches = np.take_along_axis(launches, order[:, :, None], axis=1)
    buffer[layout.order : layout.order + launches.size] = launches.ravel()


def _write_stored(
    layout: Layout, buffer: NDArray[np.int32], tiles: list[_Tiles], kept: NDArray[np.bool_], t: Ints, key_tile: Ints
) -> None:
    sources = buffer[layout.sources : layout.sources + 2 * len(t)].reshape(-1, 2)
    sources[:] = np.stack([t, key_tile], axis=1)
    words = np.concatenate([part.words for part in tiles if part.words is not None])[kept]
    _write_words(layout, buffer, 0, words)


def _write_words(layout: Layout, buffer: NDArray[np.int32], first: int, words: Ints) -> None:
    """Patterns from number `first` on, and their columns."""
    size = layout.rows * 4
    start = layout.patterns + first * size
    buffer[start : start + words.size] = to_int32(words).ravel()
    starts = range(0, layout.rows, COLUMN_ROWS)
    columns = to_int32(np.bitwise_or.reduceat(words, starts, axis=1)).ravel()
    start = layout.columns + first * 4 * layout.column_groups
    buffer[start : start + columns.size] = columns


# ---- shared patterns ----


def _slots_per_mask(layout: Layout) -> int:
    return layout.pattern_capacity // layout.masks


def _shared_pattern(layout: Layout, t: Ints, key_tile: Ints, shared: Sequence[Diagonals]) -> Ints:
    """Numbers of the patterns that partial tiles use."""
    mask, tile = t // layout.query_tiles, t % layout.query_tiles
    on = (key_tile * KEYS - tile * layout.rows) // diagonal_unit(layout.rows)
    slots = _slots_per_mask(layout)
    cut = (slots - 1) // 2
    slot = np.full(len(t), -1)
    for g, part in enumerate(shared):
        for s, diagonal in reversed(list(enumerate(part.diagonals))):
            slot[(mask == g) & (on == diagonal)] = s
    is_cut = (layout.keys % KEYS != 0) & (key_tile == layout.key_tiles - 1)
    if np.any((slot < 0) & ~is_cut):
        raise AssertionError("a partial tile lies on no diagonal of a shared pattern")
    return mask * slots + np.where(is_cut, cut + 1 + slot, slot)


def _write_shared(layout: Layout, buffer: NDArray[np.int32], shared: Sequence[Diagonals]) -> None:
    slots = _slots_per_mask(layout)
    cut = keys_below(np.asarray(layout.keys % KEYS))
    for g, part in enumerate(shared):
        _write_words(layout, buffer, g * slots, part.words)
        if layout.keys % KEYS:
            alone = np.broadcast_to(cut, (1, layout.rows, 4))
            _write_words(layout, buffer, g * slots + len(part.words), np.concatenate([alone, part.words & cut]))


def diagonals(layout: Layout, offsets: Sequence[int], far: IntervalSet, origin: int) -> Diagonals:
    """The shared patterns of a mask whose moving bounds are q + c for c in `offsets`.

    `far` holds `layout.rows` rows of the mask, moved so that its row 0 is that of a query tile at key `origin`, with no
    end of the sequence in reach.
    """
    unit = diagonal_unit(layout.rows)
    numbers = tuple((c + step) // unit for c in offsets for step in diagonal_steps(layout.rows))
    rows = np.broadcast_to(np.arange(layout.rows), (len(numbers), layout.rows))
    start = origin + np.asarray(numbers, dtype=np.int64) * unit
    words = far.words(rows, start) if numbers else np.zeros((0, layout.rows, 4), dtype=np.int64)
    return Diagonals(numbers, words)
