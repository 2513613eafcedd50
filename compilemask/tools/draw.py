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

from compilemask.dialects.mask import FuncOp
from compilemask.dialects.semantics.mask import visible
from compilemask.errors import MaskError, MissingDependencyError, ShapeError

if TYPE_CHECKING:
    from compilemask.language.mask import Mask

TILE = 128
PIXELS = 512
"""Most pixels of a picture along one axis; each then stands for a square of pairs."""
MOST_POSITIONS = 1 << 16
"""Most queries and keys of a picture: a picture looks at every pair."""
MOST_OBLONG = 3.0
"""Ratio of the sides beyond which a picture of few queries and many keys is stretched."""
MOST_NUMBERED = 16
"""Most tiles along one axis into which their place in the order of visits is written."""
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
    intervals: npt.NDArray[np.int32]
    """Number of intervals of keys that each row sees, [queries]."""

    @property
    def load(self) -> npt.NDArray[np.int64]:
        """The cost of each query tile, as docs/descriptor.md counts it."""
        partial, full = ((self.classes == kind).sum(axis=1) for kind in (PARTIAL, FULL))
        return 11 * partial + 10 * full + 15

    def visits(self, tile: int) -> list[int]:
        """The key tiles of a query tile in the order of visits: the partial ones, then the full ones."""
        return [int(n) for kind in (PARTIAL, FULL) for n in np.flatnonzero(self.classes[tile] == kind)]

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
    intervals = np.zeros(queries, np.int32)
    step = max(1, CHUNK // max(1, keys))
    for first in range(0, queries, step):
        last = min(first + step, queries)
        visible = rows(first, last).astype(np.int32)
        intervals[first:last] = (np.diff(visible, axis=1, prepend=0) > 0).sum(axis=1)
        for total, size in ((pairs, pixel), (tiles, TILE)):
            columns = np.add.reduceat(visible, np.arange(0, keys, size), axis=1)
            np.add.at(total, np.arange(first, last) // size, columns)
    return Survey(
        queries,
        keys,
        int(tiles.sum()),
        (pairs / _areas(queries, keys, pixel)).astype(np.float32),
        _classes(tiles, queries, keys),
        intervals,
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
    """Write a picture of a mask (of its first batch and head) in the format that the path's ending says; what it shows.

    It shows the visible pairs, the tiles with the order in which each query tile visits them, the number of intervals
    per row and the load per query tile.

    Raises:
        MissingDependencyError: matplotlib is not installed.
        ShapeError: there are more than 65,536 queries or keys, or none.
        MaskError: the mask does not fit so many queries and keys, or there is no such picture format.
    """
    plotting = _matplotlib()
    keys = queries if keys is None else keys
    for name, length in (("queries", queries), ("keys", keys)):
        if not 1 <= length <= MOST_POSITIONS:
            raise ShapeError(f"{name} is {length}, a picture shows 1 to {MOST_POSITIONS}")
    mask.check_lengths(queries, keys)
    file_format = _format(Path(path))
    seen = survey(mask_rows(mask, queries, keys), queries, keys)
    slope = min(MOST_OBLONG, max(1 / MOST_OBLONG, queries / keys))
    figure = plotting.figure(figsize=(11, 1.8 + 6.3 * slope), facecolor="white", layout="constrained")
    (pairs, tiles), (intervals, load) = figure.subplots(2, 2, height_ratios=(4.9 * slope, 1.4 * slope + 0.4))
    _draw_pairs(pairs, seen)
    _draw_tiles(tiles, seen)
    for axes in (pairs, tiles):
        axes.set_box_aspect(slope)
    _draw_intervals(intervals, seen)
    _draw_load(load, seen)
    figure.suptitle(title or title_of(mask), fontsize=13, fontweight="bold", x=0.01, ha="left")
    figure.legend(handles=_legend(seen), loc="outside lower right", ncols=3, frameon=False, fontsize=10)
    figure.savefig(path, dpi=150, format=file_format)
    plotting.close(figure)
    return seen


def mask_rows(mask: Mask, queries: int, keys: int) -> Rows:
    """The visible pairs of a mask's first batch and head, a few rows at a time."""
    func = mask.module().body.block.first_op
    assert isinstance(func, FuncOp)
    arguments = [p.value if isinstance(p.value, int) else p.value[0, 0].cpu().numpy() for p in mask.parameters]
    return lambda first, last: visible(func, arguments, queries, keys, rows=slice(first, last))


def title_of(mask: Mask) -> str:
    """A mask's name and parameters in one line."""
    shown = (f"{p.name}={p.value}" if isinstance(p.value, int) else p.name for p in mask.parameters)
    return f"{mask.name}({', '.join(shown)})"


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise MissingDependencyError("pictures need matplotlib: pip install 'compilemask[draw]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plotting

    return plotting


def _format(path: Path) -> str:
    """What a path's ending says, png if it has none. Raises MaskError unless matplotlib writes it."""
    from matplotlib.backend_bases import FigureCanvasBase

    name = path.suffix.removeprefix(".").lower() or "png"
    known = FigureCanvasBase.get_supported_filetypes()
    if name not in known:
        raise MaskError(f"{path}: there is no picture format {name!r}; there are {', '.join(sorted(known))}")
    return name


def _draw_pairs(axes: Any, seen: Survey) -> None:
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    colors = LinearSegmentedColormap.from_list("mask", [COLORS[EMPTY], COLORS[FULL]])
    faint_lines_show = PowerNorm(0.6, vmin=0, vmax=1)
    extent = (0, seen.keys, seen.queries, 0)
    axes.imshow(seen.shade, cmap=colors, norm=faint_lines_show, extent=extent, interpolation="nearest", aspect="auto")
    _label(axes, f"{seen.visible:,} visible pairs of {seen.queries:,} x {seen.keys:,} ({seen.density:.1%})")


def _draw_tiles(axes: Any, seen: Survey) -> None:
    from matplotlib.colors import ListedColormap

    height, width = seen.classes.shape
    extent = (0, width * TILE, height * TILE, 0)
    colors = ListedColormap(COLORS)
    axes.imshow(seen.classes, cmap=colors, vmin=EMPTY, vmax=FULL, extent=extent, interpolation="nearest", aspect="auto")
    if max(height, width) <= 64:
        axes.vlines(np.arange(1, width) * TILE, 0, seen.queries, color="white", linewidth=1)
        axes.hlines(np.arange(1, height) * TILE, 0, seen.keys, color="white", linewidth=1)
    title = f"{seen.classes.size:,} tiles of {TILE} x {TILE}"
    if max(height, width) <= MOST_NUMBERED:
        _number_visits(axes, seen)
        title += ", numbered as rows visit them"
    axes.set_xlim(0, seen.keys)
    axes.set_ylim(seen.queries, 0)
    _label(axes, title)


def _number_visits(axes: Any, seen: Survey) -> None:
    """Write into each tile when its query tile visits it, from 1."""
    for m in range(len(seen.classes)):
        y = (m * TILE + min((m + 1) * TILE, seen.queries)) / 2
        for position, n in enumerate(seen.visits(m), start=1):
            x = (n * TILE + min((n + 1) * TILE, seen.keys)) / 2
            color = "white" if seen.classes[m, n] == FULL else "black"
            axes.text(x, y, str(position), color=color, fontsize=8, ha="center", va="center", clip_on=True)


def _draw_intervals(axes: Any, seen: Survey) -> None:
    rows = np.arange(seen.queries)
    axes.fill_between(rows, seen.intervals, step="mid", color=COLORS[FULL], alpha=0.25, linewidth=0)
    axes.step(rows, seen.intervals, where="mid", color=COLORS[FULL], linewidth=1)
    _label_below(axes, f"intervals per row, at most {int(seen.intervals.max()):,}", "query", seen.queries)


def _draw_load(axes: Any, seen: Survey) -> None:
    axes.bar(np.arange(len(seen.load)), seen.load, width=0.9, color=COLORS[FULL])
    title = f"load per query tile, {int(seen.load.min()):,} to {int(seen.load.max()):,}"
    _label_below(axes, title, "query tile", len(seen.load))


def _label_below(axes: Any, title: str, unit: str, count: int) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(unit, fontsize=9)
    axes.set_xlim(-0.5, count - 0.5)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=8, length=2, color="#9aa5b1")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
        axis.set_major_formatter("{x:,.0f}")


def _legend(seen: Survey) -> list[Any]:
    from matplotlib.patches import Patch

    return [
        Patch(facecolor=COLORS[kind], edgecolor="#9aa5b1", label=f"{NAMES[kind]}: {seen.count(kind):,}")
        for kind in (FULL, PARTIAL, EMPTY)
    ]


def _label(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel("key", fontsize=9)
    axes.set_ylabel("query", fontsize=9)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(labelsize=8, length=2, color="#9aa5b1")
    for spine in axes.spines.values():
        spine.set_color("#9aa5b1")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.0f}")
