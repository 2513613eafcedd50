"""CLEAR (Liu et al. 2024, arXiv:2412.16112): image tokens see the text and a disk around themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from xdsl.ir import SSAValue

from compilemask.dialects import mask as dialect
from compilemask.language.builder import Builder
from compilemask.language.extent import Extent
from compilemask.language.image import Grid, checked_grid, checked_radius
from compilemask.language.mask import Mask

if TYPE_CHECKING:
    from compilemask.language.values import Scalar


@dataclass(frozen=True, eq=False, repr=False)
class _Clear(Mask):
    grid: Grid
    radius: int
    LABEL: ClassVar[str] = "clear"

    def extents(self) -> tuple[Extent, ...]:
        return (self.grid.extent("clear"),)

    def emit(self, builder: Builder) -> SSAValue:
        height, width = builder.scalar("height", self.grid.height), builder.scalar("width", self.grid.width)
        text = builder.scalar("text", self.grid.origin)
        zero, radius = builder.constant(0), builder.constant(self.radius)
        rows = builder.add(dialect.RowsOp(zero, text), "rows")
        columns = builder.add(dialect.ColsOp(zero, text), "columns")
        words = builder.add(dialect.UnionOp(rows, columns), "words")
        image = builder.add(dialect.GridOp(text, height, width), "image")
        near = builder.add(dialect.DiskOp(image, radius), "near")
        return builder.add(dialect.UnionOp(words, near), "visible")


def clear(height: Scalar, width: Scalar, radius: int, text: Scalar = 0, *, smallest: int = 1) -> Mask:
    """`text` tokens, then height x width image tokens: text sees and is seen by everything, the image sees a disk
    around each token.

    q < text or kv < text or (qy - ky)^2 + (qx - kx)^2 < radius^2, with y = (p - text) // width and x = (p - text) %
    width. Positions behind the image see the text only.

    Args:
        height: lines of the image, at least 1; an int or int32/int64 data of shape [], [B] or [B, H].
        width: tokens of a line, at least 1.
        radius: at least 1 (1: the token itself only); an int, part of the mask's structure. The paper uses 8, 16 and
            32.
        text: number of text tokens, at least 0.
        smallest: the radius that shows a token itself only, 1 or 0 (see `disk2d`).

    Raises:
        MaskError: a value is out of its range or no integer; where it is used, if the image (its values being in host
            memory) ends behind the last query and the last key. It may end before them.
    """
    return _Clear(checked_grid("clear", height, width, text, "text"), checked_radius("clear", radius, smallest))


__all__ = ["clear"]
