"""Sliding tile attention (STA): windows of whole tiles on an image or video in tile-major order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xdsl.dialects.arith import AddiOp
from xdsl.ir import SSAValue

from compilemask.dialects import mask as dialect
from compilemask.language.builder import Builder
from compilemask.language.extent import Extent
from compilemask.language.grid_window import Clamped, GridWindow, check_fits, per_axis
from compilemask.language.mask import Mask
from compilemask.language.predicate import Condition, Integer
from compilemask.language.traced import chosen, emit_where
from compilemask.language.values import LIMIT, Value, integer, scalar

if TYPE_CHECKING:
    from compilemask.language.values import Scalar


@dataclass(frozen=True, eq=False, repr=False)
class _SlidingTile(GridWindow):
    text: Value = field(kw_only=True)

    def extents(self) -> tuple[Extent, ...]:
        (image,) = super().extents()
        return (Extent(f"{self.label}: the end of the text", (*image.values, self.text), self.end_of_text),)

    def end_of_text(self, *values: Any) -> Any:
        """The position behind the last token."""
        *image, text = values
        return self.end_of_image(*image) + text

    def emit(self, builder: Builder) -> SSAValue:
        data = self.data(builder)
        begin = self.end(builder, data)
        end = builder.add(AddiOp(begin, builder.scalar("text", self.text)), "text_end")
        text = emit_where(builder, self._text, {"begin": begin, "end": end})
        return builder.add(dialect.UnionOp(self.window(builder, data), text), "visible")

    def _text(self, q: Integer, kv: Integer, begin: Integer, end: Integer) -> Condition:
        """Text rows see everything from the first key on, others from the begin of the text on."""
        return (q < end) & (kv < end) & (kv >= chosen(q < begin, begin, 0))


def _sliding_tile(what: str, sizes: tuple[Value, ...], tile: int, window: int | Sequence[int], text: Scalar) -> Mask:
    reach = per_axis(f"{what}: window", window, len(sizes))
    check_fits(what, reach, sizes)
    axes = tuple(Clamped(w) for w in reach)
    unit = integer(f"{what}: tile", tile, 1, LIMIT)
    origin = scalar(f"{what}: origin", 0)
    if isinstance(text, int) and text == 0:
        return GridWindow(what, sizes, origin, axes, unit)
    return _SlidingTile(what, sizes, origin, axes, unit, text=scalar(f"{what}: text", text, 0))


def sliding_tile2d(rows: Scalar, columns: Scalar, tile: int, window: int | tuple[int, int], text: Scalar = 0) -> Mask:
    """Each tile of an image sees the `window` rows and columns of tiles around it, moved inside at the edges as in
    `natten2d`. Text behind the image sees and is seen by everything.

    The sequence is in tile-major order: the `tile` tokens of a tile stand together, tiles in raster order. An interval
    per row of tiles in the window, and one for the text.

    Source: sliding tile attention (Zhang et al. 2025, arXiv:2502.04507).

    Args:
        rows, columns: tiles of the image, at least as many as in the window; ints or int32/int64 data of shape [], [B]
            or [B, H].
        tile: tokens of a tile, at least 1; an int, part of the mask's structure.
        window: tiles along each axis, at least 1; one int or one for each axis, part of the mask's structure.
        text: tokens of text behind the image, at least 0. Positions behind it see nothing and are seen by nothing.

    Raises:
        MaskError: a value is out of its range or no integer, or the window does not fit the image; where it is used, if
            image and text (in host memory) end behind the last query and the last key.
    """
    sizes = scalar("sliding_tile2d: rows", rows, 1), scalar("sliding_tile2d: columns", columns, 1)
    return _sliding_tile("sliding_tile2d", sizes, tile, window, text)


def sliding_tile3d(
    frames: Scalar, rows: Scalar, columns: Scalar, tile: int, window: int | tuple[int, int, int], text: Scalar = 0
) -> Mask:
    """`sliding_tile2d` for a video: tiles of frames x rows x columns tokens, and a window along each of the three axes.

    An interval per row of tiles in the window, kt * kh in all, and one for the text.

    Args:
        frames, rows, columns: tiles of the video along each axis, at least as many as in the window.
        tile: tokens of a tile, at least 1; an int, part of the mask's structure (6 * 8 * 8 in HunyuanVideo).
        window: tiles along each axis; one int or one for each axis, part of the mask's structure.
        text: tokens of text behind the video, at least 0.

    Raises:
        MaskError: as `sliding_tile2d`.
    """
    given = zip(("frames", "rows", "columns"), (frames, rows, columns), strict=True)
    sizes = tuple(scalar(f"sliding_tile3d: {name}", value, 1) for name, value in given)
    return _sliding_tile("sliding_tile3d", sizes, tile, window, text)


__all__ = ["sliding_tile2d", "sliding_tile3d"]
