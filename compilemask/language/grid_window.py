"""Windows on rasters of two or three dimensions: what natten, sliding_tile and sam_window have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

from xdsl.dialects.arith import AddiOp, MuliOp
from xdsl.ir import SSAValue

from compilemask.dialects import mask as dialect
from compilemask.errors import MaskError
from compilemask.language.builder import Builder
from compilemask.language.extent import Extent
from compilemask.language.mask import Mask
from compilemask.language.predicate import Condition, Integer
from compilemask.language.traced import Line, chosen, emit_lines, emit_where, larger, smaller
from compilemask.language.values import Value, integer

AXES = ("frames", "height", "width")


@dataclass(frozen=True, eq=False)
class Clamped:
    """`window` positions around a position, moved inside at the ends; with dilation, of those with its remainder."""

    window: int
    dilation: int = 1

    def range(self, position: Integer, extent: Integer) -> tuple[Integer, Integer]:
        """First position of the window, and the one behind the last."""
        window, dilation = self.window, self.dilation
        if dilation == 1:
            first = larger(smaller(position - window // 2, extent - window), 0)
            return first, smaller(first + window, extent)
        rest = position % dilation
        count = (extent - rest + (dilation - 1)) // dilation
        first = larger(smaller(position // dilation - window // 2, count - window), 0) * dilation + rest
        return first, smaller(first + ((window - 1) * dilation + 1), extent)

    def seen_from(self, position: Integer, extent: Integer) -> tuple[Integer, Integer]:
        """The first position in whose window a position lies, and the one behind the last such one."""
        dilation = self.dilation
        if dilation == 1:
            return self._seen_from(position, extent)
        rest = position % dilation
        first, last = self._seen_from(position // dilation, (extent - rest + (dilation - 1)) // dilation)
        return first * dilation + rest, last * dilation + (rest - (dilation - 1))

    def _seen_from(self, position: Integer, extent: Integer) -> tuple[Integer, Integer]:
        """The same where every position counts: windows at the ends are those of several positions."""
        window, before = self.window, self.window // 2
        first = chosen(position >= window, position - (window - before - 1), 0)
        return first, chosen(position >= extent - window, extent, smaller(position + (before + 1), extent))

    @property
    def most_seen_from(self) -> int:
        """Positions from the first to the last of `seen_from`: a key in the first and in the last window is in all."""
        return (2 * self.window - 2) * self.dilation + 1


@dataclass(frozen=True, eq=False)
class Cut:
    """The axis is cut into windows of `size` positions, of which the last may be shorter."""

    size: int

    def range(self, position: Integer, extent: Integer) -> tuple[Integer, Integer]:
        """First position of the window, and the one behind the last."""
        first = position // self.size * self.size
        return first, smaller(first + self.size, extent)

    seen_from = range

    @property
    def most_seen_from(self) -> int:
        """Positions from the first to the last of `seen_from`."""
        return self.size


Axis: TypeAlias = Clamped | Cut
Range: TypeAlias = Callable[[Integer, Integer], tuple[Integer, Integer]]
"""(position, extent of the axis) -> the first of some positions, and the one behind the last."""


@dataclass(frozen=True, eq=False, repr=False)
class GridWindow(Mask):
    """A window along each axis of a raster, whose points are `unit` tokens each, one behind the other."""

    label: str
    sizes: tuple[Value, ...]
    """Frames (in three dimensions), height and width."""
    origin: Value
    axes: tuple[Axis, ...]
    unit: int = 1

    @property
    def name(self) -> str:
        return self.label

    def extents(self) -> tuple[Extent, ...]:
        what, values = f"{self.label}: the end of the image", (self.origin, *self.sizes)
        return (Extent(what, values, self.end_of_image, is_image=self.unit == 1),)

    def end_of_image(self, origin: Any, *sizes: Any) -> Any:
        """The position behind the last token of the image."""
        return origin + reduce(lambda a, b: a * b, sizes) * self.unit

    def emit(self, builder: Builder) -> SSAValue:
        return self.window(builder, self.data(builder))

    def data(self, builder: Builder) -> dict[str, SSAValue]:
        """The sizes and the origin, as values of the mask's function."""
        names = AXES[-len(self.sizes) :]
        sizes = {name: builder.scalar(name, size) for name, size in zip(names, self.sizes, strict=True)}
        return {**sizes, "origin": builder.scalar("origin", self.origin)}

    def window(self, builder: Builder, data: dict[str, SSAValue]) -> SSAValue:
        """The pairs of the raster that see each other."""
        pitch = data["width"]
        if self.unit != 1:
            pitch = builder.add(MuliOp(pitch, builder.constant(self.unit)), "pitch")
        raster = data["origin"], pitch
        if len(self.sizes) == 2:
            most = _longest(self.axes[0]), self.axes[0].most_seen_from
            lines = emit_lines(builder, raster, self._line2, data, most[0], self._column2, most[1])
        else:
            lines = emit_lines(builder, raster, self._line3, data, columns=self._column3)
        across = self.axes[-1]
        if isinstance(across, Cut) or across.dilation == 1:
            return lines
        columns = emit_where(builder, self._same_rest, {name: data[name] for name in ("width", "origin")})
        return builder.add(dialect.IntersectOp(lines, columns), "visible")

    def end(self, builder: Builder, data: dict[str, SSAValue]) -> SSAValue:
        """The position behind the raster."""
        sizes = [data[name] for name in AXES[-len(self.sizes) :]]
        points = reduce(lambda a, b: builder.add(MuliOp(a, b)), sizes)
        tokens = points if self.unit == 1 else builder.add(MuliOp(points, builder.constant(self.unit)))
        return builder.add(AddiOp(data["origin"], tokens), "end")

    # ---- the traced bodies ----

    def _line2(self, q: Integer, line: Integer, height: Integer, width: Integer, origin: Integer) -> Line:
        return self._image_line(q, line, (height, width), origin, [axis.range for axis in self.axes])

    def _column2(self, kv: Integer, line: Integer, height: Integer, width: Integer, origin: Integer) -> Line:
        return self._image_line(kv, line, (height, width), origin, [axis.seen_from for axis in self.axes])

    def _line3(
        self, q: Integer, line: Integer, frames: Integer, height: Integer, width: Integer, origin: Integer
    ) -> Line:
        return self._video_line(q, line, (frames, height, width), origin, [axis.range for axis in self.axes])

    def _column3(
        self, kv: Integer, line: Integer, frames: Integer, height: Integer, width: Integer, origin: Integer
    ) -> Line:
        return self._video_line(kv, line, (frames, height, width), origin, [axis.seen_from for axis in self.axes])

    def _image_line(
        self, position: Integer, line: Integer, sizes: tuple[Integer, Integer], origin: Integer, ranges: Sequence[Range]
    ) -> Line:
        height, width = sizes
        point = self._point(position, origin)
        y = point // width
        first, last = ranges[0](y, height)
        inside = (position >= origin) & (position < origin + self._tokens(height * width))
        lo, hi = self._columns(point - y * width, line, width, origin, ranges[1])
        hidden = _off_step(self.axes[0], line, y)
        hi = hi if hidden is None else chosen(hidden, lo, hi)
        return Line(lo, hi, first, chosen(inside, last, first))

    def _video_line(
        self,
        position: Integer,
        line: Integer,
        sizes: tuple[Integer, Integer, Integer],
        origin: Integer,
        ranges: Sequence[Range],
    ) -> Line:
        """Line t * height + y; those of other y between the first and the last are empty."""
        frames, height, width = sizes
        point = self._point(position, origin)
        row = point // width
        t = row // height
        y = row - t * height
        (first_t, last_t), (first_y, last_y) = ranges[0](t, frames), ranges[1](y, height)
        inside = (position >= origin) & (position < origin + self._tokens(frames * height * width))
        lo, hi = self._columns(point - row * width, line, width, origin, ranges[2])
        line_t = line // height
        line_y = line - line_t * height
        hidden = (line_y < first_y) | (line_y >= last_y)
        for step in (_off_step(self.axes[0], line_t, t), _off_step(self.axes[1], line_y, y)):
            hidden = hidden if step is None else hidden | step
        first, last = first_t * height + first_y, (last_t - 1) * height + last_y
        return Line(lo, chosen(hidden, lo, hi), first, chosen(inside, last, first))

    def _columns(
        self, x: Integer, line: Integer, width: Integer, origin: Integer, range_of: Range
    ) -> tuple[Integer, Integer]:
        first, last = range_of(x, width)
        start = origin + self._tokens(line * width)
        return start + self._tokens(first), start + self._tokens(last)

    def _point(self, q: Integer, origin: Integer) -> Integer:
        """The point of the raster that a token is of."""
        return q - origin if self.unit == 1 else (q - origin) // self.unit

    def _tokens(self, points: Integer) -> Integer:
        """How many tokens so many points are."""
        return points if self.unit == 1 else points * self.unit

    def _same_rest(self, q: Integer, kv: Integer, width: Integer, origin: Integer) -> Condition:
        """Whether two columns lie a multiple of the dilation apart."""
        across = self.axes[-1]
        assert isinstance(across, Clamped)
        columns = [(position - origin) % width for position in (q, kv)]
        return (columns[0] - columns[1]) % across.dilation == 0


def _longest(axis: Axis) -> int:
    """The number of positions that a window reaches over."""
    return axis.size if isinstance(axis, Cut) else (axis.window - 1) * axis.dilation + 1


def _off_step(axis: Axis, position: Integer, own: Integer) -> Condition | None:
    """Whether a position between the first and the last is left out by a dilated window; None if none is."""
    if isinstance(axis, Cut) or axis.dilation == 1:
        return None
    return (position - own) % axis.dilation != 0


def per_axis(what: str, value: int | Sequence[int], axes: int, minimum: int = 1) -> tuple[int, ...]:
    """One int for each axis; a single one serves all. Raises `MaskError` for other values."""
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == axes:
        named = zip(AXES[-axes:], value, strict=True)
        return tuple(integer(f"{what} of {name}", item, minimum) for name, item in named)
    if isinstance(value, Sequence):
        raise MaskError(f"{what} must be an int, or {axes} ints for {', '.join(AXES[-axes:])}, got {value!r}")
    return (integer(what, value, minimum),) * axes


def check_fits(what: str, window: Sequence[int], sizes: Sequence[Value]) -> None:
    """Raises `MaskError` unless windows are at most as large as the raster, as far as its sizes are in host memory."""
    for name, reach, size in zip(AXES[-len(sizes) :], window, sizes, strict=True):
        known = size.least_and_greatest()
        if known is not None and reach > known[0]:
            raise MaskError(f"{what}: a window of {reach} does not fit {name} {known[0]}")


__all__ = ["AXES", "Axis", "Clamped", "Cut", "GridWindow", "check_fits", "per_axis"]
