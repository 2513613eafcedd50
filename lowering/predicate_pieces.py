"""Conjunctions of solved constraints as pieces, and unions of pieces that are one piece again.

A piece is what intervals say well: a span of keys, ranges that repeat in cells, and conditions on the row. Two pieces
are one if they differ in a single range and the two ranges touch, or if one holds on exactly the rows where the other
does not: then each bound is a selection.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from compilemask.lowering.predicate_cycles import Cycle
from compilemask.lowering.predicate_formula import Both, Either, Guard, Unknown
from compilemask.passes.bounds import All, Bounds, Condition, Expr, NonNegative, constant


@dataclass(frozen=True)
class Span:
    """lower <= kv <= upper; a missing bound is no bound."""

    lower: Expr | None
    upper: Expr | None


Solved = Span | Cycle | Guard | Unknown | Both | Either
"""A formula whose constraints are solved for the key. Nested items are solved too."""
Range = tuple[Expr | None, Expr | None]


@dataclass(frozen=True)
class Piece:
    """All of: conditions on the row, a span, cycles with different offsets or periods, and other parts."""

    conditions: frozenset[Condition]
    span: Span
    cycles: tuple[Cycle, ...]
    rest: tuple[Solved, ...]

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The span's bounds and those of the cycles."""
        return ((self.span.lower, self.span.upper), *((cycle.lower, cycle.upper) for cycle in self.cycles))

    def with_ranges(self, ranges: list[Range]) -> Piece:
        """The piece with other bounds."""
        cycles = [replace(cycle, lower=lo, upper=hi) for cycle, (lo, hi) in zip(self.cycles, ranges[1:], strict=True)]
        return replace(self, span=Span(*ranges[0]), cycles=tuple(cycles))

    def never(self, bounds: Bounds) -> bool:
        """Whether one of the conditions is provably false."""
        return any(
            isinstance(item, NonNegative) and bounds.non_negative(item.expr * -1 - 1) for item in self.conditions
        )

    def same_shape(self, other: Piece) -> bool:
        """Whether the pieces differ in bounds and conditions at most."""
        mine, theirs = ([(c.offset, c.period) for c in piece.cycles] for piece in (self, other))
        return mine == theirs and set(self.rest) == set(other.rest)


def piece_of(items: Iterable[Solved], bounds: Bounds) -> Piece:
    """The items of a conjunction, sorted into a piece."""
    conditions: list[Condition] = []
    spans: list[Span] = []
    cycles: dict[tuple[int, Expr], list[Cycle]] = {}
    rest: list[Solved] = []
    for item in items:
        match item:
            case Span():
                spans.append(item)
            case Cycle(offset, period):
                cycles.setdefault((period, offset), []).append(item)
            case Guard(condition):
                conditions += condition.items if isinstance(condition, All) else (condition,)
            case _:
                rest.append(item)
    common = [Cycle(offset, period, *_common(found, bounds)) for (period, offset), found in cycles.items()]
    common.sort(key=lambda cycle: cycle.period)
    return Piece(frozenset(conditions), Span(*_common(spans, bounds)), tuple(common), tuple(dict.fromkeys(rest)))


def _common(items: Iterable[Span | Cycle], bounds: Bounds) -> Range:
    """What lies in all of some ranges."""
    lowers = [item.lower for item in items if item.lower is not None]
    uppers = [item.upper for item in items if item.upper is not None]
    return bounds.maximum(*lowers) if lowers else None, bounds.minimum(*uppers) if uppers else None


def merged(pieces: list[Piece], bounds: Bounds, keys: Expr) -> list[Piece]:
    """The union of pieces, as few as are found."""
    result: list[Piece] = []
    for piece in pieces:
        index = 0
        while index < len(result):
            joined = _touching(result[index], piece, bounds) or _alternating(result[index], piece, bounds, keys)
            if joined is None:
                index += 1
                continue
            del result[index]
            piece, index = joined, 0
        result.append(piece)
    return result


def _touching(a: Piece, b: Piece, bounds: Bounds) -> Piece | None:
    """Two pieces that differ in one range at most, if the ranges make one."""
    if a.conditions != b.conditions or not a.same_shape(b):
        return None
    ranges = list(a.ranges)
    different = [index for index, (x, y) in enumerate(zip(a.ranges, b.ranges, strict=True)) if x != y]
    if len(different) > 1:
        return None
    for index in different:
        joined = _joined(a.ranges[index], b.ranges[index], bounds)
        if joined is None:
            return None
        ranges[index] = joined
    return a.with_ranges(ranges)


def _joined(a: Range, b: Range, bounds: Bounds) -> Range | None:
    """Two ranges as one, if that is provably what they make, whether or not one of them is empty."""
    (a_lower, a_upper), (b_lower, b_upper) = a, b
    if a_lower == b_lower:
        return a_lower, None if a_upper is None or b_upper is None else bounds.maximum(a_upper, b_upper)
    if a_upper == b_upper:
        return None if a_lower is None or b_lower is None else bounds.minimum(a_lower, b_lower), a_upper
    for (lower, upper), (start, end) in ((a, b), (b, a)):
        # The second starts inside the first or right behind it; an empty one then ends before that.
        if lower is None or start is None or upper is None or end is None:
            continue
        if bounds.le(lower, start) and bounds.le(start, upper + 1):
            return lower, bounds.maximum(upper, end)
    return None


def _alternating(a: Piece, b: Piece, bounds: Bounds, keys: Expr) -> Piece | None:
    """Two pieces of which one holds where a condition does, the other where it does not."""
    only_a, only_b = a.conditions - b.conditions, b.conditions - a.conditions
    if len(only_a) != 1 or len(only_b) != 1 or not a.same_shape(b):
        return None
    (condition,), (opposite,) = only_a, only_b
    if not isinstance(condition, NonNegative) or not isinstance(opposite, NonNegative):
        return None
    if opposite.expr != condition.expr * -1 - 1:
        return None
    ends = [keys, *(constant(cycle.period) for cycle in a.cycles)]
    ranges: list[Range] = []
    for x, y, end in zip(a.ranges, b.ranges, ends, strict=True):
        ranges.append((_selected_lower(bounds, condition, x[0], y[0]), _selected(bounds, condition, x[1], y[1], end)))
    return replace(a.with_ranges(ranges), conditions=a.conditions & b.conditions)


def _selected_lower(bounds: Bounds, condition: Condition, a: Expr | None, b: Expr | None) -> Expr | None:
    if a is None and b is None:
        return None
    return bounds.select(condition, a if a is not None else constant(0), b if b is not None else constant(0))


def _selected(bounds: Bounds, condition: Condition, a: Expr | None, b: Expr | None, end: Expr) -> Expr | None:
    """The upper bound, selected one behind it: that is what intervals end at."""
    if a is None and b is None:
        return None
    return bounds.select(condition, a + 1 if a is not None else end, b + 1 if b is not None else end) - 1


__all__ = ["Piece", "Solved", "Span", "merged", "piece_of"]
