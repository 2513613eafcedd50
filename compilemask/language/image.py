"""Windows on images: a token sees the tokens near it in two dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from xdsl.ir import SSAValue

from compilemask.dialects import mask as dialect
from compilemask.errors import MaskError
from compilemask.language.builder import Builder
from compilemask.language.extent import Extent, end_of_image
from compilemask.language.mask import Mask
from compilemask.language.values import Value, integer, scalar

if TYPE_CHECKING:
    from compilemask.language.values import Scalar

LARGEST_RADIUS = 2**14
"""Squares of distances stay below 2^30."""


@dataclass(frozen=True, eq=False)
class Grid:
    """An image of height x width tokens in raster order that starts at position `origin`."""

    height: Value
    width: Value
    origin: Value

    def emit(self, builder: Builder) -> SSAValue:
        """Writes the grid; its arguments are height, width, origin."""
        height, width = builder.scalar("height", self.height), builder.scalar("width", self.width)
        return builder.add(dialect.GridOp(builder.scalar("origin", self.origin), height, width), "image")

    def extent(self, what: str) -> Extent:
        """The end of the image."""
        values = (self.origin, self.height, self.width)
        return Extent(f"{what}: the end of the image", values, end_of_image, is_image=True)


def checked_grid(what: str, height: Scalar, width: Scalar, origin: Scalar, origin_name: str = "origin") -> Grid:
    """Raises `MaskError` unless height and width are at least 1 and the origin at least 0."""
    return Grid(
        scalar(f"{what}: height", height, 1),
        scalar(f"{what}: width", width, 1),
        scalar(f"{what}: {origin_name}", origin, 0),
    )


def checked_radius(what: str, radius: int, smallest: int) -> int:
    """The radius as it is counted from 1. Raises `MaskError` unless it is an int from `smallest`, which is 0 or 1, to
    `LARGEST_RADIUS`.
    """
    if smallest not in (0, 1) or isinstance(smallest, bool):
        raise MaskError(f"{what}: smallest must be 0 or 1, the radius that shows a token itself only, got {smallest!r}")
    return integer(f"{what}: radius", radius, smallest, LARGEST_RADIUS - 1 + smallest) + 1 - smallest


@dataclass(frozen=True, eq=False, repr=False)
class _Disk(Mask):
    grid: Grid
    radius: int
    LABEL: ClassVar[str] = "disk2d"

    def extents(self) -> tuple[Extent, ...]:
        return (self.grid.extent("disk2d"),)

    def emit(self, builder: Builder) -> SSAValue:
        return builder.add(dialect.DiskOp(self.grid.emit(builder), builder.constant(self.radius)), "near")


def disk2d(height: Scalar, width: Scalar, radius: int, origin: Scalar = 0, *, smallest: int = 1) -> Mask:
    """Image tokens see the image tokens nearer than `radius`: (qy - ky)^2 + (qx - kx)^2 < radius^2.

    The image holds positions origin <= p < origin + height * width, with y = (p - origin) // width and x = (p -
    origin) % width. A radius of 1 shows the token itself only. Positions outside the image see nothing and are seen
    by nothing.

    Args:
        height: lines, at least 1; an int or int32/int64 data of shape [], [B] or [B, H].
        width: tokens of a line, at least 1.
        radius: at least 1; an int, part of the mask's structure.
        origin: position of the first image token, at least 0.
        smallest: the radius that shows a token itself only, 1 or 0: where radii are counted from 0, the disk is
            (qy - ky)^2 + (qx - kx)^2 < (radius + 1)^2.

    Raises:
        MaskError: a value is out of its range or no integer; where it is used, if the image (its values being in host
            memory) ends behind the last query and the last key. It may end before them.
    """
    return _Disk(checked_grid("disk2d", height, width, origin), checked_radius("disk2d", radius, smallest))


@dataclass(frozen=True, eq=False, repr=False)
class _Box(Mask):
    grid: Grid
    reach_y: int
    reach_x: int
    LABEL: ClassVar[str] = "box2d"

    def extents(self) -> tuple[Extent, ...]:
        return (self.grid.extent("box2d"),)

    def emit(self, builder: Builder) -> SSAValue:
        grid = self.grid.emit(builder)
        return builder.add(dialect.BoxOp(grid, builder.constant(self.reach_y), builder.constant(self.reach_x)), "near")


def box2d(height: Scalar, width: Scalar, reach_y: int, reach_x: int | None = None, origin: Scalar = 0) -> Mask:
    """Image tokens see the image tokens at most `reach_y` lines and `reach_x` columns away: |qy - ky| <= reach_y,
    and so in x.

    A window of 2 * reach + 1 tokens on each axis, cut off at the image's edges (not moved inside it as in NATTEN).
    Positions are those of `disk2d`.

    Args:
        height: lines, at least 1; an int or int32/int64 data of shape [], [B] or [B, H].
        width: tokens of a line, at least 1.
        reach_y: lines up and down, at least 0; an int, part of the mask's structure.
        reach_x: columns left and right, at least 0; None for `reach_y`.
        origin: position of the first image token, at least 0.

    Raises:
        MaskError: a value is out of its range or no integer; where it is used, if the image (its values being in host
            memory) ends behind the last query and the last key. It may end before them.
    """
    return _Box(
        checked_grid("box2d", height, width, origin),
        integer("box2d: reach_y", reach_y, 0, LARGEST_RADIUS),
        integer("box2d: reach_x", reach_y if reach_x is None else reach_x, 0, LARGEST_RADIUS),
    )


__all__ = ["Grid", "box2d", "checked_grid", "checked_radius", "disk2d"]
