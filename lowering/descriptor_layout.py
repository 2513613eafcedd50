"""Where the sections of a descriptor lie and how large they are: from shapes and host integers alone
(docs/descriptor.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Any

from compilemask.dialects.tiling import ReserveAttr
from compilemask.errors import DescriptorError
from compilemask.lowering.patch_grid import Patches

MAGIC = 0x434D4B31
VERSION = 4
KEYS = 128
"""Keys of a tile."""
HEADER_WORDS = 32
SHARED_WORD = 15
"""The header's word that says whether patterns are shared."""
PATCHES_WORD = 16
"""The first of the header's words that say an image whose patches are the tiles."""
TILE_WORDS = 8
ORDER_WORDS = 8
PATTERN_ROW_WORDS = 4
COLUMN_ROWS = 64
"""Rows of a pattern that have columns of their own: those of a tensor core's instruction."""
ALIGNMENT = 32
"""Sections start at multiples of so many words."""
STATUS_OVERFLOW = 1
MAX_WORDS = 2**31 - 1
"""Kernels address a descriptor with 32-bit word offsets."""


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up, b > 0."""
    return -(-a // b)


def diagonal_unit(rows: int) -> int:
    """Positions by which diagonals are numbered: tiles of `rows` queries and of keys start at multiples of it."""
    return gcd(rows, KEYS)


def diagonal_steps(rows: int) -> list[int]:
    """A step for each slot of shared patterns that a bound q + c has: the slot holds diagonal (c + step) / unit."""
    unit = diagonal_unit(rows)
    return [min(unit * (i + 1) - KEYS, rows - 1) for i in range((rows + KEYS) // unit)]


def tile_cost(partial: Any, full: Any) -> Any:
    """What a query tile takes to compute, by its partial and full tiles: numbers, arrays or values of a kernel."""
    return 11 * partial + 10 * full + 15


@dataclass(frozen=True)
class Layout:
    """Sizes of one descriptor. Sections are named by their first word: `tiles`, `order`, `visits`, ...; `words` is the
    whole size.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    rows: int
    pair_capacity: int
    pattern_capacity: int
    shared: bool
    patches: Patches | None = None
    """The image whose patches are tiles, if there is one: `queries` and `keys` are lengths in patched order then."""

    def __post_init__(self) -> None:
        if self.words > MAX_WORDS:
            raise DescriptorError(
                f"a descriptor of {self.words * 4 / 2**30:.1f} GiB is too large "
                f"(limit {MAX_WORDS * 4 / 2**30:.0f} GiB): "
                f"the mask may have {self.pattern_capacity} partial tiles"
            )

    @cached_property
    def batch_shape(self) -> tuple[int, int]:
        """(B, H) of the masks."""
        return self.batch, self.heads

    @cached_property
    def lengths(self) -> tuple[int, int]:
        """How many queries and keys there are."""
        return (self.queries, self.keys) if self.patches is None else (self.patches.length, self.patches.length)

    @cached_property
    def masks(self) -> int:
        """G, the number of masks."""
        return self.batch * self.heads

    @cached_property
    def query_tiles(self) -> int:
        """NQ."""
        return ceil_div(self.queries, self.rows)

    @cached_property
    def key_tiles(self) -> int:
        """NK."""
        return ceil_div(self.keys, KEYS)

    @cached_property
    def tiles(self) -> int:
        """First word of the tile records."""
        return HEADER_WORDS

    @cached_property
    def order(self) -> int:
        """First word of the records in launch order."""
        return _align(self.tiles + self.masks * self.query_tiles * TILE_WORDS)

    @cached_property
    def visits(self) -> int:
        """First word of the pairs."""
        return _align(self.order + self.masks * self.query_tiles * ORDER_WORDS)

    @cached_property
    def sources(self) -> int:
        """First word of the patterns' sources."""
        return _align(self.visits + 2 * self.pair_capacity)

    @cached_property
    def patterns(self) -> int:
        """First word of the bit patterns."""
        return _align(self.sources + (0 if self.shared else 2 * self.pattern_capacity))

    @cached_property
    def column_groups(self) -> int:
        """How often a pattern has columns, once for each 64 of its rows."""
        return ceil_div(self.rows, COLUMN_ROWS)

    @cached_property
    def columns(self) -> int:
        """First word of the patterns' columns."""
        return _align(self.patterns + self.pattern_capacity * self.rows * PATTERN_ROW_WORDS)

    @cached_property
    def words(self) -> int:
        """Size of the descriptor in int32 words."""
        return _align(self.columns + self.pattern_capacity * self.column_groups * PATTERN_ROW_WORDS)


def _align(words: int) -> int:
    return ceil_div(words, ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Room:
    """What a mask may need, as its `tiling.func` says it.

    `parts` counts the ranges of its interval form (of both sets, if there are two) and `moving_bounds` is E of
    docs/descriptor.md (shared patterns only).
    """

    reserve: ReserveAttr
    parts: int
    shared: bool
    moving_bounds: int = 0

    def partial_tiles(
        self, query_tiles: int, key_tiles: int, pitch: int | None = None, touched: int | None = None, rows: int = 128
    ) -> int:
        """Upper bound on the partial tiles of one mask in tiles of so many `rows`, as in the tiling; `pitch` is the
        raster's line length if the reserve counts lines, `touched` what `most_partial_tiles` found if it is unknown.
        """
        everything = query_tiles * key_tiles
        if self.reserve.is_unknown:
            return everything if touched is None else min(everything, touched)
        per_query = self.reserve.per_query_tile.data
        if lines := self.reserve.lines.data:
            if pitch is None or pitch < 1:
                return everything
            # The rows of a query tile lie on ceil((R - 1) / pitch) + 1 lines; the window reaches `lines` further.
            reach = (lines + ceil_div(rows - 1, pitch) + 1) * pitch
            per_query += ceil_div(reach, KEYS) + 1
        return min(everything, per_query * query_tiles + self.reserve.per_key_tile.data * key_tiles)

    def layout(
        self,
        batch: int,
        heads: int,
        queries: int,
        keys: int,
        rows: int = 128,
        pitch: int | None = None,
        touched: int | None = None,
        patches: Patches | None = None,
    ) -> Layout:
        """The layout for `batch` x `heads` masks over `queries` x `keys` positions, or places of patched order."""
        query_tiles, key_tiles = ceil_div(queries, rows), ceil_div(keys, KEYS)
        partial = self.partial_tiles(query_tiles, key_tiles, pitch, touched, rows)
        # A run starts behind a partial tile, or where a part of the set starts at a tile boundary in every row.
        starts = self.parts + self.reserve.lines.data + 2
        runs = min(partial + starts * query_tiles, query_tiles * ceil_div(key_tiles, 2))
        patterns = 2 * len(diagonal_steps(rows)) * self.moving_bounds + 1 if self.shared else partial
        masks = batch * heads
        room = masks * (partial + runs), masks * patterns
        return Layout(batch, heads, queries, keys, rows, *room, self.shared, patches)
