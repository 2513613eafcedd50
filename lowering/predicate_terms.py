"""Integers of a predicate as linear combinations, in which the key position stands open.

The expressions of passes/bounds.py serve here too. What does not depend on the key is a value of the interval
function and is emitted there; what does is kept as the *atoms* below: the key position itself, quotients, entries of
tables, choices, and values that are not looked into. Quotients are kept in a normal form: `(x // a) // b` is
`x // (a * b)`, and multiples of the divisor stand outside, so that `(kv // 8) % 4` and `(kv % 32) // 8` are one
expression.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from xdsl.builder import Builder
from xdsl.dialects import arith as xdsl_arith
from xdsl.ir import SSAValue

from compilemask.dialects import interval
from compilemask.passes.bound_emission import BoundEmitter
from compilemask.passes.bounds import Bounds, Expr, Extreme, Node, Product, Select, Value, constant, of_atom

FAR = 2**30
"""Positions stay below it."""


@dataclass(frozen=True, eq=False)
class Quotient(Node):
    """floor(dividend / divisor), divisor >= 2, where the dividend depends on the key."""

    dividend: Expr
    divisor: int

    def __post_init__(self) -> None:
        self._seal((self.dividend, self.divisor), 1 + self.dividend.size)


@dataclass(frozen=True, eq=False)
class Entry(Node):
    """The entry of a table at an index that depends on the key."""

    table: SSAValue
    index: Expr

    def __post_init__(self) -> None:
        self._seal((self.table, self.index), 1 + self.index.size)


@dataclass(frozen=True, eq=False)
class Choice(Node):
    """`then` where a formula holds, else `other`."""

    formula: Any
    then: Expr
    other: Expr

    def __post_init__(self) -> None:
        self._seal((self.formula, self.then, self.other), 1 + self.then.size + self.other.size)


@dataclass(frozen=True, eq=False)
class Opaque(Node):
    """A value that depends on the key in a way that is not looked into."""

    ssa: SSAValue

    def __post_init__(self) -> None:
        self._seal((self.ssa,), 1)


def expression(atom: Any) -> Expr:
    """The expression of one atom, of this module's or of passes/bounds.py."""
    return of_atom(atom)


@dataclass
class Terms:
    """Makes expressions of one predicate, and emits those that do not depend on the key into the interval function."""

    builder: Builder
    bounds: Bounds
    key: SSAValue
    emitter: BoundEmitter = field(init=False)
    reasons: dict[str, None] = field(default_factory=dict[str, None])
    """Why constraints were not solved, in order."""
    _emitted: dict[object, SSAValue] = field(default_factory=dict[object, SSAValue])

    def __post_init__(self) -> None:
        self.emitter = BoundEmitter(self.builder)

    @property
    def kv(self) -> Expr:
        """The key position."""
        return of_atom(Value(self.key))

    # ---- looking at expressions ----

    def open_atoms(self, expr: Expr) -> list[tuple[Any, int]]:
        """The terms that depend on the key."""
        return [(atom, factor) for atom, factor in expr.terms if self._is_open(atom)]

    def is_free(self, expr: Expr) -> bool:
        """Whether the expression does not depend on the key."""
        return not self.open_atoms(expr)

    def free_part(self, expr: Expr) -> Expr:
        """What remains of the expression without its open terms."""
        return Expr(expr.constant, tuple((atom, factor) for atom, factor in expr.terms if not self._is_open(atom)))

    def _is_open(self, atom: Any) -> bool:
        match atom:
            case Value(ssa):
                return ssa is self.key
            case Extreme(_, items):
                return any(not self.is_free(item) for item in items)
            case Product(lhs, rhs) | Select(_, lhs, rhs):
                return not (self.is_free(lhs) and self.is_free(rhs))
            case _:
                return True

    # ---- making expressions ----

    def quotient(self, dividend: Expr, divisor: int) -> Expr:
        """floor(dividend / divisor) in normal form, divisor >= 1."""
        if divisor == 1:
            return dividend
        outside = Expr(
            dividend.constant // divisor,
            tuple((atom, factor // divisor) for atom, factor in dividend.terms if factor % divisor == 0),
        )
        rest = dividend - outside * divisor
        return outside + self._proper_quotient(rest, divisor)

    def _proper_quotient(self, rest: Expr, divisor: int) -> Expr:
        if rest.is_constant:
            return constant(rest.constant // divisor)
        # (n * (x // a) + c) // (n * d), 0 <= c < n * d, is (x // a + c // n) // d, and that a quotient of x again.
        (atom, factor), *others = rest.terms
        if not others and isinstance(atom, Quotient) and factor > 0 and divisor % factor == 0:
            inner = atom.dividend + (rest.constant // factor) * atom.divisor
            return self.quotient(inner, atom.divisor * (divisor // factor))
        if not self.is_free(rest):
            return expression(Quotient(rest, divisor))
        return self._value(
            ("quotient", rest, divisor),
            lambda: xdsl_arith.FloorDivSIOp(self.emitter.emit(rest), self.emitter.emit(constant(divisor))),
        )

    def entry(self, table: SSAValue, index: Expr) -> Expr:
        """The entry of a table."""
        if not self.is_free(index):
            return expression(Entry(table, index))
        return self._value(("entry", table, index), lambda: interval.ReadOp(table, self.emitter.emit(index)))

    def search(self, table: SSAValue, value: Expr) -> Expr:
        """The first position of an ascending table with at least a value that does not depend on the key."""
        key = ("search", table, value)
        is_new = key not in self._emitted
        found = self._value(key, lambda: interval.SearchOp(table, self.emitter.emit(value)))
        if is_new:
            self._learn(table, value, found)
        return found

    def _learn(self, table: SSAValue, value: Expr, found: Expr) -> None:
        """A table's entry at p is found at p or before it, a larger value behind p."""
        for atom, factor in value.terms:
            read = atom.ssa.owner if isinstance(atom, Value) else None
            above = value - of_atom(atom) * factor
            if factor == 1 and isinstance(read, interval.ReadOp) and read.table is table and above.is_constant:
                position = of_atom(Value(read.index))
                if above.constant <= 0:
                    self.bounds.assume_le(found, position)
                else:
                    self.bounds.assume_le(position + 1, found)

    def near(self, bound: Expr, factor: int) -> Expr:
        """A bound that may be multiplied by a factor: what comes from a table is brought into reach of positions."""
        owners = [atom.ssa.owner for atom, _ in bound.terms if isinstance(atom, Value)]
        if factor == 1 or not any(isinstance(owner, interval.SearchOp | interval.ReadOp) for owner in owners):
            return bound
        reach = constant(FAR // factor - 1)
        return self.extreme("max", [self.extreme("min", [bound, reach]), reach * -1])

    def extreme(self, kind: str, items: list[Expr]) -> Expr:
        """The minimum ("min") or maximum ("max")."""
        return self.bounds.maximum(*items) if kind == "max" else self.bounds.minimum(*items)

    def _value(self, key: object, make: Callable[[], Any]) -> Expr:
        if key not in self._emitted:
            self._emitted[key] = self.builder.insert(make()).results[0]
        return of_atom(Value(self._emitted[key]))

    # ---- rewriting ----

    def substitute(
        self, expr: Expr, old: object, new: Expr, choice: Callable[[Choice, Callable[[Expr], Expr]], Expr]
    ) -> Expr:
        """The expression with `new` in the place of an atom; `choice` rewrites choices."""

        def again(part: Expr) -> Expr:
            return self.substitute(part, old, new, choice)

        result = constant(expr.constant)
        for atom, factor in expr.terms:
            replaced = None
            if atom == old:
                replaced = new
            elif self._is_open(atom):
                replaced = self._with_parts(atom, again, choice)
            result = result + (of_atom(atom) if replaced is None else replaced) * factor
        return result

    def _with_parts(
        self, atom: Node, again: Callable[[Expr], Expr], choice: Callable[[Choice, Callable[[Expr], Expr]], Expr]
    ) -> Expr | None:
        """The atom with other parts; None if it has none that may be put in another's place."""
        match atom:
            case Quotient(dividend, divisor):
                return self.quotient(again(dividend), divisor)
            case Entry(table, index):
                return self.entry(table, again(index))
            case Extreme(kind, items):
                return self.extreme(kind, [again(item) for item in items])
            case Choice():
                return choice(atom, again)
            case _:
                return None
