"""Which form the compiler found for a mask, what kept it from a better one, and what it costs at given lengths."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from compilemask.dialects import interval
from compilemask.lowering.descriptor_layout import KEYS, TILE_WORDS
from compilemask.lowering.interval_to_tiling import normal_form
from compilemask.lowering.patch_choice import PatchChoice
from compilemask.runtime.compiled import Compiled, compile
from compilemask.runtime.descriptor import Descriptor

if TYPE_CHECKING:
    from compilemask.language.mask import Mask

_ONES = np.array([byte.bit_count() for byte in range(256)], dtype=np.int64)
"""Set bits of each byte."""


@dataclass(frozen=True)
class Explanation:
    """What became of a mask; numbers of tiles and pairs are for all batches and heads of the mask together."""

    name: str
    queries: int
    keys: int
    batch: int
    heads: int
    exact: bool
    """Whether intervals say the mask; otherwise its predicate decides between an inner and an outer set."""
    intervals: int | None
    """Most intervals that a row sees (of the outer set, if not exact); None if only the lengths bound them."""
    inner_intervals: int | None
    """Those of the inner set."""
    why: tuple[str, ...]
    """What intervals could not say."""
    full_tiles: int
    partial_tiles: int
    empty_tiles: int
    visible_pairs: int
    computed_pairs: int
    """Pairs of all tiles that are visited."""
    patterns: str
    """How partial tiles are masked: "shared" by all tiles of a diagonal, or "stored" for each tile."""
    pattern_count: int
    pattern_capacity: int
    """Room for patterns, which follows from what is known before the mask runs."""
    descriptor_bytes: int
    patches: tuple[int, ...] | None
    """The shape of patches that the tiles of the mask's image are on a GPU; None if tiles are runs of positions. All
    other fields are for runs.
    """
    visited: dict[str, float] | None
    """Key tiles that a query tile visits on average, by the shape of tiles; None if there is no choice."""
    no_patches: str | None
    """Why there is no choice, though rows see lines of an image."""

    @property
    def sparsity(self) -> float:
        """Invisible fraction of all pairs."""
        return 1 - self.visible_pairs / max(1, self.queries * self.keys * self.batch * self.heads)

    @property
    def overhead(self) -> float | None:
        """Computed pairs for each visible one; None if nothing is visible."""
        return self.computed_pairs / self.visible_pairs if self.visible_pairs else None

    def to_dict(self) -> dict[str, Any]:
        """All fields, `sparsity` and `overhead`, as JSON takes them."""
        return {**asdict(self), "sparsity": self.sparsity, "overhead": self.overhead}

    def __str__(self) -> str:
        masks = "" if self.batch * self.heads == 1 else f", {self.batch} batches x {self.heads} heads"
        rows = [
            (f"@{self.name}", f"{self.queries:,} queries x {self.keys:,} keys{masks}"),
            ("form", self._form()),
            *(("because" if number == 0 else "", reason) for number, reason in enumerate(self.why)),
            ("tiles", self._tiles()),
            ("pairs", self._pairs()),
            ("patterns", self._patterns()),
            ("descriptor", _size(self.descriptor_bytes)),
            *([("patches", self._patches(self.visited))] if self.visited else []),
            *([("patches", f"none: {self.no_patches}")] if self.no_patches else []),
        ]
        width = max(len(title) for title, _ in rows)
        return "\n".join(f"{title:{width}}  {text}" for title, text in rows)

    def _form(self) -> str:
        if self.exact:
            return f"exact: a row sees {_intervals(self.intervals)}, each bound in closed form"
        return (
            f"bounded: a row surely sees {_intervals(self.inner_intervals)}, nothing outside of "
            f"{_intervals(self.intervals)}, and the predicate decides in between"
        )

    def _tiles(self) -> str:
        total = self.full_tiles + self.partial_tiles + self.empty_tiles
        return f"{self.full_tiles:,} full, {self.partial_tiles:,} partial, {self.empty_tiles:,} empty, of {total:,}"

    def _pairs(self) -> str:
        visible = f"{self.visible_pairs:,} visible ({self.sparsity:.1%} sparse)"
        if self.overhead is None:
            return visible
        return f"{visible}, {self.computed_pairs:,} computed: {self.overhead:.2f} for each visible one"

    def _patterns(self) -> str:
        if self.patterns == "shared":
            return f"{self.pattern_count:,} shared by all tiles of their diagonals"
        return f"{self.pattern_count:,} stored, one for each partial tile; room for {self.pattern_capacity:,}"

    def _patches(self, visited: dict[str, float]) -> str:
        chosen = "none" if self.patches is None else _shape(self.patches)
        counts = ", ".join(f"{count:.1f} ({shape})" for shape, count in visited.items())
        return f"{chosen} on a GPU: a query tile visits {counts}"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _intervals(number: int | None) -> str:
    if number is None:
        return "as many intervals as fit its keys"
    return "no key" if number == 0 else "1 interval" if number == 1 else f"at most {number} intervals"


def _size(size: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"


def explain(mask: Mask | Compiled, queries: int = 1024, keys: int | None = None) -> Explanation:
    """Which form the compiler found for a mask, why no better one, and what it costs at `queries` x `keys` positions.

    Builds the mask's descriptor on the CPU. `print(explain(mask))` is what `compilemask explain` prints.

    Args:
        mask: the mask.
        queries, keys: numbers of positions; as many keys as queries if not given.

    Raises:
        MaskError: the mask does not fit these lengths.
        ShapeError: a length is impossible.
        DescriptorError: the descriptor would be too large.
    """
    compiled = compile(mask)
    descriptor = compiled.descriptor(queries, keys).check()
    layout = descriptor.layout
    form = normal_form(compiled.program.intervals)
    outer, inner = _arities(compiled.program.intervals)
    records = descriptor.tiles.reshape(-1, TILE_WORDS).long()
    partial, full = int(records[:, 4].sum()), int(records[:, 6].sum())
    heights = _heights(descriptor)
    choice = compiled.patches_for(layout.queries, layout.keys)
    computed = int(((records[:, 4] + records[:, 6]) * heights).sum()) * KEYS
    return Explanation(
        name=compiled.name,
        queries=layout.queries,
        keys=layout.keys,
        batch=layout.batch,
        heads=layout.heads,
        exact=form.between is None,
        intervals=outer,
        inner_intervals=inner,
        why=() if form.between is None else form.between.reasons,
        full_tiles=full,
        partial_tiles=partial,
        empty_tiles=layout.masks * layout.query_tiles * layout.key_tiles - full - partial,
        visible_pairs=int((records[:, 6] * heights).sum()) * KEYS + _visible_in_partial(descriptor, heights),
        computed_pairs=computed,
        patterns="shared" if layout.shared else "stored",
        pattern_count=_used_patterns(descriptor) if layout.shared else partial,
        pattern_capacity=layout.pattern_capacity,
        descriptor_bytes=layout.words * 4,
        patches=None if choice is None or choice.patches is None else choice.patches.query_patch,
        visited=None if choice is None or choice.no_choice else _visited(choice),
        no_patches=choice.no_choice or None if choice is not None else None,
    )


def _visited(choice: PatchChoice) -> dict[str, float]:
    counts = sorted(choice.by_patches.items(), key=lambda item: item[1])
    return {"runs": choice.by_runs, **{_shape(patches.query_patch): count for patches, count in counts}}


def _arities(func: interval.FuncOp) -> tuple[int | None, int | None]:
    """Most intervals of the outer and of the inner set, which are one if the mask is exact."""
    end = func.body.block.last_op
    assert isinstance(end, interval.ReturnOp)
    root = end.value.owner
    sets = (root.outer, root.inner) if isinstance(root, interval.BetweenOp) else (end.value, end.value)
    outer, inner = (interval.set_of(value).count for value in sets)
    return (None if outer == interval.UNBOUNDED else outer), (None if inner == interval.UNBOUNDED else inner)


def _heights(descriptor: Descriptor) -> torch.Tensor:
    """Rows that exist, of each query tile of each mask: [B * H * NQ]."""
    layout = descriptor.layout
    first = torch.arange(layout.query_tiles) * layout.rows
    return (layout.queries - first).clamp(max=layout.rows).repeat(layout.masks)


def _partial_visits(descriptor: Descriptor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each partial tile that is visited, its query tile and its pattern."""
    records = descriptor.tiles.reshape(-1, TILE_WORDS).long()
    first, count = records[:, 0], records[:, 1]
    tile = torch.repeat_interleave(torch.arange(len(records)), count)
    within = torch.arange(len(tile)) - (count.cumsum(0) - count)[tile]
    return tile, descriptor.visits[first[tile] + within, 1].long()


def _used_patterns(descriptor: Descriptor) -> int:
    return len(cast("torch.Tensor", torch.unique(_partial_visits(descriptor)[1])))


def _visible_in_partial(descriptor: Descriptor, heights: torch.Tensor) -> int:
    """Set bits of the patterns of all partial tiles, without those of rows that do not exist."""
    tile, pattern = _partial_visits(descriptor)
    if not len(tile):
        return 0
    used, where = cast("tuple[torch.Tensor, torch.Tensor]", torch.unique(pattern, return_inverse=True))
    counts = np.empty((len(used), descriptor.layout.rows), dtype=np.int64)
    for number, words in enumerate(descriptor.patterns[used].numpy()):
        counts[number] = _ONES[words.view(np.uint8)].sum(axis=1)
    below = counts.cumsum(axis=1)
    return int(below[where.numpy(), heights[tile].numpy() - 1].sum())


__all__ = ["Explanation", "explain"]
