"""Whether the tiles of an image should be patches, and which: how many tiles attention would visit, counted by a host.

Counted on query tiles evenly spread over the sequence, from the intervals that their rows see. A mask whose tables the
host does not know is not asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compilemask.dialects import interval
from compilemask.dialects.semantics.interval import RowSets, evaluate
from compilemask.lowering.descriptor_layout import KEYS, ceil_div
from compilemask.lowering.patch_grid import Image, Patches, PatchGrid, patch_shapes
from compilemask.lowering.visited_tiles import Ranges, Span

Ints = NDArray[np.int64]
COUNTED_TILES = 32
"""Query tiles that are looked at."""
ROWS_AT_ONCE = 1 << 14
"""Bounds the memory of an exact count."""
WORTH = 0.9
"""Patches must visit at most so many of the tiles that runs of positions visit, all query tiles together."""
LONGEST = 8
"""Sides of a patch, as multiples of its shortest one."""


def lie_on_raster(func: interval.FuncOp, arguments: Sequence[int | None], patches: Patches) -> bool:
    """Whether all families of a function in normal form surely have the lines of an image: its origin and its width.
    Arguments that the host does not know are None.
    """
    every_row = Span(np.array([0]), np.array([patches.length]))
    ranges = Ranges.of_call(func, every_row, patches.length, patches.length, arguments)
    expected = {(patches.origin, patches.sizes[-1])}
    for op in func.body.block.walk():
        if isinstance(op, interval.FamilyOp):
            base, pitch = ranges[op.base], ranges[op.pitch]
            if {(int(base.least[0]), int(pitch.least[0])), (int(base.most[0]), int(pitch.most[0]))} != expected:
                return False
    return True


def end_with_image(func: interval.FuncOp, arguments: Sequence[int | None], patches: Patches) -> bool:
    """Whether no family surely has a line before or behind the image, on whose raster all of them lie."""
    lines = math.prod(patches.sizes[:-1])
    every_row = Span(np.array([0]), np.array([patches.length]))
    ranges = Ranges.of_call(func, every_row, patches.length, patches.length, arguments)
    families = [op for op in func.body.block.walk() if isinstance(op, interval.FamilyOp)]
    if all(ranges[op.first].least[0] >= 0 and ranges[op.last].most[0] <= lines for op in families):
        return True
    known = [value for value in arguments if value is not None]
    if len(known) < len(arguments):
        return False
    for start in range(0, patches.length, ROWS_AT_ONCE):
        rows = np.arange(start, min(start + ROWS_AT_ONCE, patches.length))
        sets = evaluate(func, known, patches.length, patches.length, rows)
        for family in (sets if sets.between is None else sets.between.outer).families:
            some = family.first < family.last
            if (some & ((family.first < 0) | (family.last > lines))).any():
                return False
    return True


@dataclass(frozen=True)
class PatchChoice:
    """What was chosen, and why: the key tiles that a query tile visits on average."""

    patches: Patches | None
    """None if tiles stay runs of 128 positions."""
    by_runs: float = 0.0
    by_patches: Mapping[Patches, float] = field(default_factory=dict[Patches, float])
    no_choice: str = ""
    """Why nothing was counted; empty if it was."""


def choose_patches(func: interval.FuncOp, arguments: Sequence[int], image: Image, length: int) -> PatchChoice:
    """The patches that visit fewest tiles, if the lines of the mask are those of the image. `func` is the mask's
    interval function in normal form, in raster order, over as many queries as keys.
    """
    origin, sizes = image
    shapes = [shape for shape in patch_shapes(KEYS, len(sizes)) if max(shape) <= LONGEST * min(shape)]
    patches = [Patches(origin, sizes, length, shape, shape) for shape in shapes]
    if not lie_on_raster(func, arguments, patches[0]):
        return PatchChoice(None, no_choice="a row sees lines of another raster than the image's")
    visited = {item: _visited(func, arguments, length, item) for item in patches}
    by_runs = _visited(func, arguments, length, None)
    # Ragged patches are more query tiles than runs are: what all of them visit together is what takes time.
    total = {item: visited[item] * item.queries.tiles for item in patches}
    best = min(patches, key=lambda item: total[item])
    is_worth = total[best] <= WORTH * by_runs * ceil_div(length, KEYS)
    return PatchChoice(best if is_worth else None, by_runs, visited)


def most_visited(func: interval.FuncOp, arguments: Sequence[int], patches: Patches) -> int:
    """Upper bound on the tiles that all query tiles visit together, partial and full ones; nearly exact."""
    tiles = np.arange(patches.queries.tiles)
    at_once = max(1, ROWS_AT_ONCE // patches.queries.tile)
    parts = [tiles[start : start + at_once] for start in range(0, len(tiles), at_once)]
    return sum(_count(func, arguments, patches.length, patches, part) for part in parts)


def _visited(func: interval.FuncOp, arguments: Sequence[Any], length: int, patches: Patches | None) -> float:
    """Key tiles that a query tile visits, on average."""
    tiles = ceil_div(length, KEYS) if patches is None else patches.queries.tiles
    looked_at = np.unique(np.linspace(0, tiles - 1, min(tiles, COUNTED_TILES)).astype(np.int64))
    return _count(func, arguments, length, patches, looked_at) / len(looked_at)


def _count(
    func: interval.FuncOp, arguments: Sequence[Any], length: int, patches: Patches | None, looked_at: Ints
) -> int:
    """Key tiles that some query tiles visit; those that a row may see if the mask is known from both sides."""
    order = np.arange(length) if patches is None else patches.queries.positions
    rows = KEYS if patches is None else patches.queries.tile
    places = [order[tile * rows : (tile + 1) * rows] for tile in looked_at]
    positions = [part[part >= 0] for part in places]
    sets = evaluate(func, arguments, length, length, np.concatenate(positions))
    tile_of_row = np.repeat(np.arange(len(positions)), [len(part) for part in positions])
    marks = _RunMarks(len(positions), length) if patches is None else _PatchMarks(len(positions), patches.keys)
    for row, lo, hi in _intervals(sets if sets.between is None else sets.between.outer, length):
        some = lo < hi
        marks.add(tile_of_row[row[some]], lo[some], hi[some])
    return marks.count()


def _intervals(sets: RowSets, keys: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Rows, and what they see from where to where; intervals may be empty."""
    rows = np.arange(sets.rows)
    for lo, hi in sets.ranges:
        yield rows, np.clip(lo, 0, keys), np.clip(hi, 0, keys)
    for family in sets.families:
        count = np.maximum(family.last - family.first, 0)
        row = np.repeat(rows, count)
        line = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + family.first[row]
        lo, hi = family.members(row, line)
        yield row, np.clip(lo, 0, keys), np.clip(hi, 0, keys)


class _RunMarks:
    """Which key tiles of 128 consecutive positions some query tiles visit."""

    def __init__(self, tiles: int, keys: int) -> None:
        self.changes = np.zeros((tiles, ceil_div(keys, KEYS) + 1), dtype=np.int64)

    def add(self, tile: Ints, lo: Ints, hi: Ints) -> None:
        """Mark what non-empty intervals touch."""
        np.add.at(self.changes, (tile, lo // KEYS), 1)
        np.add.at(self.changes, (tile, (hi - 1) // KEYS + 1), -1)

    def count(self) -> int:
        """Marked pairs of tiles."""
        return int((np.cumsum(self.changes, axis=1) > 0).sum())


class _PatchMarks:
    """Which tiles of patched order some query tiles visit: patches by rows and columns, other tiles by runs."""

    def __init__(self, tiles: int, grid: PatchGrid) -> None:
        self.grid = grid
        rows, columns = int(np.prod(grid.counts[:-1])), grid.counts[-1]
        self.changes = np.zeros((tiles, rows + 1, columns + 1), dtype=np.int64)
        self.before = _RunMarks(tiles, grid.origin)
        self.behind = _RunMarks(tiles, grid.length - grid.end)

    def add(self, tile: Ints, lo: Ints, hi: Ints) -> None:
        """Mark what non-empty intervals touch."""
        grid, width = self.grid, self.grid.sizes[-1]
        for marks, begin, end in ((self.before, 0, grid.origin), (self.behind, grid.end, grid.length)):
            first, last = np.clip(lo, begin, end) - begin, np.clip(hi, begin, end) - begin
            some = first < last
            marks.add(tile[some], first[some], last[some])
        lo, hi = np.clip(lo, grid.origin, grid.end) - grid.origin, np.clip(hi, grid.origin, grid.end) - grid.origin
        some = lo < hi
        tile, lo, last = tile[some], lo[some], hi[some] - 1
        one_line = lo // width == last // width
        first_row, last_row = self._row(lo // width), self._row(last // width)
        if len(grid.sizes) == 3:  # over several frames, all rows of their patches may be touched
            rows_of_frame = grid.counts[1]
            several = lo // width // grid.sizes[1] != last // width // grid.sizes[1]
            first_row = np.where(several, first_row // rows_of_frame * rows_of_frame, first_row)
            last_row = np.where(several, (last_row // rows_of_frame + 1) * rows_of_frame - 1, last_row)
        first_column = np.where(one_line, lo % width, 0) // grid.patch[-1]
        last_column = np.where(one_line, last % width, width - 1) // grid.patch[-1]
        for row, row_sign in ((first_row, 1), (last_row + 1, -1)):
            for column, sign in ((first_column, 1), (last_column + 1, -1)):
                np.add.at(self.changes, (tile, row, column), row_sign * sign)

    def _row(self, line: Ints) -> Ints:
        """The row of patches that a line of the image lies in."""
        grid = self.grid
        if len(grid.sizes) == 2:
            return line // grid.patch[0]
        return line // grid.sizes[1] // grid.patch[0] * grid.counts[1] + line % grid.sizes[1] // grid.patch[1]

    def count(self) -> int:
        """Marked pairs of tiles."""
        patches = np.cumsum(np.cumsum(self.changes, axis=1), axis=2) > 0
        return int(patches.sum()) + self.before.count() + self.behind.count()
