"""An image in a sequence, cut into patches that are the tiles: which position lies where in patched order.

In raster order a sequence holds tokens, then an image (or video) line by line, then tokens. In *patched order* each
part begins a tile of its own: the tokens before the image, then its patches, then the tokens behind. So a tile of an
image is a patch, as compact as its neighbourhood, and all that is said of tiles holds of it too.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias, cast

from compilemask.errors import DTypeError, ShapeError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Image: TypeAlias = tuple[int, tuple[int, ...]]
"""Origin and sizes."""
MISSING = -1
"""What stands in patched order where there is no position."""
PATCH_WORDS = 11
"""Numbers that say an image and its patches."""


@dataclass(frozen=True)
class PatchGrid:
    """Patched order of `length` positions with an image of `sizes` from `origin` on, in patches of shape `patch`.

    `sizes` is (height, width) or (frames, height, width), and `patch` as long; a tile has prod(patch) positions. The
    last patch of each axis may be ragged: what lies outside the image is missing, and so are the positions between the
    last token before the image and the end of its tile. Raises ShapeError if the image does not fit.
    """

    origin: int
    sizes: tuple[int, ...]
    patch: tuple[int, ...]
    length: int

    def __post_init__(self) -> None:
        if len(self.sizes) not in (2, 3) or len(self.patch) != len(self.sizes):
            raise ShapeError(f"sizes {self.sizes} in patches {self.patch}: expected two or three axes in both")
        if min(*self.sizes, *self.patch) < 1 or self.origin < 0:
            raise ShapeError(f"an image of {self.sizes} at {self.origin} in patches {self.patch}: sizes are at least 1")
        if self.end > self.length:
            raise ShapeError(f"an image of {self.sizes} at {self.origin} ends behind the last of {self.length} tokens")

    @property
    def geometry(self) -> tuple[int, ...]:
        """What a kernel must know of the image beside the patch: see `tiling_to_tt/patch_order.py`."""
        return (self.origin, self.length, *self.sizes)

    @cached_property
    def tile(self) -> int:
        """Positions of a tile."""
        return prod(self.patch)

    @cached_property
    def before_tiles(self) -> int:
        """Tiles before the image."""
        return -(-self.origin // self.tile)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Patches along each axis."""
        return tuple(-(-size // step) for size, step in zip(self.sizes, self.patch, strict=True))

    @cached_property
    def patches(self) -> int:
        """Tiles of the image."""
        return prod(self.counts)

    @cached_property
    def end(self) -> int:
        """The position behind the image, in raster order."""
        return self.origin + prod(self.sizes)

    @cached_property
    def behind(self) -> int:
        """Where the tokens behind the image begin, in patched order."""
        return (self.before_tiles + self.patches) * self.tile

    @cached_property
    def total(self) -> int:
        """Length in patched order, missing positions included."""
        return self.behind + self.length - self.end

    @cached_property
    def tiles(self) -> int:
        """Number of tiles."""
        return -(-self.total // self.tile)

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """The position at each place of patched order, MISSING where there is none: [total]."""
        import numpy as np

        before = np.arange(self.before_tiles * self.tile)
        image = np.full([n * step for n, step in zip(self.counts, self.patch, strict=True)], MISSING)
        image[tuple(slice(size) for size in self.sizes)] = np.arange(self.origin, self.end).reshape(self.sizes)
        # [patches, step, patches, step, ...] -> [patches..., steps...]
        split = image.reshape([n for pair in zip(self.counts, self.patch, strict=True) for n in pair])
        axes = [*range(0, split.ndim, 2), *range(1, split.ndim, 2)]
        patches = split.transpose(axes).reshape(-1)
        return np.concatenate(
            [np.where(before < self.origin, before, MISSING), patches, np.arange(self.end, self.length)]
        )

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """Where each position stands in patched order: [length]."""
        import numpy as np

        places = np.empty(self.length, dtype=np.int64)
        exists = self.positions >= 0
        places[self.positions[exists]] = np.nonzero(exists)[0]
        return places


@dataclass(frozen=True)
class Patches:
    """The image of a descriptor whose tiles are patches: the shapes of query and of key patches may differ.

    `sizes`, in tokens, is (height, width) or (frames, height, width), from position `origin` of `length` on. What a
    mask speaks of may be higher, or have more frames: what lies behind the image is in tiles of consecutive tokens.

    Raises DTypeError for what is no integer or sequence of integers, ShapeError if the image does not fit.
    """

    origin: int
    sizes: tuple[int, ...]
    length: int
    query_patch: tuple[int, ...]
    key_patch: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("origin", "length"):
            object.__setattr__(self, name, _integer(name, getattr(self, name)))
        for name in ("sizes", "query_patch", "key_patch"):
            object.__setattr__(self, name, _integers(f"{name} of patches", getattr(self, name)))
        _ = self.queries, self.keys

    @cached_property
    def queries(self) -> PatchGrid:
        """Patched order of queries."""
        return PatchGrid(self.origin, self.sizes, self.query_patch, self.length)

    @cached_property
    def keys(self) -> PatchGrid:
        """Patched order of keys."""
        return PatchGrid(self.origin, self.sizes, self.key_patch, self.length)

    @property
    def words(self) -> tuple[int, ...]:
        """As a descriptor's header has them (docs/descriptor.md): `PATCH_WORDS` numbers."""
        triples = [(0, *x) if len(x) == 2 else x for x in (self.sizes, self.query_patch, self.key_patch)]
        return (self.origin, *triples[0], self.length, *triples[1], *triples[2])

    @classmethod
    def of_words(cls, words: Sequence[int]) -> Patches | None:
        """The patches with these `words`; None if all are 0. Raises ShapeError if they say no patches."""
        if not any(words):
            return None
        triples = [tuple(words[i : i + 3]) for i in (1, 5, 8)]
        axes = slice(1 if triples[0][0] == 0 else 0, None)
        sizes, queries, keys = (x[axes] for x in triples)
        return cls(words[0], sizes, words[4], queries, keys)


def _integers(name: str, given: object) -> tuple[int, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise DTypeError(f"{name} is a {type(given).__name__}, expected a tuple of integers")
    return tuple(_integer(name, item) for item in cast("Sequence[object]", given))


def _integer(name: str, given: object) -> int:
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise DTypeError(f"{name} is a {type(given).__name__}, expected an integer")
    try:
        return operator.index(cast("SupportsIndex", given))
    except TypeError:  # tensors that hold no integer, or several
        raise DTypeError(f"{name} is {given!r}, expected an integer") from None


def patch_shapes(tile: int, axes: int, finest: int = 8) -> Iterator[tuple[int, ...]]:
    """Shapes of `tile` positions along 2 or 3 axes whose lines hold `finest` tokens or more."""
    if axes == 1:
        if tile >= finest:
            yield (tile,)
        return
    for step in range(1, tile + 1):
        if tile % step == 0:
            for rest in patch_shapes(tile // step, axes - 1, finest):
                yield (step, *rest)
