"""Pictures of a mask: its visible pairs, and which tiles are full, partial and empty.

compilemask draw hstu --seq 1024 -o hstu.png
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from compilemask.errors import MissingDependencyError

if TYPE_CHECKING:
    from compilemask.language.mask import Mask

TILE = 128
PIXELS = 1024
"""Most pixels of a picture along one axis; each then stands for a square of pairs."""
CHUNK = 1 << 20
"""Pairs that are held at a time."""
EMPTY, PARTIAL, FULL = 0, 1, 2
COLORS = ("#eceff4", "#f0a04b", "#1f4e79")
NAMES = ("empty", "partial", "full")

Rows = Callable[[int, int], npt.NDArray[np.bool_]]
"""(first row, behind the last row) -> visible pairs of these rows, [rows, keys]."""


@dataclass(frozen=True)
class Survey:
    """What a picture shows of a mask of `queries` x `keys` pairs."""

    queries: int
    keys: int
    visible: int
    """Number of visible pairs."""
    shade: npt.NDArray[np.float32]
    """Visible fraction of the pairs below each pixel, [<= PIXELS, <= PIXELS]."""
    classes: npt.NDArray[np.int8]
    """EMPTY, PARTIAL or FULL, [query tiles, key tiles]; a ragged last key tile is never full."""

    @property
    def density(self) -> float:
        """Visible fraction of all pairs."""
        return self.visible / max(1, self.queries * self.keys)

    def count(self, kind: int) -> int:
        """Number of tiles of one class."""
        return int((self.classes == kind).sum())


def survey(rows: Rows, queries: int, keys: int) -> Survey:
    """Evaluate a mask a few rows at a time; besides the picture, no array grows with queries * keys."""
    pixel = 1
    while max(queries, keys) > pixel * PIXELS:
        pixel *= 2
    pairs = np.zeros((-(-queries // pixel), -(-keys // pixel)), np.int64)
    tiles = np.zeros((-(-queries // TILE), -(-keys // TILE)), np.int64)
    step = max(1, CHUNK // max(1, keys))
    for first in range(0, queries, step):
        last = min(first + step, queries)
        visible = rows(first, last).astype(np.int32)
        for total, size in ((pairs, pixel), (tiles, TILE)):
            columns = np.add.reduceat(visible, np.arange(0, keys, size), axis=1)
            np.add.at(total, np.arange(first, last) // size, columns)
    return Survey(
        queries,
        keys,
        int(tiles.sum()),
        (pairs / _areas(queries, keys, pixel)).astype(np.float32),
        _classes(tiles, queries, keys),
    )


def _areas(queries: int, keys: int, size: int) -> npt.NDArray[np.int64]:
    """Number of existing pairs in each square of `size`."""
    heights, widths = (np.minimum(size, n - np.arange(0, n, size)) for n in (queries, keys))
    return np.outer(heights, widths)


def _classes(counts: npt.NDArray[np.int64], queries: int, keys: int) -> npt.NDArray[np.int8]:
    full = counts == _areas(queries, keys, TILE)
    if keys % TILE:
        full[:, -1] = False
    return np.where(full, FULL, np.where(counts > 0, PARTIAL, EMPTY)).astype(np.int8)


def draw(
    mask: Mask, queries: int, keys: int | None = None, path: str | Path = "mask.png", title: str | None = None
) -> Survey:
    """Write a picture of a mask as PNG (or what the path's ending says) and return what it shows.

    Raises:
        MissingDependencyError: matplotlib is not installed.
        MaskError: the mask does not fit the lengths.
    """
    plotting = _matplotlib()
    keys = queries if keys is None else keys
    seen = survey(mask_rows(mask, queries, keys), queries, keys)
    figure = plotting.figure(figsize=(11, 6.1), facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_pairs(left, seen)
    _draw_tiles(right, seen)
    figure.suptitle(title or str(mask).splitlines()[0], fontsize=13, fontweight="bold")
    figure.savefig(path, dpi=130)
    plotting.close(figure)
    return seen


def mask_rows(mask: Mask, queries: int, keys: int) -> Rows:
    """The visible pairs of a mask, a few rows at a time."""
    dense = np.asarray(mask.dense(queries, keys))
    return lambda first, last: dense[first:last]


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise MissingDependencyError("pictures need matplotlib: pip install 'compilemask[draw]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plotting

    return plotting


def _draw_pairs(axes: Any, seen: Survey) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    colors = LinearSegmentedColormap.from_list("mask", [COLORS[EMPTY], COLORS[FULL]])
    extent = (0, seen.keys, seen.queries, 0)
    axes.imshow(seen.shade, cmap=colors, vmin=0, vmax=1, extent=extent, interpolation="nearest", aspect="auto")
    axes.set_title(f"visible pairs: {seen.visible:,} ({seen.density:.1%})", fontsize=10)
    _label(axes, seen)


def _draw_tiles(axes: Any, seen: Survey) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    height, width = seen.classes.shape
    extent = (0, width * TILE, height * TILE, 0)
    axes.imshow(
        seen.classes,
        cmap=ListedColormap(COLORS),
        vmin=EMPTY,
        vmax=FULL,
        extent=extent,
        interpolation="nearest",
        aspect="auto",
    )
    if max(height, width) <= 64:
        for x in range(1, width):
            axes.axvline(x * TILE, color="white", linewidth=1)
        for y in range(1, height):
            axes.axhline(y * TILE, color="white", linewidth=1)
    axes.set_xlim(0, seen.keys)
    axes.set_ylim(seen.queries, 0)
    axes.set_title(f"tiles of {TILE} x {TILE}: {seen.classes.size:,}", fontsize=10)
    _label(axes, seen)
    handles = [
        Patch(facecolor=COLORS[k], edgecolor="#9aa5b1", label=f"{NAMES[k]}: {seen.count(k):,}")
        for k in (FULL, PARTIAL, EMPTY)
    ]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.09), ncols=3, frameon=False, fontsize=10)


def _label(axes: Any, seen: Survey) -> None:
    axes.set_xlabel("key", fontsize=9)
    axes.set_ylabel("query", fontsize=9)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(labelsize=8, length=2)
    axes.set_box_aspect(min(4.0, max(0.25, seen.queries / max(1, seen.keys))))
