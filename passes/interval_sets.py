"""The algebra of interval sets: union, intersection and complement on symbolic bounds.

A `RowSet` holds what one row sees: ranges, whose non-empty members are sorted and disjoint, and families of ranges on
the lines of one raster, disjoint from the ranges and from each other. Every operation keeps that, whatever the values
of the bounds, and uses proofs only to leave work out. `TooComplex` says that a result would need more intervals than
allowed, or lines of two rasters at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from xdsl.ir import SSAValue

from compilemask.dialects.interval import UNBOUNDED
from compilemask.passes.bounds import (
    All,
    Bounds,
    Condition,
    Expr,
    NonNegative,
    Value,
    conjunction,
    constant,
    depends_on,
    of_atom,
)


class TooComplex(Exception):
    """The exact result does not fit; the caller falls back to sets that enclose it."""


@dataclass(frozen=True)
class Range:
    """[lo, hi), empty when hi <= lo."""

    lo: Expr
    hi: Expr


@dataclass(frozen=True)
class Family:
    """For first <= line < last the range [lo, hi), clipped to the line's cell [base + line * pitch, base + (line + 1)
    * pitch).

    `lines` are the values that stand for the line in lo and hi.
    """

    first: Expr
    last: Expr
    base: Expr
    pitch: Expr
    lo: Expr
    hi: Expr
    lines: frozenset[SSAValue]
    arity: int

    @property
    def grid(self) -> tuple[Expr, Expr]:
        """What two families must share to be combined line by line."""
        return (self.base, self.pitch)


@dataclass(frozen=True)
class RowSet:
    """What one row sees."""

    ranges: tuple[Range, ...] = ()
    families: tuple[Family, ...] = ()


@dataclass(frozen=True)
class SetAlgebra:
    """Operations on row sets of one function: facts about its bounds, the number of keys, and limits."""

    bounds: Bounds
    keys: Expr
    max_ranges: int = 8
    max_families: int = 4
    max_bound_size: int = 120

    @property
    def everything(self) -> RowSet:
        """All keys."""
        return RowSet((Range(constant(0), self.keys),))

    # ---- guards ----

    def when(self, condition: Condition, value: RowSet) -> RowSet:
        """The set where the condition holds, else nothing."""
        select = self.bounds.select
        return RowSet(
            tuple(Range(r.lo, select(condition, r.hi, r.lo)) for r in value.ranges),
            tuple(replace(f, last=select(condition, f.last, f.first)) for f in value.families),
        )

    def alternate(self, condition: Condition, a: RowSet, b: RowSet) -> RowSet:
        """The union of two sets of which `a` is empty where the condition does not hold, and `b` where it does."""
        select, shorter = self.bounds.select, min(len(a.ranges), len(b.ranges))
        ranges = [
            Range(select(condition, x.lo, y.lo), select(condition, x.hi, y.hi))
            for x, y in zip(a.ranges, b.ranges, strict=False)
        ]
        return self._checked([*ranges, *a.ranges[shorter:], *b.ranges[shorter:]], [*a.families, *b.families])

    def exclude(self, a: Condition, b: Condition) -> bool:
        """Whether two conditions are provably never both true."""
        return any(self.bounds.non_negative((x + y) * -1 - 1) for x, y in product(_parts(a), _parts(b)))

    def either(self, a: Condition, b: Condition) -> Condition | None:
        """Something that holds wherever one of the conditions does, if there is more to say than that it may."""
        implied = [x for x in _parts(a) if any(self.bounds.le(y, x) for y in _parts(b))]
        implied += [y for y in _parts(b) if any(self.bounds.le(x, y) for x in _parts(a))]
        return conjunction(*map(NonNegative, implied)) if implied else None

    # ---- intersection ----

    def intersect(self, a: RowSet, b: RowSet) -> RowSet:
        """Keys in both. Ranges in the order of (range of a, range of b): then the non-empty ones are sorted again."""
        ranges = [self._meet(x, y) for x, y in product(a.ranges, b.ranges)]
        families = [self._clip(f, r) for f in a.families for r in b.ranges]
        families += [self._clip(f, r) for f in b.families for r in a.ranges]
        families += [self._meet_lines(f, g) for f in a.families for g in b.families]
        return self._checked(ranges, families)

    def _meet(self, a: Range, b: Range) -> Range:
        return Range(self._later(a.lo, b.lo), self._earlier(a.hi, b.hi))

    def _later(self, a: Expr, b: Expr) -> Expr:
        """The larger lower bound. Sets are read inside [0, keys), so 0 is no bound at all: translation invariance
        survives.
        """
        zero = constant(0)
        return b if a == zero else a if b == zero else self.bounds.maximum(a, b)

    def _earlier(self, a: Expr, b: Expr) -> Expr:
        """The smaller upper bound, of which `keys` is none."""
        return b if a == self.keys else a if b == self.keys else self.bounds.minimum(a, b)

    def _clip(self, family: Family, to: Range) -> Family:
        """The family inside a range; bounds that all cells respect anyway are left out."""
        before_cells = self.bounds.le(to.lo, self._hull(family).lo)
        lo = family.lo if before_cells else self.bounds.maximum(family.lo, to.lo)
        return replace(family, lo=lo, hi=self._earlier(family.hi, to.hi))

    def _meet_lines(self, f: Family, g: Family) -> Family:
        if f.grid != g.grid:
            raise TooComplex("lines of two rasters stand in one set")
        return replace(
            f,
            first=self.bounds.maximum(f.first, g.first),
            last=self.bounds.minimum(f.last, g.last),
            lo=self.bounds.maximum(f.lo, g.lo),
            hi=self.bounds.minimum(f.hi, g.hi),
            lines=f.lines | g.lines,
            arity=_smaller_arity(f.arity, g.arity),
        )

    def _hull(self, family: Family) -> Range:
        cell = self.bounds.product
        return Range(family.base + cell(family.first, family.pitch), family.base + cell(family.last, family.pitch))

    # ---- union ----

    def union(self, a: RowSet, b: RowSet) -> RowSet:
        """Keys in either."""
        ranges = self._sorted_disjoint(self._merged([*a.ranges, *b.ranges]))
        if not a.families and not b.families:
            return self._checked(ranges, ())
        # What the ranges already hold is cut out of the families, and the first families out of the later ones.
        outside = self.complement(RowSet(tuple(ranges))) if ranges else self.everything
        families: list[Family] = []
        for family in (*a.families, *b.families):
            pieces = [family]
            for earlier in tuple(families):
                pieces = [rest for piece in pieces for rest in self._without(piece, earlier)]
                self._check_size(pieces)
            families += pieces
            self._check_size(families)
        clipped = [self._clip(f, r) for f in families for r in outside.ranges]
        return self._checked(ranges, clipped)

    def _merged(self, ranges: list[Range]) -> list[Range]:
        """Unite pairs that provably make one range."""
        result: list[Range] = []
        for candidate in ranges:
            index = 0
            while index < len(result):
                if (joined := self._join(result[index], candidate)) is None:
                    index += 1
                    continue
                del result[index]
                candidate, index = joined, 0
            result.append(candidate)
        return result

    def _join(self, a: Range, b: Range) -> Range | None:
        """a and b as one range, if that is provably what they make together."""
        bounds = self.bounds
        if a.lo == b.lo:
            return Range(a.lo, bounds.maximum(a.hi, b.hi))
        if a.hi == b.hi:
            return Range(bounds.minimum(a.lo, b.lo), a.hi)
        for x, y in ((a, b), (b, a)):
            # y starts inside x or at its end, so there is no gap; an empty range then adds nothing to the maximum.
            if self._starts_first(x, y) and (bounds.le(y.lo, x.hi) or bounds.le(y.hi, x.hi)):
                return Range(x.lo, bounds.maximum(x.hi, y.hi))
        return None

    def _starts_first(self, a: Range, b: Range) -> bool:
        """Whether a provably starts no later than b; nothing starts before 0, where keys begin."""
        return a.lo == constant(0) or self.bounds.le(a.lo, b.lo)

    def _sorted_disjoint(self, ranges: list[Range]) -> list[Range]:
        """Sort by lower bound, at compile time where that is proved and by exchanges where not; then cut off overlaps.

        With all lower bounds in order, an empty range cannot spoil the running end: its end lies before its own lower
        bound.
        """
        ordered = self._exchanged(ranges)
        result: list[Range] = []
        end: Expr | None = None
        for item in ordered:
            lo = item.lo if end is None else self.bounds.maximum(item.lo, end)
            result.append(Range(lo, item.hi))
            end = item.hi if end is None else self.bounds.maximum(end, item.hi)
        return result

    def _exchanged(self, ranges: list[Range]) -> list[Range]:
        """An insertion sort whose comparisons are proofs or, where there is none, exchanges at run time."""
        ordered: list[Range] = []
        for item in ranges:
            position = len(ordered)
            while position and self._starts_first(item, ordered[position - 1]):
                position -= 1
            if all(self._starts_first(before, item) for before in ordered[:position]):
                ordered.insert(position, item)
                continue
            for index, other in enumerate(ordered):
                ordered[index], item = self._exchange(other, item)
            ordered.append(item)
        return ordered

    def _exchange(self, a: Range, b: Range) -> tuple[Range, Range]:
        """The one that starts first, then the other."""
        bounds = self.bounds
        in_order = NonNegative(b.lo - a.lo)
        first = Range(bounds.minimum(a.lo, b.lo), bounds.select(in_order, a.hi, b.hi))
        second = Range(bounds.maximum(a.lo, b.lo), bounds.select(in_order, b.hi, a.hi))
        return first, second

    def _without(self, family: Family, cut: Family) -> list[Family]:
        """The family less another one on the same lines."""
        if family.grid != cut.grid:
            raise TooComplex("lines of two rasters stand in one set")
        bounds = self.bounds
        line = _line_of(family)
        inside = conjunction(NonNegative(line - cut.first), NonNegative(cut.last - line - 1))
        end = bounds.select(inside, bounds.maximum(cut.lo, cut.hi), cut.lo)
        lines = family.lines | cut.lines
        return [
            replace(family, hi=bounds.minimum(family.hi, cut.lo), lines=lines),
            replace(family, lo=bounds.maximum(family.lo, end), lines=lines),
        ]

    # ---- complement ----

    def complement(self, value: RowSet) -> RowSet:
        """Keys that are not in the set."""
        result = self._gaps(value.ranges)
        for family in value.families:
            result = self.intersect(result, self._outside(family))
        return result

    def _gaps(self, ranges: tuple[Range, ...]) -> RowSet:
        """What lies between ranges. Empty ones may stand anywhere, unless all lower bounds are provably in order."""
        bounds = self.bounds
        in_order = all(self._starts_first(a, b) for a, b in pairwise(ranges))
        gaps: list[Range] = []
        end = constant(0)
        for item in ranges:
            if in_order:
                gaps.append(Range(end, item.lo))
                end = self._later(end, bounds.maximum(item.lo, item.hi))
            else:
                filled = NonNegative(item.hi - item.lo - 1)
                gaps.append(Range(end, bounds.select(filled, item.lo, end)))
                end = bounds.select(filled, item.hi, end)
        gaps.append(Range(end, self.keys))
        return self._checked(gaps, ())

    def _outside(self, family: Family) -> RowSet:
        """All keys but a family's: what lies before and behind its lines, and on each line what its member leaves."""
        bounds = self.bounds
        last = bounds.maximum(family.first, family.last)
        hull = self._hull(replace(family, last=last))
        line = _line_of(family)
        start = family.base + bounds.product(line, family.pitch)
        left = replace(family, lo=start, hi=family.lo)
        right = replace(family, lo=bounds.maximum(family.lo, family.hi), hi=start + family.pitch)
        return RowSet((Range(constant(0), hull.lo), Range(hull.hi, self.keys)), (left, right))

    # ---- limits ----

    def _checked(self, ranges: Iterable[Range], families: Iterable[Family]) -> RowSet:
        """The set without what is provably empty, if it is not too large."""
        kept = [item for item in ranges if not self._provably_empty(item)]
        kept_families = [item for item in families if not self._family_empty(item)]
        if len(kept) > self.max_ranges:
            raise TooComplex(f"a row sees {len(kept)} intervals, more than {self.max_ranges}")
        if len(kept_families) > self.max_families:
            raise TooComplex(f"{len(kept_families)} families of intervals, more than {self.max_families}")
        if len({family.grid for family in kept_families}) > 1:
            raise TooComplex("lines of two rasters stand in one set")
        self._check_size([*kept, *kept_families])
        return RowSet(tuple(kept), tuple(kept_families))

    def _check_size(self, items: Sequence[Range | Family]) -> None:
        """Give up before bounds grow beyond what is worth evaluating."""
        if len(items) > self.max_ranges + self.max_families:
            raise TooComplex(f"{len(items)} intervals on the way, more than {self.max_ranges + self.max_families}")
        if any(bound.size > self.max_bound_size for item in items for bound in (item.lo, item.hi)):
            raise TooComplex(f"a bound of an interval has more than {self.max_bound_size} terms")

    def _provably_empty(self, item: Range) -> bool:
        return (
            self.bounds.le(item.hi, item.lo)
            or self.bounds.le(item.hi, constant(0))
            or self.bounds.le(self.keys, item.lo)
        )

    def _family_empty(self, family: Family) -> bool:
        bounds = self.bounds
        if bounds.le(family.hi, family.lo) or bounds.le(family.last, family.first):
            return True
        # A member is cut to its cell, which starts at or behind the first line's cell.
        start = self._hull(family).lo
        return not depends_on(family.hi, family.lines) and bounds.le(family.hi, start)


def _parts(condition: Condition) -> list[Expr]:
    """Expressions that are not negative where the condition holds."""
    items = condition.items if isinstance(condition, All) else (condition,)
    return [item.expr for item in items if isinstance(item, NonNegative)]


def _line_of(family: Family) -> Expr:
    return of_atom(Value(next(iter(family.lines))))


def _smaller_arity(a: int, b: int) -> int:
    known = [arity for arity in (a, b) if arity != UNBOUNDED]
    return min(known) if known else UNBOUNDED
