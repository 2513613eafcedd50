"""`interval-normalize`: any composition of interval sets becomes sorted, disjoint intervals.

Unions, intersections, complements and guards are computed on symbolic bounds (interval_sets.py). Where that would
need more intervals than allowed, or a part of the mask is a mere predicate, the result is a `between`: an inner and
an outer set, and the predicate that decides in between, which is the membership test of the original sets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects.builtin import FunctionType, ModuleOp, i32
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint
from xdsl.traits import is_side_effect_free

from compilemask.dialects import interval
from compilemask.errors import LoweringError
from compilemask.passes.bound_emission import BoundEmitter
from compilemask.passes.bounds import (
    Bounds,
    Condition,
    Value,
    conjunction,
    function_bounds,
    lift,
    lift_condition,
    of_atom,
)
from compilemask.passes.interval_membership import MembershipEmitter
from compilemask.passes.interval_sets import Family, Range, RowSet, SetAlgebra, TooComplex


@dataclass(frozen=True)
class Enclosure:
    """A set known from both sides; it is exact if both are the same object."""

    inner: RowSet
    outer: RowSet

    @property
    def exact(self) -> bool:
        """Whether the set is known."""
        return self.inner is self.outer


@dataclass
class Normalizer:
    """Computes the enclosure of each set value of one function."""

    bounds: Bounds
    algebra: SetAlgebra
    reasons: dict[str, None] = field(default_factory=dict[str, None])
    """What made sets inexact, in order."""
    _known: dict[SSAValue, Enclosure] = field(default_factory=dict[SSAValue, Enclosure])
    _conditions: dict[SSAValue, Condition | None] = field(default_factory=dict[SSAValue, Condition | None])

    def enclosure(self, value: SSAValue) -> Enclosure:
        """The enclosure of a set; worked out once, however many sets are made of it."""
        if value not in self._known:
            self._known[value] = self._enclosure(value)
        return self._known[value]

    def _enclosure(self, value: SSAValue) -> Enclosure:
        op = value.owner
        match op:
            case interval.RangeOp():
                return _exact(RowSet((Range(lift(self.bounds, op.lo), lift(self.bounds, op.hi)),)))
            case interval.FamilyOp():
                return _exact(RowSet((), (self._family(op),)))
            case interval.WhenOp():
                condition = lift_condition(self.bounds, op.condition)
                return self._monotone(partial(self.algebra.when, condition), op.value)
            case interval.ConcatOp():
                return self._concat(op)
            case interval.UnionOp():
                return self._union(op)
            case interval.IntersectOp():
                return self._intersection(op)
            case interval.ComplementOp():
                return self._complement(op)
            case interval.BetweenOp():
                self.reasons.update(dict.fromkeys(op.reasons))
                inner, outer = self.enclosure(op.inner), self.enclosure(op.outer)
                return Enclosure(inner.inner, outer.outer)
            case _:
                name = op.name if isinstance(op, Operation) else "a block argument"
                raise LoweringError(f"interval-normalize: cannot take a set from {name}")

    def _family(self, op: interval.FamilyOp) -> Family:
        member = op.body.block.last_op
        assert isinstance(member, interval.MemberOp)
        first, last, base, pitch, lo, hi = (
            lift(self.bounds, value) for value in (op.first, op.last, op.base, op.pitch, member.lo, member.hi)
        )
        lines = frozenset({op.body.block.args[0]})
        # No line lies before the first one: this is what shows that cells start at or behind the base.
        self.bounds.assume_le(first, of_atom(Value(op.body.block.args[0])))
        return Family(first, last, base, pitch, lo, hi, lines, interval.set_of(op.result).count)

    def _concat(self, op: interval.ConcatOp) -> Enclosure:
        parts = [self.enclosure(part) for part in op.parts]

        def joined(sets: list[RowSet]) -> RowSet:
            return RowSet(
                tuple(item for part in sets for item in part.ranges),
                tuple(item for part in sets for item in part.families),
            )

        inner = joined([part.inner for part in parts])
        if all(part.exact for part in parts):
            return _exact(inner)
        return Enclosure(inner, joined([part.outer for part in parts]))

    def _monotone(self, operation: Callable[..., RowSet], *operands: SSAValue) -> Enclosure:
        """An operation that grows with its operands, applied to both sides."""
        parts = [self.enclosure(operand) for operand in operands]
        inner = self._or_else(None, operation, *(part.inner for part in parts))
        if inner is not None and all(part.exact for part in parts):
            return _exact(inner)
        outer = self._or_else(None, operation, *(part.outer for part in parts))
        return Enclosure(inner or RowSet(), outer or self.algebra.everything)

    def _union(self, op: interval.UnionOp) -> Enclosure:
        found = self._alternation(op)
        if found is None or not found.exact:
            found = self._monotone(self.algebra.union, op.lhs, op.rhs)
        if found.inner.ranges or found.inner.families:
            return found
        # Each operand lies inside the union; the one with more parts is likely the larger one.
        inner = max(
            (self.enclosure(part).inner for part in (op.lhs, op.rhs)), key=lambda s: len(s.ranges) + len(s.families)
        )
        return found if found.exact else Enclosure(inner, found.outer)

    def _alternation(self, op: interval.UnionOp) -> Enclosure | None:
        """The union of two sets that no row sees both of: no more ranges than the larger one has."""
        rows, other = self._rows(op.lhs), self._rows(op.rhs)
        if rows is None or other is None or not self.algebra.exclude(rows, other):
            return None
        return self._monotone(partial(self.algebra.alternate, rows), op.lhs, op.rhs)

    def _rows(self, value: SSAValue) -> Condition | None:
        """A condition without which a row sees nothing of a set."""
        if value not in self._conditions:
            self._conditions[value] = self._rows_of(value.owner)
        return self._conditions[value]

    def _rows_of(self, op: object) -> Condition | None:
        match op:
            case interval.WhenOp():
                return lift_condition(self.bounds, op.condition)
            case interval.IntersectOp():
                known = [rows for operand in op.operands if (rows := self._rows(operand)) is not None]
                return conjunction(*known) if known else None
            case interval.UnionOp():
                lhs, rhs = (self._rows(operand) for operand in op.operands)
                return None if lhs is None or rhs is None else self.algebra.either(lhs, rhs)
            case _:
                return None

    def _or_else(self, fallback: RowSet | None, operation: Callable[..., RowSet], *operands: RowSet) -> RowSet | None:
        try:
            return operation(*operands)
        except TooComplex as reason:
            self.reasons[str(reason)] = None
            return fallback

    def _intersection(self, op: interval.IntersectOp) -> Enclosure:
        lhs, rhs = self.enclosure(op.lhs), self.enclosure(op.rhs)
        inner = self._or_else(None, self.algebra.intersect, lhs.inner, rhs.inner)
        if inner is not None and lhs.exact and rhs.exact:
            return _exact(inner)
        outer = self._or_else(None, self.algebra.intersect, lhs.outer, rhs.outer)
        if outer is None:
            # Either operand encloses the result; the one with fewer parts is cheaper to follow.
            outer = min(lhs.outer, rhs.outer, key=lambda s: len(s.ranges) + len(s.families))
        return Enclosure(inner or RowSet(), outer)

    def _complement(self, op: interval.ComplementOp) -> Enclosure:
        """The sides swap: what is outside the outer set is surely in the complement."""
        part = self.enclosure(op.value)
        inner = self._or_else(None, self.algebra.complement, part.outer)
        if inner is not None and part.exact:
            return _exact(inner)
        outer = self._or_else(None, self.algebra.complement, part.inner)
        return Enclosure(inner or RowSet(), outer or self.algebra.everything)


def _exact(value: RowSet) -> Enclosure:
    return Enclosure(value, value)


# ---- back to IR ----


def _emit_set(emitter: BoundEmitter, value: RowSet, hint: str) -> SSAValue:
    """A row set as a concat of ranges, then families, called `hint` in printed IR."""
    numbers = [""] if len(value.ranges) == 1 else [str(number) for number in range(len(value.ranges))]
    parts: list[SSAValue] = []
    for item, number in zip(value.ranges, numbers, strict=False):
        lo, hi = emitter.emit_named(item.lo, f"lo{number}"), emitter.emit_named(item.hi, f"hi{number}")
        parts.append(emitter.builder.insert(interval.RangeOp(lo, hi)).result)
        parts[-1].name_hint = f"range{number}"
    parts += [_emit_family(emitter, family) for family in value.families]
    joined = emitter.builder.insert(interval.ConcatOp(parts)).result
    joined.name_hint = hint
    return joined


def _emit_family(emitter: BoundEmitter, family: Family) -> SSAValue:
    named = {"first": family.first, "last": family.last, "base": family.base, "pitch": family.pitch}
    first, last, base, pitch = (emitter.emit_named(expr, hint) for hint, expr in named.items())
    block = Block(arg_types=[i32])
    line = block.args[0]
    line.name_hint = "line"
    inside = BoundEmitter(Builder(InsertPoint.at_end(block)), emitter, family.lines, line)
    inside.builder.insert(interval.MemberOp(inside.emit_named(family.lo, "lo"), inside.emit_named(family.hi, "hi")))
    lines = emitter.builder.insert(interval.FamilyOp(first, last, base, pitch, Region(block), family.arity)).result
    lines.name_hint = "lines"
    return lines


def normalize(func: interval.FuncOp, max_ranges: int = 8) -> None:
    """Rewrite one function into normal form, in place."""
    terminator = func.body.block.last_op
    assert isinstance(terminator, interval.ReturnOp)
    bounds = function_bounds(func)
    keys = of_atom(Value(func.body.block.args[2]))
    normalizer = Normalizer(bounds, SetAlgebra(bounds, keys, max_ranges))
    found = normalizer.enclosure(terminator.value)
    emitter = BoundEmitter(Builder(InsertPoint.before(terminator)))
    outer = _emit_set(emitter, found.outer, "visible" if found.exact else "outer")
    result = outer
    if not found.exact:
        inner = _emit_set(emitter, found.inner, "inner")
        between = interval.BetweenOp(inner, outer, why=tuple(normalizer.reasons))
        MembershipEmitter(func, between.body.block).emit(terminator.value)
        result = emitter.builder.insert(between).result
        result.name_hint = "visible"
    terminator.operands[0] = result
    func.function_type = FunctionType.from_lists(func.function_type.inputs.data, [result.type])
    erase_dead_operations(func.body.block)


def erase_dead_operations(block: Block) -> None:
    """Erase operations without effects whose results nobody uses."""
    for op in reversed(list(block.ops)):
        if is_side_effect_free(op) and not any(result.uses for result in op.results):
            op.detach()
            op.erase()


@dataclass(frozen=True)
class IntervalNormalizePass(ModulePass):
    """Bring every interval function to sorted, disjoint intervals; at most `max_arity` of them are closed-form."""

    name = "interval-normalize"

    max_arity: int = 8

    def __post_init__(self) -> None:
        if self.max_arity < 0:
            raise ValueError(f"max-arity {self.max_arity} is negative")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for func in list(op.walk()):
            if isinstance(func, interval.FuncOp):
                normalize(func, self.max_arity)
