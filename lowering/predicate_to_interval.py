"""From a pointwise predicate to interval sets: each comparison is solved for the key.

For one query row everything but the key is a number. A comparison that is linear in the key gives a range; `kv // c` a
range too; `kv % c` one range for each cell of `c` keys (an `interval.family`); an ascending table is inverted by an
`interval.search`; minima, maxima and choices split into cases. In a conjunction, equations such as `doc[kv] == doc[q]`
are put into the other parts, which often become linear by that. What cannot be solved is taken as false for the inner
set and as true for the outer one, and the predicate decides in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

from xdsl.builder import Builder
from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import IntegerAttr, i1
from xdsl.ir import Operation, SSAValue

from compilemask.dialects import interval, mask
from compilemask.dialects.narrowing import is_value
from compilemask.lowering.predicate_cycles import as_cycle, beyond_lines, emit_cycles
from compilemask.lowering.predicate_formula import (
    UNKNOWN,
    Both,
    Either,
    Formula,
    Guard,
    PredicateReader,
    Unknown,
    Within,
    both,
    choice,
    either,
    guards,
    negated,
)
from compilemask.lowering.predicate_pieces import Piece, Solved, Span, merged, piece_of
from compilemask.lowering.predicate_terms import Choice, Entry, Opaque, Quotient, Terms, expression
from compilemask.lowering.predicate_text import entry_reason, opaque_reason, several_reason
from compilemask.passes.bounds import (
    All,
    Bounds,
    Expr,
    Extreme,
    Flag,
    NonNegative,
    Value,
    conjunction,
    constant,
    lift,
    of_atom,
)

STEPS = 400
"""How many constraints one predicate may split into; beyond it, they stay unknown."""


class Sets(NamedTuple):
    """An inner and an outer set of one formula; the same value if the formula is solved, and `why` not otherwise."""

    inner: SSAValue
    outer: SSAValue
    why: tuple[str, ...] = ()


class Frame(NamedTuple):
    """What a predicate takes for positions: its row, the numbers of queries and keys, and the key that is its key 0."""

    q: SSAValue
    queries: SSAValue
    keys: SSAValue
    first_key: SSAValue | None = None


@dataclass
class PredicateLowering:
    """Lowers formulas of one predicate to interval sets."""

    terms: Terms
    query: SSAValue
    keys: SSAValue
    ascending: frozenset[SSAValue]
    """Tables whose entries ascend."""
    _steps: int = field(default=STEPS)

    # ---- equations ----

    def substituted(self, formula: Formula) -> Formula:
        """The formula with the equations of each conjunction put into its other parts."""
        match formula:
            case Both(items):
                return self._substituted_all(list(items))
            case Either(items):
                return either(self.substituted(item) for item in items)
            case _:
                return formula

    def _substituted_all(self, items: list[Formula]) -> Formula:
        done: set[object] = set()
        while (found := self._equation(items, done)) is not None:
            position, atom, value = found
            done.add(atom)
            items = [
                item if index == position else self._replace(item, atom, value) for index, item in enumerate(items)
            ]
            joined = both(items)
            if not isinstance(joined, Both):
                return self.substituted(joined)
            items = list(joined.items)
        return both(self.substituted(item) for item in items)

    def _equation(self, items: list[Formula], done: set[object]) -> tuple[int, object, Expr] | None:
        """An item that says what an atom is: its position, the atom and the value."""
        for position, item in enumerate(items):
            if not isinstance(item, Within) or item.lower is None or item.lower != item.upper:
                continue
            opened = self.terms.open_atoms(item.expr)
            if len(opened) != 1 or abs(opened[0][1]) != 1 or not isinstance(opened[0][0], Entry | Quotient | Value):
                continue
            atom, factor = opened[0]
            if atom not in done:
                rest = self.terms.free_part(item.expr)
                return position, atom, (constant(item.lower) - rest) * factor
        return None

    def _replace(self, formula: Formula, atom: object, value: Expr) -> Formula:
        def again(part: Formula) -> Formula:
            return self._replace(part, atom, value)

        def chosen(found: Choice, inside: Callable[[Expr], Expr]) -> Expr:
            return choice(self.terms, again(found.formula), inside(found.then), inside(found.other))

        match formula:
            case Within(expr, lower, upper):
                expr = self.terms.substitute(expr, atom, value, chosen)
                if self.terms.is_free(expr):
                    return guards(expr, *(None if bound is None else constant(bound) for bound in (lower, upper)))
                return Within(expr, lower, upper)
            case Both(items):
                return both(again(item) for item in items)
            case Either(items):
                return either(again(item) for item in items)
            case _:
                return formula

    # ---- solving ----

    def solve(self, formula: Formula) -> Solved:
        """The formula with all constraints solved for the key, or unknown."""
        match formula:
            case Within(expr, lower, upper):
                return self._within(expr, *(None if bound is None else constant(bound) for bound in (lower, upper)))
            case Both(items):
                return both(self.solve(item) for item in items)  # type: ignore[arg-type,return-value]
            case Either(items):
                return either(self.solve(item) for item in items)  # type: ignore[arg-type,return-value]
            case Guard() | Unknown():
                return formula

    def _within(self, expr: Expr, lower: Expr | None, upper: Expr | None) -> Solved:
        """lower <= expr <= upper, where the bounds do not depend on the key."""
        self._steps -= 1
        if self._steps < 0:
            return self._unsolved(f"the predicate splits into more than {STEPS} constraints")
        free, opened = self.terms.free_part(expr), self.terms.open_atoms(expr)
        lower, upper = _shifted(lower, free), _shifted(upper, free)
        if not opened:
            return guards(constant(0), lower, upper)  # type: ignore[return-value]
        for atom, factor in opened:
            if isinstance(atom, Extreme | Choice):
                rest = expr - free - expression(atom) * factor
                return self._cases(atom, factor, rest, lower, upper)
        if len(opened) == 1:
            atom, factor = opened[0]
            return self._one_atom(atom, *self._divided(lower, upper, factor))
        cycle = as_cycle(self.terms, self.query, opened, lower, upper)
        return cycle or self._unsolved(several_reason(expr - free, opened, self.query))

    def _unsolved(self, reason: str) -> Unknown:
        self.terms.reasons[reason] = None
        return UNKNOWN

    def _cases(self, atom: Extreme | Choice, factor: int, rest: Expr, lower: Expr | None, upper: Expr | None) -> Solved:
        """rest + factor * atom between bounds, case by case."""
        if isinstance(atom, Choice):
            then, other = (self._within(rest + part * factor, lower, upper) for part in (atom.then, atom.other))
            condition = self.solve(atom.formula)
            otherwise = self.solve(negated(atom.formula, self._flip))
            return either([both([condition, then]), both([otherwise, other])])  # type: ignore[list-item,return-value]
        cases = [rest + item * factor for item in atom.items]
        of_upper, of_lower = (both, either) if (atom.kind == "max") == (factor > 0) else (either, both)
        found: list[Solved] = []
        if upper is not None:
            found.append(of_upper(self._within(case, None, upper) for case in cases))  # type: ignore[arg-type]
        if lower is not None:
            found.append(of_lower(self._within(case, lower, None) for case in cases))  # type: ignore[arg-type]
        return both(found)  # type: ignore[arg-type,return-value]

    def _one_atom(self, atom: object, lower: Expr | None, upper: Expr | None) -> Solved:
        match atom:
            case Value():
                return Span(lower, upper)
            case Quotient(dividend, divisor):
                lower = None if lower is None else self.terms.near(lower, divisor) * divisor
                upper = None if upper is None else self.terms.near(upper, divisor) * divisor + (divisor - 1)
                return self._within(dividend, lower, upper)
            case Entry(table, index) if table in self.ascending:
                first = None if lower is None else self.terms.search(table, lower)
                last = None if upper is None else self.terms.search(table, upper + 1) - 1
                return self._within(index, first, last)
            case Entry():
                return self._unsolved(entry_reason(atom))
            case _:
                assert isinstance(atom, Opaque)
                return self._unsolved(opaque_reason(atom.ssa))

    def _divided(self, lower: Expr | None, upper: Expr | None, factor: int) -> tuple[Expr | None, Expr | None]:
        """Bounds of an atom from those of its multiple."""
        if factor < 0:
            lower, upper = _negative(upper), _negative(lower)
        if abs(factor) == 1:
            return lower, upper
        rounded_up = None if lower is None else self.terms.quotient(lower * -1, abs(factor)) * -1
        return rounded_up, None if upper is None else self.terms.quotient(upper, abs(factor))

    def _flip(self, guard: Guard) -> Formula:
        """The negation of a condition that does not depend on the key."""
        match guard.condition:
            case NonNegative(expr):
                return guards(expr, None, constant(-1))
            case All(items):
                return either(self._flip(Guard(item)) for item in items)
            case Flag(ssa):
                true = self.terms.builder.insert(xdsl_arith.ConstantOp(IntegerAttr(1, i1))).result
                return Guard(Flag(self.terms.builder.insert(xdsl_arith.XOrIOp(ssa, true)).result))

    # ---- sets ----

    def sets(self, formula: Solved) -> Sets:
        """The sets of a solved formula."""
        bounds, items = self.terms.bounds, formula.items if isinstance(formula, Either) else (formula,)
        pieces = [piece_of(item.items if isinstance(item, Both) else (item,), bounds) for item in items]  # type: ignore[arg-type]
        pieces = [piece for piece in pieces if not piece.never(bounds)]
        parts = [self._piece(piece) for piece in merged(pieces, bounds, of_atom(Value(self.keys)))]
        if not parts:
            return _exact(self._insert(interval.ConcatOp([])))
        return _joined(parts, lambda a, b: self._insert(interval.UnionOp(a, b)))

    def _piece(self, piece: Piece) -> Sets:
        span, cycles = piece.span, list(piece.cycles)
        parts = [_exact(part) for part in emit_cycles(self.terms, self.keys, cycles, span.lower, span.upper)]
        span = Span(*beyond_lines(self.terms, cycles, span.lower, span.upper))
        if span.lower is not None or span.upper is not None or not (cycles or piece.rest):
            parts.append(_exact(self._range(span)))
        for item in piece.rest:
            parts.append(self._unknown() if isinstance(item, Unknown) else self.sets(item))
        found = _joined(parts, lambda a, b: self._insert(interval.IntersectOp(a, b)))
        if not piece.conditions:
            return found
        condition = self.terms.emitter.emit_condition(conjunction(*piece.conditions))
        return _each(found, lambda part: self._insert(interval.WhenOp(condition, part)))

    def _range(self, span: Span) -> SSAValue:
        emitter = self.terms.emitter
        lo = emitter.emit(constant(0) if span.lower is None else span.lower)
        hi = self.keys if span.upper is None else emitter.emit(span.upper + 1)
        return self._insert(interval.RangeOp(lo, hi))

    def _unknown(self) -> Sets:
        return Sets(self._insert(interval.ConcatOp([])), self._range(Span(None, None)))

    def _insert(self, op: Operation) -> SSAValue:
        return self.terms.builder.insert(op).results[0]


def lower_predicate(
    op: mask.WhereOp,
    builder: Builder,
    values: Mapping[SSAValue, Any],
    frame: Frame,
    row: SSAValue,
    keys: SSAValue,
    ascending: frozenset[SSAValue],
) -> Sets:
    """The sets of a `mask.where`, emitted at `builder`.

    `values` maps the mask function's values to the interval function's, `frame` says what positions the predicate
    sees, `row` and `keys` are the interval function's row and number of keys, and `ascending` those of its tables whose
    entries ascend.
    """
    query, key = op.body.block.args
    bounds = Bounds()
    terms = Terms(builder, bounds, key)
    kv = terms.kv if frame.first_key is None else terms.kv - lift(bounds, frame.first_key)
    q, queries, count = (lift(bounds, value) for value in (frame.q, frame.queries, frame.keys))
    for small, large in ((constant(0), q), (q, queries - 1), (constant(0), kv), (kv, count - 1)):
        bounds.assume_le(small, large)
    known = {old: new for old, new in values.items() if is_value(new)} | {query: frame.q}
    reader = PredicateReader(terms, known, (frame.queries, frame.keys), key, kv)
    end = op.body.block.last_op
    assert isinstance(end, mask.YieldOp)
    lowering = PredicateLowering(terms, row, keys, ascending)
    formula = lowering.substituted(reader.formula(end.visible))
    sets = lowering.sets(lowering.solve(formula))
    return sets._replace(why=tuple(terms.reasons))


def _exact(value: SSAValue) -> Sets:
    return Sets(value, value)


def _each(sets: Sets, operation: Callable[[SSAValue], SSAValue]) -> Sets:
    inner = operation(sets.inner)
    return _exact(inner) if sets.inner is sets.outer else Sets(inner, operation(sets.outer))


def _joined(parts: list[Sets], operation: Callable[[SSAValue, SSAValue], SSAValue]) -> Sets:
    inner = reduce(operation, [part.inner for part in parts])
    if all(part.inner is part.outer for part in parts):
        return _exact(inner)
    return Sets(inner, reduce(operation, [part.outer for part in parts]))


def _shifted(bound: Expr | None, by: Expr) -> Expr | None:
    return None if bound is None else bound - by


def _negative(bound: Expr | None) -> Expr | None:
    return None if bound is None else bound * -1


__all__ = ["Frame", "PredicateLowering", "Sets", "lower_predicate"]
