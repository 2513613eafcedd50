"""Constraints on `kv % c`: in each cell of c keys, the same range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xdsl.builder import Builder
from xdsl.dialects import arith as xdsl_arith
from xdsl.ir import Block, Region, SSAValue
from xdsl.rewriter import InsertPoint

from compilemask.dialects import interval
from compilemask.lowering.predicate_terms import Quotient, Terms
from compilemask.passes.bound_emission import BoundEmitter
from compilemask.passes.bounds import Condition, Expr, NonNegative, Value, conjunction, constant, depends_on, of_atom

SHORTEST_PERIOD = 16
"""Shorter cells are too many for intervals: a row of 1000 keys would have dozens of them in each tile."""


@dataclass(frozen=True)
class Cycle:
    """lower <= (kv + offset) mod period <= upper; the offset is the same on all rows."""

    offset: Expr
    period: int
    lower: Expr | None
    upper: Expr | None


def as_cycle(
    terms: Terms, query: SSAValue, opened: list[tuple[Any, int]], lower: Expr | None, upper: Expr | None
) -> Cycle | None:
    """x // a - m * (x // (a * m)) between bounds, x = kv + c or c - kv: that is (x // a) mod m."""
    if len(opened) != 2:
        return None
    (atom, factor), (coarse, weight) = sorted(opened, key=lambda term: _divisor(term[0]))
    if not isinstance(coarse, Quotient):
        return None
    if weight > 0:
        factor, weight = -factor, -weight
        lower, upper = (None if b is None else b * -1 for b in (upper, lower))
    fine, sign = (atom.dividend, 1) if isinstance(atom, Quotient) else (terms.kv * factor, factor)
    step = _divisor(atom)
    if coarse.divisor != step * -weight or (step > 1 and factor != 1) or abs(sign) != 1:
        return None
    moved = _exact_quotient(coarse.dividend - fine, step)
    if moved is None or not terms.is_free(moved):
        return None
    # (x // a) mod m = (the fine quotient of x) - m * (the coarse one), and x's own fine quotient is `moved` more.
    lower = None if lower is None else terms.near(lower + moved, step) * step
    upper = None if upper is None else terms.near(upper + moved, step) * step + (step - 1)
    return _of_dividend(terms, query, coarse, lower, upper)


def _of_dividend(
    terms: Terms, query: SSAValue, coarse: Quotient, lower: Expr | None, upper: Expr | None
) -> Cycle | None:
    """(dividend mod divisor) between bounds; -x mod c runs backwards: it is c - 1 - ((x - 1) mod c)."""
    period = coarse.divisor
    ascending, descending = coarse.dividend - terms.kv, (coarse.dividend + terms.kv) * -1 - 1
    if terms.is_free(ascending):
        offset = ascending
    elif terms.is_free(descending):
        offset = descending
        lower, upper = (None if b is None else b * -1 + (period - 1) for b in (upper, lower))
    else:
        return None
    if period < SHORTEST_PERIOD or depends_on(offset, frozenset({query})):
        return None
    return Cycle(offset, period, lower, upper)


def _divisor(atom: Any) -> int:
    return atom.divisor if isinstance(atom, Quotient) else 1


def _exact_quotient(expr: Expr, divisor: int) -> Expr | None:
    """expr / divisor, if that is an integer whatever the values."""
    if expr.constant % divisor or any(factor % divisor for _, factor in expr.terms):
        return None
    return Expr(expr.constant // divisor, tuple((atom, factor // divisor) for atom, factor in expr.terms))


# ---- to families ----


def beyond_lines(
    terms: Terms, cycles: list[Cycle], lower: Expr | None, upper: Expr | None
) -> tuple[Expr | None, Expr | None]:
    """Those of the bounds that do not fall between two cells of a family: a choice of lines does not say them."""
    if not cycles:
        return lower, upper
    offset = cycles[0].offset
    period = min(cycle.period for cycle in cycles if cycle.offset == offset)
    base = terms.quotient(offset, period) * period - offset
    cuts_lower = lower is not None and _exact_quotient(lower - base, period) is None
    cuts_upper = upper is not None and _exact_quotient(upper + 1 - base, period) is None
    return lower if cuts_lower else None, upper if cuts_upper else None


def emit_cycles(
    terms: Terms, keys: SSAValue, cycles: list[Cycle], lower: Expr | None, upper: Expr | None
) -> list[SSAValue]:
    """Sets whose intersection satisfies all cycles, between lower and upper. Families may leave out keys outside."""
    groups: dict[Expr, list[Cycle]] = {}
    for cycle in cycles:
        groups.setdefault(cycle.offset, []).append(cycle)
    found: list[SSAValue] = []
    for members in groups.values():
        group: list[Cycle] = members
        while group:
            finest = min(cycle.period for cycle in group)
            own = [cycle for cycle in group if cycle.period == finest]
            group = [cycle for cycle in group if cycle.period != finest]
            by_line = [cycle for cycle in group if _line_range(cycle, finest) is not None]
            group = [cycle for cycle in group if cycle not in by_line]
            found.append(_Family(terms, keys, finest, own, by_line).emit(lower, upper))
    return found


def _line_range(cycle: Cycle, period: int) -> tuple[Expr | None, Expr | None] | None:
    """The bounds of line mod (cycle.period / period), if the cycle is a matter of whole lines of `period` keys."""
    if cycle.period % period:
        return None
    first = None if cycle.lower is None else _exact_quotient(cycle.lower, period)
    last = None if cycle.upper is None else _exact_quotient(cycle.upper + 1, period)
    if (first is None) != (cycle.lower is None) or (last is None) != (cycle.upper is None):
        return None
    return first, None if last is None else last - 1


@dataclass
class _Family:
    """One family: `own` bound the member of each line, `by_line` choose lines."""

    terms: Terms
    keys: SSAValue
    period: int
    own: list[Cycle]
    by_line: list[Cycle]

    def emit(self, lower: Expr | None, upper: Expr | None) -> SSAValue:
        terms, period, offset = self.terms, self.period, self.own[0].offset
        # Lines are counted from the one that holds key 0, which starts at `base`, -period < base <= 0.
        skipped = terms.quotient(offset, period)
        base = skipped * period - offset
        behind = terms.quotient(of_atom(Value(self.keys)) - base + (period - 1), period)
        first = constant(0) if lower is None else terms.quotient(lower - base, period)
        last = behind if upper is None else terms.quotient(upper - base, period) + 1
        count = last - first
        if count == constant(1):
            return self._single(base, skipped, first)
        arity = max(count.constant, 0) if count.is_constant else self._arity(lower, upper)
        begin, end, start, pitch = (terms.emitter.emit(bound) for bound in (first, last, base, constant(period)))
        body = Region(self._body(base, skipped))
        return terms.builder.insert(interval.FamilyOp(begin, end, start, pitch, body, arity)).result

    def _arity(self, lower: Expr | None, upper: Expr | None) -> int:
        if lower is None or upper is None or not (width := upper - lower).is_constant:
            return interval.UNBOUNDED
        return max(width.constant // self.period + 2, 0)

    def _body(self, base: Expr, skipped: Expr) -> Block:
        terms = self.terms
        block = Block(arg_types=[self.keys.type])
        line = block.args[0]
        line.name_hint = "line"
        inside = BoundEmitter(Builder(InsertPoint.at_end(block)), terms.emitter, frozenset({line}), line)
        lo, hi = self._member(inside, of_atom(Value(line)), base, skipped)
        inside.builder.insert(interval.MemberOp(inside.emit(lo), inside.emit(hi)))
        return block

    def _member(self, emitter: BoundEmitter, line: Expr, base: Expr, skipped: Expr) -> tuple[Expr, Expr]:
        """What the cycles leave of a line, not clipped to its cell."""
        bounds, start = self.terms.bounds, line * self.period + base
        lowers = [cycle.lower for cycle in self.own if cycle.lower is not None]
        uppers = [cycle.upper for cycle in self.own if cycle.upper is not None]
        lo = start + (bounds.maximum(*lowers) if lowers else constant(0))
        hi = start + (bounds.minimum(*uppers) + 1 if uppers else constant(self.period))
        conditions = [c for cycle in self.by_line for c in self._chosen(emitter, cycle, line + skipped)]
        return lo, bounds.select(conjunction(*conditions), hi, lo) if conditions else hi

    def _single(self, base: Expr, skipped: Expr, line: Expr) -> SSAValue:
        """The one line of a family, as a range."""
        emitter, bounds, start = self.terms.emitter, self.terms.bounds, line * self.period + base
        lo, hi = self._member(emitter, line, base, skipped)
        clipped = bounds.maximum(lo, start), bounds.minimum(hi, start + self.period)
        return self.terms.builder.insert(interval.RangeOp(*(emitter.emit(bound) for bound in clipped))).result

    def _chosen(self, inside: BoundEmitter, cycle: Cycle, line: Expr) -> list[Condition]:
        """Conditions on the line, numbered as in the predicate."""
        lines = cycle.period // self.period
        bounds = _line_range(cycle, self.period)
        assert bounds is not None
        divisor = inside.emit(constant(lines))
        quotient = inside.builder.insert(xdsl_arith.FloorDivSIOp(inside.emit(line), divisor)).result
        place = line - of_atom(Value(quotient)) * lines
        first, last = bounds
        found: list[Condition] = [NonNegative(place - first)] if first is not None else []
        return [*found, NonNegative(last - place)] if last is not None else found
