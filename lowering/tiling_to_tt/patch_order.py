"""Patched order (`lowering/patch_grid.py`) in a kernel: where a patch lies, and which position stands in which place.

The shape of a patch is known when the kernel is built; the image, where it begins and how many positions there are, are
arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from operator import mul

from compilemask.lowering.tiling_to_tt.builder import Arg, KernelBuilder, Value, i32

AXES = ("frames", "height", "width")
"""Of a video; an image has the last two."""


def geometry_arguments(patch: Sequence[int] | None) -> list[Arg]:
    """What a kernel in patched order must know of the image, all i32; nothing if there are no patches."""
    if patch is None:
        return []
    return [Arg(name, i32) for name in ("origin", "length", *AXES[-len(patch) :])]


class PatchOrder:
    """Patched order in tiles of `prod(patch)` positions, of the image in the kernel's arguments; numbers are i32."""

    def __init__(self, kb: KernelBuilder, patch: Sequence[int]) -> None:
        self.kb, self.patch, self.tile = kb, tuple(patch), prod(patch)
        self.origin, self.length = kb.arg("origin"), kb.arg("length")
        self.sizes = [kb.arg(name) for name in AXES[-len(patch) :]]
        self.counts = [kb.ceil_div(size, step) for size, step in zip(self.sizes, patch, strict=True)]
        self.before_tiles = kb.ceil_div(self.origin, self.tile)
        self.first_behind = self.before_tiles + reduce(mul, self.counts)
        self.end = self.origin + reduce(mul, self.sizes)

    def corner(self, tile: Value) -> list[Value]:
        """Where in the image the patch of a tile begins, along each axis."""
        kb, rest = self.kb, tile - self.before_tiles
        corner: list[Value] = []
        for count, step in zip(reversed(self.counts[1:]), reversed(self.patch[1:]), strict=True):
            corner.insert(0, kb.trunc_rem(rest, count) * step)
            rest = kb.trunc_div(rest, count)
        return [rest * self.patch[0], *corner]

    def row_behind(self, tile: Value) -> Value:
        """The first position of a tile behind the image."""
        return self.end + (tile - self.first_behind) * self.tile

    def existing(self, tile: Value) -> Value:
        """How many positions a tile has."""
        kb = self.kb
        is_before, is_behind = tile < self.before_tiles, tile >= self.first_behind
        sides = zip(self.patch, self.sizes, self.corner(tile), strict=True)
        in_image = reduce(mul, [kb.minimum(size - first, step) for step, size, first in sides])
        left = kb.where(is_before, self.origin - tile * self.tile, self.length - self.row_behind(tile))
        return kb.where(is_before | is_behind, kb.minimum(left, self.tile), in_image)

    def positions(self, tile: Value, inside: Value) -> tuple[Value, Value]:
        """Which positions stand in places `inside` a tile, and whether there are any (i1): both of `inside`'s shape."""
        kb = self.kb
        is_before, is_behind = tile < self.before_tiles, tile >= self.first_behind
        # A place of a tile before or behind the image is as far from its first one as the position is.
        row = kb.where(is_before, tile * self.tile, self.row_behind(tile)) + inside
        in_image, exists = self._in_image(self.corner(tile), inside)
        outside = is_before | is_behind
        limit = kb.where(is_before, self.origin, self.length)
        return kb.where(outside, row, in_image), (outside & (row < limit)) | (~outside & exists)

    def positions_from(self, first: Value, count: int) -> tuple[Value, Value]:
        """The same of `count` consecutive places of one tile: [count]."""
        kb = self.kb
        inside = kb.trunc_rem(first, self.tile) + kb.arange(0, count)
        return self.positions(kb.trunc_div(first, self.tile), inside)

    def _in_image(self, corner: Sequence[Value], inside: Value) -> tuple[Value, Value]:
        """The same for the patch that begins at a corner of the image."""
        kb = self.kb
        at = [
            first + kb.trunc_rem(kb.trunc_div(inside, prod(self.patch[axis + 1 :])), self.patch[axis])
            for axis, first in enumerate(corner)
        ]
        position, exists = at[0], at[0] < self.sizes[0]
        for coordinate, size in zip(at[1:], self.sizes[1:], strict=True):
            position, exists = position * size + coordinate, exists & (coordinate < size)
        return self.origin + position, exists
