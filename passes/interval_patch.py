"""`interval-patch`: the same mask over patched order, in which the tiles of an image are patches of it.

    interval.func @clear(%q, %queries, %keys, %height, %width, %text)
    -> interval.func @clear(%q, %queries, %keys, %height, %width, %text, %origin, %lines, %columns, %length)

Rows and keys of the result are places of patched order (lowering/patch_grid.py), and so are the lengths that it is
given; the arguments behind those of the mask say the image and how long the sequence is in raster order. What a row
sees before and behind the image stays a range. What it sees of the image becomes a family over the lines of patches,
one for each part of the set. A missing row sees what its nearest neighbour sees, and nobody sees a missing key.

The families of the mask must lie on the raster of the image: their base is its origin and their pitch its width. They
may have lines before and behind it, which stay lines of families of their own; `inside` says that there are none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects.builtin import FunctionType, ModuleOp, i32
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from compilemask.dialects import interval
from compilemask.dialects.interval import PATCHES
from compilemask.errors import LoweringError
from compilemask.passes.patch_emission import Arithmetic, Image, Segment

NAMES = ("origin", "frames", "lines", "columns", "length")
"""What the arguments behind those of the mask are called in printed IR; images have no frames."""

Bounds = tuple[SSAValue, SSAValue]


def extra_arguments(axes: int) -> tuple[str, ...]:
    """The arguments of patched functions behind those of the mask."""
    return NAMES if axes == 3 else (NAMES[0], *NAMES[2:])


class _Patched:
    """One function in patched order, under construction."""

    def __init__(self, func: interval.FuncOp, patches: interval.PatchesAttr, inside: bool) -> None:
        self.func, self.patches, self.inside = func, patches, inside
        names = extra_arguments(len(patches.key_shape))
        old = func.body.block
        self.block = Block(arg_types=[*func.function_type.inputs.data, *[i32] * len(names)])
        given, extra = self.block.args[: len(old.args)], self.block.args[len(old.args) :]
        for argument, name in zip(self.block.args, [*(a.name_hint for a in old.args), *names], strict=True):
            argument.name_hint = name
        origin, *sizes, length = extra
        ar = Arithmetic(Builder(InsertPoint.at_end(self.block)))
        self.builder, self.rows = ar.builder, Image(ar, origin, tuple(sizes), length, patches.query_shape)
        self.image = Image(ar, origin, tuple(sizes), length, patches.key_shape)
        for image in (self.rows, self.image):
            image.prepare()
        q = self.rows.position(given[0])
        q.name_hint = "position"
        self.values: dict[SSAValue, SSAValue] = dict(zip(old.args, (q, length, length, *given[3:]), strict=True))

    def finish(self) -> interval.FuncOp:
        """The function."""
        for op in self.func.body.block.ops:
            if not isinstance(op, _SETS):
                self._clone(self.builder, op, self.values)
        end = self.func.body.block.last_op
        assert isinstance(end, interval.ReturnOp)
        root = end.value.owner
        found = self._between(root) if isinstance(root, interval.BetweenOp) else self._set(end.value)
        self.builder.insert(interval.ReturnOp(found))
        kind = FunctionType.from_lists([argument.type for argument in self.block.args], [found.type])
        attributes = {**self.func.attributes, PATCHES: self.patches}
        return interval.FuncOp(self.func.sym_name, kind, Region(self.block), attributes)

    def _clone(self, builder: Builder, op: Operation, values: dict[SSAValue, SSAValue]) -> None:
        copy = builder.insert(op.clone(value_mapper=values))
        values.update(zip(op.results, copy.results, strict=True))

    # ---- sets ----

    def _set(self, value: SSAValue) -> SSAValue:
        """A concat in patched order."""
        concat = value.owner
        if not isinstance(concat, interval.ConcatOp):
            raise LoweringError(f"@{self.func.sym_name.data} is not in normal form: run interval-normalize first")
        owners = [part.owner for part in concat.parts]
        ranges = [self._range(op) for op in owners if isinstance(op, interval.RangeOp)]
        families = [part for op in owners if isinstance(op, interval.FamilyOp) for part in self._families(op)]
        outside = [self._outside(bounds) for bounds in ranges]
        parts = [before for before, _ in outside] + [behind for _, behind in outside]
        parts += [self._in_image(bounds) for bounds in ranges] + families
        return self.builder.insert(interval.ConcatOp(parts)).result

    def _range(self, op: interval.RangeOp) -> Bounds:
        """The bounds of a range in the image function's positions."""
        return self.values[op.lo], self.values[op.hi]

    def _outside(self, bounds: Bounds) -> tuple[SSAValue, SSAValue]:
        """The ranges that a range becomes before and behind the image."""
        ar, image = self.image.arithmetic, self.image
        before = [ar.least(bound, image.origin) for bound in bounds]
        behind = [ar.add(ar.least(ar.greatest(bound, image.end), image.length), image.behind) for bound in bounds]
        return ar.emit(interval.RangeOp(*before)), ar.emit(interval.RangeOp(*behind))

    def _in_image(self, bounds: Bounds) -> SSAValue:
        """The family that a range becomes in the image."""
        ar, image = self.image.arithmetic, self.image
        lo, hi = (ar.least(ar.greatest(bound, image.origin), image.end) for bound in bounds)
        first = ar.div(ar.sub(lo, image.origin), image.sizes[-1])
        last = ar.div(ar.add(ar.sub(hi, image.origin), ar.sub(image.sizes[-1], 1)), image.sizes[-1])
        last = ar.select(ar.less(lo, hi), last, first)
        return self._over_patches(first, last, lambda inside, segment: (lo, hi))

    def _families(self, op: interval.FamilyOp) -> list[SSAValue]:
        """The families that a family becomes."""
        first, last = self.values[op.first], self.values[op.last]

        def member(ar: Arithmetic, segment: Segment) -> Bounds:
            lo, hi = self._member(op, ar, segment.line)
            below, above = ar.less(segment.line, first), ar.less(segment.line, last)
            return ar.select(below, hi, lo), ar.select(above, hi, lo)

        in_image = self._over_patches(first, last, member)
        if self.inside:
            return [in_image]
        ar, image = self.image.arithmetic, self.image
        before = self._over_lines(op, first, ar.least(last, 0), ar.value(0))
        behind = self._over_lines(op, ar.greatest(first, image.lines), last, image.behind)
        return [before, behind, in_image]

    def _member(self, op: interval.FamilyOp, ar: Arithmetic, line: SSAValue) -> Bounds:
        """The member of a line, in positions."""
        body = op.body.block
        values = {**self.values, body.args[0]: line}
        for inner in body.ops:
            if isinstance(inner, interval.MemberOp):
                return values.get(inner.lo, inner.lo), values.get(inner.hi, inner.hi)
            self._clone(ar.builder, inner, values)
        raise LoweringError("a family without a member")

    def _over_lines(self, op: interval.FamilyOp, first: SSAValue, last: SSAValue, shift: SSAValue) -> SSAValue:
        """The family over lines first <= line < last outside the image, whose places are positions plus `shift`."""
        block = Block(arg_types=[i32])
        block.args[0].name_hint = "line"
        ar = Arithmetic(Builder(InsertPoint.at_end(block)))
        ar.builder.insert(interval.MemberOp(*(ar.add(x, shift) for x in self._member(op, ar, block.args[0]))))
        here = self.image.arithmetic
        base, pitch = here.add(self.image.origin, shift), self.image.sizes[-1]
        arity = interval.set_of(op.result).count
        return here.emit(interval.FamilyOp(first, last, base, pitch, Region(block), arity))

    def _over_patches(
        self, first: SSAValue, last: SSAValue, member: Callable[[Arithmetic, Segment], Bounds]
    ) -> SSAValue:
        """A family over the lines of patches that meet lines first <= line < last of the image."""
        begin, end = self.image.numbers_of(first, last)
        block = Block(arg_types=[i32])
        block.args[0].name_hint = "number"
        ar = Arithmetic(Builder(InsertPoint.at_end(block)))
        segment = self.image.at(ar).segment(block.args[0])
        lo, hi = member(ar, segment)
        lo = ar.add(lo, segment.shift)
        hi = ar.add(ar.least(hi, segment.end), segment.shift)
        ar.builder.insert(interval.MemberOp(lo, ar.select(segment.exists, hi, lo)))
        here = self.image.arithmetic
        pitch = here.value(self.patches.key_shape[-1])
        return here.emit(interval.FamilyOp(begin, end, self.image.base, pitch, Region(block), arity=interval.UNBOUNDED))

    def _between(self, op: interval.BetweenOp) -> SSAValue:
        """The same with a predicate on places."""
        inner, outer = self._set(op.inner), self._set(op.outer)
        block = Block(arg_types=[i32, i32])
        block.args[0].name_hint, block.args[1].name_hint = "q", "kv"
        ar = Arithmetic(Builder(InsertPoint.at_end(block)))
        at = (self.rows.at(ar).position(block.args[0]), self.image.at(ar).position(block.args[1]))
        values = {**self.values, **dict(zip(op.body.block.args, at, strict=True))}
        for inside in op.body.block.ops:
            self._clone(ar.builder, inside, values)
        return self.builder.insert(interval.BetweenOp(inner, outer, Region(block), op.reasons)).result


_SETS = (
    interval.RangeOp,
    interval.FamilyOp,
    interval.ConcatOp,
    interval.BetweenOp,
    interval.ReturnOp,
)


@dataclass(frozen=True)
class IntervalPatchPass(ModulePass):
    """Write interval functions in normal form for patched order; `queries` and `keys` are the shapes of patches."""

    name = "interval-patch"

    keys: tuple[int, ...] = (8, 16)
    queries: tuple[int, ...] | None = None
    """As those of keys if not given."""
    inside: bool = False
    """Whether no family of a mask has a line before or behind the image."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        patches = interval.PatchesAttr(self.keys if self.queries is None else self.queries, self.keys)
        patches.verify()
        for func in [func for func in op.walk() if isinstance(func, interval.FuncOp)]:
            if PATCHES in func.attributes:
                raise LoweringError(f"@{func.sym_name.data} is in patched order already")
            Rewriter.replace_op(func, _Patched(func, patches, self.inside).finish(), [])


def patches_of(func: interval.FuncOp) -> interval.PatchesAttr | None:
    """The shapes of patches of a function in patched order."""
    found = func.attributes.get(PATCHES)
    return found if isinstance(found, interval.PatchesAttr) else None


__all__ = ["IntervalPatchPass", "extra_arguments", "patches_of"]
