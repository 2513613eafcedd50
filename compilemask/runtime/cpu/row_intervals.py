"""What rows of queries see, as arrays: how much of each tile of keys, and which keys of a tile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compilemask.dialects.semantics.interval import Family
from compilemask.lowering.descriptor_layout import KEYS
from compilemask.runtime.cpu.bits import Ints, keys_between

MEMBERS_AT_ONCE = 1 << 20
"""Intervals that are expanded at a time; bounds the memory of a build."""


class IntervalSet:
    """The intervals of rows 0..n-1 inside [0, keys): ranges `(lo, hi)` over rows, and families."""

    def __init__(
        self, rows: int, keys: int, ranges: list[tuple[NDArray[Any], NDArray[Any]]], families: list[Family]
    ) -> None:
        self.rows = rows
        self.keys = keys
        self.ranges = [_clip(lo, hi, 0, keys, rows) for lo, hi in ranges]
        self.families = families
        self._lines = [_lines_inside(family, keys, rows) for family in families]

    def coverage(self, first_row: int, last_row: int, rows_of_tile: int) -> Ints:
        """Visible pairs per tile of rows [first_row, last_row) and key tile, [tiles, NK]. `first_row` starts a tile."""
        tiles = -(-(last_row - first_row) // rows_of_tile)
        key_tiles = -(-self.keys // KEYS)
        total = np.zeros((tiles, key_tiles + 1), dtype=np.int64)
        for row, lo, hi in self._intervals(first_row, last_row):
            tile = (row - first_row) // rows_of_tile
            total += _below(tile, hi, total.shape) - _below(tile, lo, total.shape)
        return total[:, :key_tiles]

    def holds(self, key: Ints) -> NDArray[np.bool_]:
        """Whether each row sees the key that is given for it; both [rows]."""
        found = np.zeros(self.rows, dtype=np.bool_)
        for lo, hi in self.ranges:
            found |= (lo <= key) & (key < hi)
        rows = np.arange(self.rows)
        for family, (first, last) in zip(self.families, self._lines, strict=True):
            base, pitch = _rowwise(family.base, self.rows), np.maximum(_rowwise(family.pitch, self.rows), 1)
            line = (key - base) // pitch
            some = np.flatnonzero((first <= line) & (line < last))
            lo, hi = self._members(family, rows[some], line[some])
            found[some] |= (lo <= key[some]) & (key[some] < hi)
        return found

    def _intervals(self, first_row: int, last_row: int) -> Iterator[tuple[Ints, Ints, Ints]]:
        rows = np.arange(first_row, last_row)
        for lo, hi in self.ranges:
            yield rows, lo[first_row:last_row], hi[first_row:last_row]
        for family, (first, last) in zip(self.families, self._lines, strict=True):
            count = (last - first)[first_row:last_row]
            done = 0
            while done < len(rows):
                stop = done + max(1, int(np.searchsorted(np.cumsum(count[done:]), MEMBERS_AT_ONCE, side="right")))
                part, lines = rows[done:stop], count[done:stop]
                row = np.repeat(part, lines)
                line = np.arange(len(row)) - np.repeat(np.cumsum(lines) - lines, lines) + first[row]
                yield row, *self._members(family, row, line)
                done = stop

    def _members(self, family: Family, row: NDArray[Any], line: NDArray[Any]) -> tuple[Ints, Ints]:
        lo, hi = family.members(row, line)
        base, pitch = _rowwise(family.base, self.rows)[row], _rowwise(family.pitch, self.rows)[row]
        start = base + line * pitch
        return _clip(lo, hi, np.maximum(start, 0), np.minimum(start + pitch, self.keys), row.shape)

    def words(self, rows: NDArray[Any], start: NDArray[Any]) -> Ints:
        """Bits of the keys start[t] .. start[t] + 127 that rows[t, r] sees: [t, r, 4]."""
        start = start[:, None]
        result = np.zeros((*rows.shape, 4), dtype=np.int64)
        for lo, hi in self.ranges:
            result |= keys_between(lo[rows] - start, hi[rows] - start)
        for family, (first, last) in zip(self.families, self._lines, strict=True):
            base, pitch = _rowwise(family.base, self.rows)[rows], _rowwise(family.pitch, self.rows)[rows]
            pitch = np.maximum(pitch, 1)
            line = np.maximum(first[rows], (start - base) // pitch)
            stop = np.minimum(last[rows], -((base - start - KEYS) // pitch))
            while np.any(line < stop):
                lo, hi = self._members(family, rows, line)
                hi = np.where(line < stop, hi, lo)
                result |= keys_between(lo - start, hi - start)
                line = line + 1
        return result


def _rowwise(values: NDArray[Any], rows: int) -> Ints:
    return np.broadcast_to(np.asarray(values, dtype=np.int64), (rows,))


def _clip(lo: Any, hi: Any, least: Any, most: Any, shape: Any) -> tuple[Ints, Ints]:
    lo = np.broadcast_to(np.clip(np.asarray(lo, dtype=np.int64), least, np.maximum(least, most)), shape)
    hi = np.broadcast_to(np.minimum(np.asarray(hi, dtype=np.int64), most), shape)
    return lo, np.maximum(lo, hi)


def _lines_inside(family: Family, keys: int, rows: int) -> tuple[Ints, Ints]:
    """The lines of each row whose cells touch [0, keys)."""
    first, last, base, pitch = (
        _rowwise(values, rows) for values in (family.first, family.last, family.base, family.pitch)
    )
    pitch = np.maximum(pitch, 1)
    first = np.maximum(first, (0 - base) // pitch)
    last = np.minimum(last, -((base - keys) // pitch))
    return first, np.maximum(first, last)


def _below(tile: Ints, bound: Ints, shape: tuple[int, int]) -> Ints:
    """Keys below the bounds, summed per tile and key tile."""
    where = tile * shape[1] + bound // KEYS
    size = shape[0] * shape[1]
    inside = np.bincount(where, bound % KEYS, size).astype(np.int64).reshape(shape)
    passed = np.bincount(where, minlength=size).reshape(shape)
    behind = np.cumsum(passed[:, ::-1], axis=1)[:, ::-1] - passed
    return inside + KEYS * behind
