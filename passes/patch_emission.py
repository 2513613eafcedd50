"""Where positions lie when the tiles of an image are patches (lowering/patch_grid.py), as arithmetic on i32 values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from xdsl.builder import Builder
from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import IntegerAttr, i32
from xdsl.ir import Operation, SSAValue

from compilemask.dialects import arith

Integer = SSAValue | int


@dataclass
class Arithmetic:
    """Emits operations where `builder` stands. Operands are i32 values or integers."""

    builder: Builder

    def emit(self, op: Operation) -> SSAValue:
        """The result of an operation."""
        return self.builder.insert(op).results[0]

    def value(self, x: Integer) -> SSAValue:
        """An integer as a constant."""
        return self.emit(xdsl_arith.ConstantOp(IntegerAttr(x, i32))) if isinstance(x, int) else x

    def add(self, a: Integer, b: Integer) -> SSAValue:
        """a + b."""
        return self.emit(xdsl_arith.AddiOp(self.value(a), self.value(b)))

    def sub(self, a: Integer, b: Integer) -> SSAValue:
        """a - b."""
        return self.emit(xdsl_arith.SubiOp(self.value(a), self.value(b)))

    def mul(self, a: Integer, b: Integer) -> SSAValue:
        """a * b."""
        return self.emit(xdsl_arith.MuliOp(self.value(a), self.value(b)))

    def div(self, a: Integer, b: Integer) -> SSAValue:
        """a / b, neither of which is negative."""
        return self.emit(xdsl_arith.DivSIOp(self.value(a), self.value(b)))

    def ceil_div(self, a: Integer, b: int) -> SSAValue:
        """a / b rounded up."""
        return self.div(self.add(a, b - 1), b)

    def split(self, a: Integer, b: Integer) -> tuple[SSAValue, SSAValue]:
        """Quotient and remainder of numbers that are not negative."""
        quotient = self.div(a, b)
        return quotient, self.sub(a, self.mul(quotient, b))

    def least(self, a: Integer, b: Integer) -> SSAValue:
        """The smaller one."""
        return self.emit(xdsl_arith.MinSIOp(self.value(a), self.value(b)))

    def greatest(self, a: Integer, b: Integer) -> SSAValue:
        """The larger one."""
        return self.emit(xdsl_arith.MaxSIOp(self.value(a), self.value(b)))

    def less(self, a: Integer, b: Integer) -> SSAValue:
        """Whether a < b."""
        return self.emit(arith.CmpiOp(self.value(a), self.value(b), "slt"))

    def both(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """Whether both conditions hold."""
        return self.emit(xdsl_arith.AndIOp(a, b))

    def select(self, condition: SSAValue, a: Integer, b: Integer) -> SSAValue:
        """a where the condition holds, else b."""
        return self.emit(arith.SelectOp(condition, self.value(a), self.value(b)))


@dataclass(frozen=True)
class Image:
    """The values that say an image and its patches: what `PatchGrid` has as numbers. Values that others depend on are
    emitted when they are first asked for: ask at the top of a function.
    """

    arithmetic: Arithmetic
    origin: SSAValue
    sizes: tuple[SSAValue, ...]
    """(height, width) or (frames, height, width)."""
    length: SSAValue
    patch: tuple[int, ...]

    @property
    def tile(self) -> int:
        """Positions of a tile."""
        return prod(self.patch)

    @cached_property
    def counts(self) -> tuple[SSAValue, ...]:
        """Patches along each axis."""
        return tuple(self.arithmetic.ceil_div(size, step) for size, step in zip(self.sizes, self.patch, strict=True))

    @cached_property
    def base(self) -> SSAValue:
        """Where the patches begin, in patched order."""
        ar = self.arithmetic
        return ar.mul(ar.ceil_div(self.origin, self.tile), self.tile)

    @cached_property
    def span(self) -> SSAValue:
        """Positions of all patches, missing ones included."""
        return self._product([*self.counts, self.arithmetic.value(self.tile)])

    @cached_property
    def lines(self) -> SSAValue:
        """Lines of the image."""
        return self._product(self.sizes[:-1])

    @cached_property
    def end(self) -> SSAValue:
        """The position behind the image."""
        ar = self.arithmetic
        return ar.add(self.origin, ar.mul(self.lines, self.sizes[-1]))

    @cached_property
    def behind(self) -> SSAValue:
        """Where the tokens behind the image begin, in patched order, less the position of the first."""
        ar = self.arithmetic
        return ar.sub(ar.add(self.base, self.span), self.end)

    def prepare(self) -> None:
        """Emit all of the above."""
        _ = self.counts, self.base, self.span, self.lines, self.end, self.behind

    def _product(self, factors: Sequence[SSAValue]) -> SSAValue:
        first, *others = factors
        for factor in others:
            first = self.arithmetic.mul(first, factor)
        return first

    def at(self, ar: Arithmetic) -> Image:
        """The same values for emissions elsewhere, after `prepare`."""
        image = Image(ar, self.origin, self.sizes, self.length, self.patch)
        known = ("counts", "base", "span", "lines", "end", "behind")
        image.__dict__.update({name: self.__dict__[name] for name in known})
        return image

    def position(self, place: SSAValue) -> SSAValue:
        """The position at a place of patched order; where it is missing, that of the nearest token of the tile."""
        ar = self.arithmetic
        inside = ar.sub(place, self.base)
        patch, within = ar.split(ar.greatest(inside, 0), self.tile)
        at = self._coordinates(patch, within, self.patch)
        nearest = [ar.least(x, ar.sub(size, 1)) for x, size in zip(at, self.sizes, strict=True)]
        pixel = ar.add(self.origin, self._raster(nearest))
        behind = ar.sub(place, self.behind)
        of_image = ar.select(ar.less(inside, self.span), pixel, behind)
        return ar.select(ar.less(inside, 0), ar.least(place, ar.sub(self.origin, 1)), of_image)

    def _coordinates(self, patch: SSAValue, within: SSAValue, steps: Sequence[int]) -> list[SSAValue]:
        """Coordinates in the image of what is `within` a patch."""
        ar = self.arithmetic
        found: list[SSAValue] = []
        for step, count in reversed(list(zip(steps[1:], self.counts[1:], strict=True))):
            patch, number = ar.split(patch, count)
            x = ar.mul(number, step)
            if step > 1:
                within, rest = ar.split(within, step)
                x = ar.add(x, rest)
            found.insert(0, x)
        return [ar.add(ar.mul(patch, steps[0]), within), *found]

    def _raster(self, at: Sequence[SSAValue]) -> SSAValue:
        """The number of a pixel in raster order."""
        number, *others = at
        for x, size in zip(others, self.sizes[1:], strict=True):
            number = self.arithmetic.add(self.arithmetic.mul(number, size), x)
        return number

    @property
    def patch_lines(self) -> int:
        """Lines of a patch."""
        return prod(self.patch[:-1])

    def segment(self, number: SSAValue) -> Segment:
        """Line `number` of all patches, as they follow each other in patched order."""
        ar = self.arithmetic
        patch, within = ar.split(number, self.patch_lines)
        *across, column = self._coordinates(patch, within, (*self.patch[:-1], 1))
        first = ar.mul(column, self.patch[-1])
        exists = ar.less(across[-1], self.sizes[-2])
        if len(across) == 2:
            exists = ar.both(exists, ar.less(across[0], self.sizes[0]))
        line = across[0] if len(across) == 1 else ar.add(ar.mul(across[0], self.sizes[1]), across[1])
        begin = ar.add(ar.add(self.origin, ar.mul(line, self.sizes[-1])), first)
        end = ar.add(begin, ar.least(ar.sub(self.sizes[-1], first), self.patch[-1]))
        place = ar.add(self.base, ar.mul(number, self.patch[-1]))
        return Segment(line, begin, end, ar.sub(place, begin), exists)

    def numbers_of(self, first: SSAValue, last: SSAValue) -> tuple[SSAValue, SSAValue]:
        """Between which numbers the lines of patches lie that hold something of lines first <= line < last of the
        image; (0, 0) if there are no such lines.
        """
        ar = self.arithmetic
        first, last = ar.greatest(first, 0), ar.least(last, self.lines)
        some = ar.less(first, last)
        # Lines of one row of patches: of a video, all patches of the same frames.
        plane = 1 if len(self.sizes) == 2 else self.sizes[1]
        of_row = self._product([*self.counts[1:], ar.value(self.patch_lines)])
        begin = ar.div(ar.div(ar.select(some, first, 0), plane), self.patch[0])
        end = ar.add(ar.div(ar.div(ar.sub(ar.select(some, last, 1), 1), plane), self.patch[0]), 1)
        return ar.mul(begin, of_row), ar.select(some, ar.mul(end, of_row), ar.mul(begin, of_row))


@dataclass(frozen=True)
class Segment:
    """A line of a patch: `line` of the image, its positions begin <= position < end, and what leads from a position to
    its place in patched order; `exists` says whether the line lies in the image.
    """

    line: SSAValue
    begin: SSAValue
    end: SSAValue
    shift: SSAValue
    exists: SSAValue
