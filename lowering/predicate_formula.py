"""A predicate as a formula over linear constraints, read from the body of a `mask.where`.

Negations are pushed down to the constraints, so that a formula grows with each of its parts: where one part is unknown,
taking it as false gives an inner set, and taking it as true an outer one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from xdsl.builder import Builder
from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import IntegerAttr, i1
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.traits import ConstantLike

from compilemask.dialects import arith, interval, mask
from compilemask.lowering.predicate_terms import Choice, Opaque, Terms, expression
from compilemask.passes.bounds import Condition, Expr, Flag, NonNegative, constant, lift


@dataclass(frozen=True)
class Within:
    """lower <= expr <= upper; a missing bound is no bound."""

    expr: Expr
    lower: int | None
    upper: int | None


@dataclass(frozen=True)
class Guard:
    """A condition that does not depend on the key."""

    condition: Condition


@dataclass(frozen=True)
class Unknown:
    """A truth value that is not looked into."""


@dataclass(frozen=True)
class Both:
    """All of the items hold."""

    items: tuple[Formula, ...]


@dataclass(frozen=True)
class Either:
    """One of the items holds."""

    items: tuple[Formula, ...]


Formula: TypeAlias = Within | Guard | Unknown | Both | Either

TRUE, FALSE, UNKNOWN = Both(()), Either(()), Unknown()


def both(items: Iterable[Formula]) -> Formula:
    """The conjunction, flat."""
    flat: dict[Formula, None] = {}
    for item in items:
        flat.update(dict.fromkeys(item.items if isinstance(item, Both) else (item,)))
    return FALSE if FALSE in flat else next(iter(flat)) if len(flat) == 1 else Both(tuple(flat))


def either(items: Iterable[Formula]) -> Formula:
    """The disjunction, flat."""
    flat: dict[Formula, None] = {}
    for item in items:
        flat.update(dict.fromkeys(item.items if isinstance(item, Either) else (item,)))
    return TRUE if TRUE in flat else next(iter(flat)) if len(flat) == 1 else Either(tuple(flat))


@dataclass
class PredicateReader:
    """Reads the body of a `mask.where`. `values` maps what the body mentions of its function to the interval
    function's values, `query` the body's query position among them.
    """

    terms: Terms
    values: dict[SSAValue, SSAValue]
    sizes: tuple[SSAValue, SSAValue]
    """The numbers of queries and of keys."""
    key: SSAValue
    position: Expr
    """What the predicate takes for the key's position."""
    _free: dict[SSAValue, bool] = field(default_factory=dict[SSAValue, bool])
    _clones: dict[object, SSAValue] = field(default_factory=dict[object, SSAValue])
    _integers: dict[SSAValue, Expr] = field(default_factory=dict[SSAValue, Expr])

    # ---- truth values ----

    def formula(self, value: SSAValue, positive: bool = True) -> Formula:
        """The formula of an i1 value, or of its negation."""
        op = value.owner
        match op:
            case xdsl_arith.ConstantOp():
                assert isinstance(op.value, IntegerAttr)
                return TRUE if bool(op.value.value.data) == positive else FALSE
            case xdsl_arith.AndIOp() | xdsl_arith.OrIOp():
                join = both if isinstance(op, xdsl_arith.AndIOp) == positive else either
                return join([self.formula(op.lhs, positive), self.formula(op.rhs, positive)])
            case xdsl_arith.XOrIOp():
                return self._differ(op.lhs, op.rhs, positive)
            case arith.CmpiOp() if op.operands[0].type == i1 and op.predicate_name in ("eq", "ne"):
                return self._differ(op.operands[0], op.operands[1], positive == (op.predicate_name == "ne"))
            case arith.CmpiOp() if op.predicate_name in _NEGATED:
                return self._comparison(op, positive)
            case arith.SelectOp():
                condition, then, other = op.operands
                return either(
                    [
                        both([self.formula(condition), self.formula(then, positive)]),
                        both([self.formula(condition, False), self.formula(other, positive)]),
                    ]
                )
            case _ if self.is_free(value):
                return self._flag(value, positive)
            case _:
                self.terms.reasons["a truth value of the predicate is not a comparison of integers"] = None
                return UNKNOWN

    def _differ(self, lhs: SSAValue, rhs: SSAValue, positive: bool) -> Formula:
        """lhs != rhs, or if not `positive`, lhs == rhs."""
        return either(
            [
                both([self.formula(lhs), self.formula(rhs, not positive)]),
                both([self.formula(lhs, False), self.formula(rhs, positive)]),
            ]
        )

    def _comparison(self, op: arith.CmpiOp, positive: bool) -> Formula:
        name = op.predicate_name if positive else _NEGATED[op.predicate_name]
        difference = self.integer(op.operands[0]) - self.integer(op.operands[1])
        return either(self._constraint(Within(difference, *bounds)) for bounds in _RANGES[name])

    def _constraint(self, within: Within) -> Formula:
        return guard(within) if self.terms.is_free(within.expr) else within

    def _flag(self, value: SSAValue, positive: bool) -> Formula:
        flag = self.clone(value)
        if not positive:
            true = self.terms.builder.insert(xdsl_arith.ConstantOp(IntegerAttr(1, i1))).result
            flag = self.terms.builder.insert(xdsl_arith.XOrIOp(flag, true)).result
        return Guard(Flag(flag))

    # ---- integers ----

    def integer(self, value: SSAValue) -> Expr:
        """The expression of an i32 value."""
        if value not in self._integers:
            self._integers[value] = self._read_integer(value)
        return self._integers[value]

    def _read_integer(self, value: SSAValue) -> Expr:
        if value is self.key:
            return self.position
        if self.is_free(value):
            return lift(self.terms.bounds, self.clone(value))
        op = value.owner
        assert isinstance(op, Operation)
        known = self._operation(op)
        return expression(Opaque(value)) if known is None else known

    def _operation(self, op: Operation) -> Expr | None:
        """The expression of an operation that depends on the key; None if it is not looked into."""
        terms = self.terms
        match op:
            case xdsl_arith.AddiOp():
                return self.integer(op.lhs) + self.integer(op.rhs)
            case xdsl_arith.SubiOp():
                return self.integer(op.lhs) - self.integer(op.rhs)
            case xdsl_arith.MuliOp():
                return self._product(self.integer(op.lhs), self.integer(op.rhs))
            case xdsl_arith.MaxSIOp() | xdsl_arith.MinSIOp():
                kind = "max" if isinstance(op, xdsl_arith.MaxSIOp) else "min"
                return terms.extreme(kind, [self.integer(op.lhs), self.integer(op.rhs)])
            case arith.SelectOp():
                condition, then, other = op.operands
                return choice(terms, self.formula(condition), self.integer(then), self.integer(other))
            case mask.ReadOp():
                return terms.entry(self.values[op.table], self.integer(op.index))
            case arith.ExtUIOp() if op.input.type == i1:
                return choice(terms, self.formula(op.input), constant(1), constant(0))
            case _ if len(op.operands) == 2:
                return self._with_constant(op, self.integer(op.operands[0]), self._constant(op.operands[1]))
            case _:
                return None

    def _product(self, lhs: Expr, rhs: Expr) -> Expr | None:
        if lhs.is_constant:
            return rhs * lhs.constant
        return lhs * rhs.constant if rhs.is_constant else None

    def _with_constant(self, op: Operation, lhs: Expr, rhs: int | None) -> Expr | None:
        """Division, shifts and masks by a constant. Truncating division is floored where nothing is negative."""
        if rhs is None or rhs < 0:
            return None
        floors = isinstance(op, xdsl_arith.FloorDivSIOp) or self.terms.bounds.non_negative(lhs)
        match op:
            case xdsl_arith.FloorDivSIOp() | xdsl_arith.DivSIOp() if rhs and floors:
                return self.terms.quotient(lhs, rhs)
            case xdsl_arith.RemSIOp() if rhs and floors:
                return lhs - self.terms.quotient(lhs, rhs) * rhs
            case xdsl_arith.ShRSIOp() if rhs < 31:
                return self.terms.quotient(lhs, 1 << rhs)
            case xdsl_arith.ShLIOp() if rhs < 31:
                return lhs * (1 << rhs)
            case xdsl_arith.AndIOp() if rhs & (rhs + 1) == 0:
                return lhs - self.terms.quotient(lhs, rhs + 1) * (rhs + 1)
            case _:
                return None

    def _constant(self, value: SSAValue) -> int | None:
        found = ConstantLike.get_constant_value(value)
        return found.value.data if isinstance(found, IntegerAttr) else None

    # ---- what does not depend on the key ----

    def is_free(self, value: SSAValue) -> bool:
        """Whether a value of the body does not depend on the key."""
        if value not in self._free:
            op = value.owner
            operands = op.operands if isinstance(op, Operation) and value not in self.values else ()
            self._free[value] = value is not self.key and all(self.is_free(operand) for operand in operands)
        return self._free[value]

    def clone(self, value: SSAValue) -> SSAValue:
        """The value in the interval function; equal operations are emitted once."""
        if value in self.values:
            return self.values[value]
        op = value.owner
        assert isinstance(op, Operation)
        if isinstance(op, mask.QueriesOp | mask.KeysOp):
            return self.sizes[isinstance(op, mask.KeysOp)]
        operands = [self.clone(operand) for operand in op.operands]
        attributes = (*op.properties.items(), *op.attributes.items())
        signature = (op.name, tuple(operands), tuple((name, _hashable(item)) for name, item in attributes))
        if signature not in self._clones:
            self._clones[signature] = self._cloned(op, operands)
        self.values[value] = self._clones[signature]
        return self.values[value]

    def _cloned(self, op: Operation, operands: list[SSAValue]) -> SSAValue:
        builder: Builder = self.terms.builder
        if isinstance(op, mask.ReadOp):
            return builder.insert(interval.ReadOp(*operands)).result
        if isinstance(op, mask.SearchOp):
            return builder.insert(interval.SearchOp(*operands)).result
        clone = op.clone(value_mapper=dict(zip(op.operands, operands, strict=True)))
        return builder.insert(clone).results[0]


def _hashable(attribute: Attribute) -> object:
    return attribute if attribute.__hash__ is not None else str(attribute)


_RANGES: dict[str, tuple[tuple[int | None, int | None], ...]] = {
    "eq": ((0, 0),),
    "ne": ((None, -1), (1, None)),
    "slt": ((None, -1),),
    "sle": ((None, 0),),
    "sgt": ((1, None),),
    "sge": ((0, None),),
}
"""By predicate of arith.cmpi: where the difference of its operands lies."""
_NEGATED = {"eq": "ne", "ne": "eq", "slt": "sge", "sge": "slt", "sgt": "sle", "sle": "sgt"}


def choice(terms: Terms, formula: Formula, then: Expr, other: Expr) -> Expr:
    """`then` where a formula holds, else `other`."""
    match formula:
        case Both(()):
            return then
        case Either(()):
            return other
        case Guard(condition) if terms.is_free(then) and terms.is_free(other):
            return terms.bounds.select(condition, then, other)
        case _:
            return then if then == other else expression(Choice(formula, then, other))


def guard(within: Within) -> Formula:
    """A constraint that does not depend on the key."""
    return guards(within.expr, _as_expr(within.lower), _as_expr(within.upper))


def _as_expr(bound: int | None) -> Expr | None:
    return None if bound is None else constant(bound)


def guards(expr: Expr, lower: Expr | None, upper: Expr | None) -> Formula:
    """lower <= expr <= upper, of which nothing depends on the key."""
    wanted = [expr - lower] if lower is not None else []
    wanted += [upper - expr] if upper is not None else []
    found: list[Formula] = []
    for item in wanted:
        if item.is_constant:
            found.append(TRUE if item.constant >= 0 else FALSE)
        else:
            found.append(Guard(NonNegative(item)))
    return both(found)


def negated(formula: Formula, flip: Callable[[Guard], Formula]) -> Formula:
    """The negation; `flip` negates conditions that do not depend on the key."""
    match formula:
        case Both(items):
            return either(negated(item, flip) for item in items)
        case Either(items):
            return both(negated(item, flip) for item in items)
        case Within(expr, lower, upper):
            below = [Within(expr, None, lower - 1)] if lower is not None else []
            above = [Within(expr, upper + 1, None)] if upper is not None else []
            return either([*below, *above])
        case Guard():
            return flip(formula)
        case Unknown():
            return formula
