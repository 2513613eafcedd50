"""Symbolic interval bounds: integer expressions over SSA values, with a small prover and a way back to arith.

A bound is kept as a linear combination of *atoms*: SSA values, minima, maxima, selections and products. `Bounds`
knows facts about the values (0 <= q < queries, what `interval.segment_of` promises) and proves `a <= b` by
substituting bounds for atoms. The prover is sound and incomplete: a `False` means only that no proof was found, and
whoever asks must then emit code that does not need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Operation, SSAValue

from compilemask.dialects import interval
from compilemask.dialects.function import ascending_tables

PROOF_DEPTH = 7
"""How many substitutions deep a proof may go; bounds of real masks need two or three."""
PROOF_STEPS = 100
"""How many substitutions one proof may try in all."""
PROOF_SIZE = 60
"""Expressions with more terms than this are not worth a proof."""


# ---- expressions ----


class Node:
    """A node of an expression that knows its hash and its size, so that comparing and bounding large ones is cheap."""

    __slots__ = ("_hash", "_key", "size")

    def _seal(self, key: tuple[object, ...], size: int) -> None:
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "_hash", hash((type(self).__name__, key)))
        object.__setattr__(self, "size", size)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Node) or type(self) is not type(other) or self._hash != other._hash:
            return False
        if self._key is not other._key:
            if self._key != other._key:
                return False
            # Expressions share parts: what was found equal once is the same object from now on, and a comparison walks
            # each part once, not once per path to it.
            object.__setattr__(other, "_key", self._key)
        return True


@dataclass(frozen=True, eq=False)
class Value(Node):
    """An SSA value that is not looked into."""

    ssa: SSAValue

    def __post_init__(self) -> None:
        self._seal((self.ssa,), 1)


@dataclass(frozen=True, eq=False)
class Extreme(Node):
    """The minimum or maximum of at least two expressions."""

    kind: str
    items: tuple[Expr, ...]

    def __post_init__(self) -> None:
        self._seal((self.kind, self.items), 1 + sum(item.size for item in self.items))


@dataclass(frozen=True, eq=False)
class Select(Node):
    """`then` where the condition holds, else `other`."""

    condition: Condition
    then: Expr
    other: Expr

    def __post_init__(self) -> None:
        size = 1 + self.condition.size + self.then.size + self.other.size
        self._seal((self.condition, self.then, self.other), size)


@dataclass(frozen=True, eq=False)
class Product(Node):
    """A product of two expressions that both vary."""

    lhs: Expr
    rhs: Expr

    def __post_init__(self) -> None:
        self._seal((self.lhs, self.rhs), 1 + self.lhs.size + self.rhs.size)


Atom: TypeAlias = Value | Extreme | Select | Product


@dataclass(frozen=True, eq=False)
class Expr(Node):
    """constant + sum of coefficient * atom; coefficients are not 0 and atoms differ."""

    constant: int
    terms: tuple[tuple[Atom, int], ...] = ()

    def __post_init__(self) -> None:
        self._seal((self.constant, frozenset(self.terms)), 1 + sum(atom.size for atom, _ in self.terms))

    @property
    def is_constant(self) -> bool:
        """Whether no atom is left."""
        return not self.terms

    @property
    def atom(self) -> Atom | None:
        """The atom, if the expression is just one."""
        if self.constant == 0 and len(self.terms) == 1 and self.terms[0][1] == 1:
            return self.terms[0][0]
        return None

    def __add__(self, other: Expr | int) -> Expr:
        if isinstance(other, int):
            return Expr(self.constant + other, self.terms)
        merged: dict[Atom, int] = dict(self.terms)
        for atom, coefficient in other.terms:
            merged[atom] = merged.get(atom, 0) + coefficient
        return Expr(self.constant + other.constant, tuple((a, c) for a, c in merged.items() if c))

    def __mul__(self, factor: int) -> Expr:
        if factor == 0:
            return Expr(0)
        return Expr(self.constant * factor, tuple((a, c * factor) for a, c in self.terms))

    def __sub__(self, other: Expr | int) -> Expr:
        return self + (-other if isinstance(other, int) else other * -1)


def constant(value: int) -> Expr:
    """The expression of an integer."""
    return Expr(value)


def of_atom(atom: Atom) -> Expr:
    """The expression of one atom."""
    return Expr(0, ((atom, 1),))


def atoms(expr: Expr) -> Iterable[Atom]:
    """The atoms of an expression, not looking into them."""
    return (atom for atom, _ in expr.terms)


# ---- conditions ----


@dataclass(frozen=True, eq=False)
class NonNegative(Node):
    """expr >= 0."""

    expr: Expr

    def __post_init__(self) -> None:
        self._seal((self.expr,), 1 + self.expr.size)


@dataclass(frozen=True, eq=False)
class Flag(Node):
    """An i1 value that is not looked into."""

    ssa: SSAValue

    def __post_init__(self) -> None:
        self._seal((self.ssa,), 1)


@dataclass(frozen=True, eq=False)
class All(Node):
    """Every one of the conditions holds."""

    items: tuple[Condition, ...]

    def __post_init__(self) -> None:
        self._seal((self.items,), 1 + sum(item.size for item in self.items))


Condition: TypeAlias = NonNegative | Flag | All


# ---- facts and proofs ----


@dataclass
class Bounds:
    """Facts about the values of one function, and what follows from them."""

    lower: dict[Atom, list[Expr]] = field(default_factory=dict[Atom, list[Expr]])
    upper: dict[Atom, list[Expr]] = field(default_factory=dict[Atom, list[Expr]])
    _proofs: dict[Expr, bool] = field(default_factory=dict[Expr, bool])
    _failed: dict[Expr, int] = field(default_factory=dict[Expr, int])
    """How deep the search went that found no proof."""
    _steps: int = 0

    def assume_le(self, a: Expr, b: Expr) -> None:
        """Note that a <= b, for use in proofs about each atom of a and b that stands alone."""
        difference = b - a
        for atom, coefficient in difference.terms:
            rest = difference - of_atom(atom) * coefficient
            if coefficient == 1:
                self.lower.setdefault(atom, []).append(rest * -1)
            elif coefficient == -1:
                self.upper.setdefault(atom, []).append(rest)
        self._proofs.clear()
        self._failed.clear()

    def le(self, a: Expr, b: Expr) -> bool:
        """Whether a <= b is proved."""
        return self.non_negative(b - a)

    def non_negative(self, expr: Expr) -> bool:
        """Whether expr >= 0 is proved."""
        if expr not in self._proofs:
            self._steps = PROOF_STEPS
            self._proofs[expr] = self._prove(expr, PROOF_DEPTH)
        return self._proofs[expr]

    def _prove(self, expr: Expr, depth: int) -> bool:
        if expr.is_constant:
            return expr.constant >= 0
        if self._failed.get(expr, 0) >= depth:
            return False
        self._steps -= 1
        if self._steps < 0 or expr.size > PROOF_SIZE:
            return False
        proved = any(self._by_atom(expr, atom, coefficient, depth - 1) for atom, coefficient in expr.terms)
        if not proved and self._steps >= 0:
            self._failed[expr] = depth
        return proved

    def _by_atom(self, expr: Expr, atom: Atom, coefficient: int, depth: int) -> bool:
        """Prove expr >= 0 by putting something not better in the atom's place."""
        rest = expr - of_atom(atom) * coefficient

        def holds(replacement: Expr) -> bool:
            return self._prove(rest + replacement * coefficient, depth)

        match atom:
            case Extreme(kind, items):
                # max >= each item: one item suffices where more helps; where less helps, all must do.
                return (any if (kind == "max") == (coefficient > 0) else all)(holds(item) for item in items)
            case Select(_, then, other):
                return holds(then) and holds(other)
            case _:
                pass
        known = self.lower if coefficient > 0 else self.upper
        if any(holds(bound) for bound in known.get(atom, ())):
            return True
        if isinstance(atom, Product) and coefficient > 0:
            return self._prove(atom.lhs, depth) and self._prove(atom.rhs, depth) and holds(constant(0))
        return False

    # ---- simplifying constructors ----

    def maximum(self, *items: Expr) -> Expr:
        """The maximum, without items that are never the largest."""
        return self._extreme("max", items, lambda a, b: self.le(a, b))

    def minimum(self, *items: Expr) -> Expr:
        """The minimum, without items that are never the smallest."""
        return self._extreme("min", items, lambda a, b: self.le(b, a))

    def _extreme(self, kind: str, items: Iterable[Expr], absorbed: Callable[[Expr, Expr], bool]) -> Expr:
        kept: list[Expr] = []
        for item in _flatten(kind, items):
            if any(absorbed(item, other) for other in kept):
                continue
            kept = [other for other in kept if not absorbed(other, item)] + [item]
        return kept[0] if len(kept) == 1 else of_atom(Extreme(kind, tuple(kept)))

    def select(self, condition: Condition, then: Expr, other: Expr) -> Expr:
        """`then` if the condition holds, else `other`."""
        if then == other or self.always(condition):
            return then
        if isinstance(condition, NonNegative) and self.non_negative(condition.expr * -1 - 1):
            return other
        if isinstance(chosen := then.atom, Select) and chosen.condition == condition:
            return self.select(condition, chosen.then, other)
        return of_atom(Select(condition, then, other))

    def always(self, condition: Condition) -> bool:
        """Whether the condition is proved."""
        match condition:
            case NonNegative(expr):
                return self.non_negative(expr)
            case All(items):
                return all(self.always(item) for item in items)
            case Flag():
                return False

    def product(self, lhs: Expr, rhs: Expr) -> Expr:
        """lhs * rhs, distributed where one side is constant."""
        if lhs.is_constant:
            return rhs * lhs.constant
        if rhs.is_constant:
            return lhs * rhs.constant
        return of_atom(Product(lhs, rhs))


def _flatten(kind: str, items: Iterable[Expr]) -> Iterable[Expr]:
    for item in items:
        if isinstance(atom := item.atom, Extreme) and atom.kind == kind:
            yield from atom.items
        else:
            yield item


# ---- from SSA ----


def function_bounds(func: interval.FuncOp) -> Bounds:
    """What is known about the arguments of an interval function and about the results of its operations."""
    bounds = Bounds()
    q, queries, keys = (of_atom(Value(arg)) for arg in func.body.block.args[:3])
    bounds.assume_le(constant(0), q)
    bounds.assume_le(q, queries - 1)
    bounds.assume_le(constant(0), keys)
    _assume_ascending(bounds, func)
    for op in func.body.walk():
        if isinstance(op, interval.SegmentOfOp):
            position = lift(bounds, op.position)
            begin, end = of_atom(Value(op.begin)), of_atom(Value(op.end))
            bounds.assume_le(constant(0), begin)
            bounds.assume_le(begin, position + 1)
            bounds.assume_le(position + 1, end)
            bounds.assume_le(begin, end)
        elif isinstance(op, interval.SearchOp):
            _assume_search(bounds, op)
        elif isinstance(op, interval.IsqrtOp):
            bounds.assume_le(constant(-1), of_atom(Value(op.result)))
    return bounds


def _assume_ascending(bounds: Bounds, func: interval.FuncOp) -> None:
    """Entries of ascending tables, read at constant places, ascend."""
    for number in ascending_tables(func):
        reads: dict[int, Expr] = {}
        for use in func.body.block.args[number].uses:
            if isinstance(read := use.operation, interval.ReadOp):
                index = lift(bounds, read.index)
                if index.is_constant:
                    reads[index.constant] = of_atom(Value(read.result))
        for (_, before), (_, behind) in pairwise(sorted(reads.items(), key=lambda item: item[0])):
            bounds.assume_le(before, behind)


def _assume_search(bounds: Bounds, op: interval.SearchOp) -> None:
    """The entry of the searched table at p is found at p or before, a larger value behind p."""
    found, value = of_atom(Value(op.result)), lift(bounds, op.value)
    for atom in atoms(value):
        if isinstance(atom, Value) and isinstance(read := atom.ssa.owner, interval.ReadOp) and read.table is op.table:
            above = value - of_atom(atom)
            position = lift(bounds, read.index)
            if above.is_constant and above.constant <= 0:
                bounds.assume_le(found, position)
            elif above.is_constant:
                bounds.assume_le(position + 1, found)


def lift(bounds: Bounds, value: SSAValue, renamed: Mapping[SSAValue, Expr] | None = None) -> Expr:
    """The expression of an i32 value, looking through arith as far as bounds can say it; `renamed` values stand for
    others.
    """
    if renamed and value in renamed:
        return renamed[value]

    def sub(operand: SSAValue) -> Expr:
        return lift(bounds, operand, renamed)

    op = value.owner
    if isinstance(op, xdsl_arith.ConstantOp) and isinstance(op.value, IntegerAttr):
        return constant(op.value.value.data)
    if isinstance(op, Operation) and len(op.operands) >= 2:
        a, b = op.operands[0], op.operands[1]
        match op.name:
            case "arith.addi":
                return sub(a) + sub(b)
            case "arith.subi":
                return sub(a) - sub(b)
            case "arith.muli":
                return bounds.product(sub(a), sub(b))
            case "arith.maxsi":
                return bounds.maximum(sub(a), sub(b))
            case "arith.minsi":
                return bounds.minimum(sub(a), sub(b))
            case "arith.select":
                return bounds.select(lift_condition(bounds, a, renamed), sub(b), sub(op.operands[2]))
            case _:
                pass
    return of_atom(Value(value))


_SHIFTED: dict[int, Callable[[Expr, Expr], Expr]] = {
    2: lambda a, b: b - a - 1,  # slt
    3: lambda a, b: b - a,  # sle
    4: lambda a, b: a - b - 1,  # sgt
    5: lambda a, b: a - b,  # sge
}
"""By predicate of arith.cmpi: the expression that is >= 0 exactly when the comparison holds."""


def lift_condition(bounds: Bounds, value: SSAValue, renamed: Mapping[SSAValue, Expr] | None = None) -> Condition:
    """The condition of an i1 value."""
    op = value.owner
    if isinstance(op, Operation):
        predicate = op.properties.get("predicate")
        if op.name == "arith.cmpi" and isinstance(predicate, IntegerAttr):
            shifted = _SHIFTED.get(predicate.value.data)
            if shifted is not None:
                return NonNegative(
                    shifted(lift(bounds, op.operands[0], renamed), lift(bounds, op.operands[1], renamed))
                )
        if op.name == "arith.andi":
            items = [lift_condition(bounds, operand, renamed) for operand in op.operands]
            open_items = [item for item in items if not bounds.always(item)]
            return conjunction(*(open_items or items[:1]))
    return Flag(value)


def conjunction(*items: Condition) -> Condition:
    """All of the conditions, flattened."""
    flat: list[Condition] = []
    for item in items:
        flat.extend(item.items if isinstance(item, All) else (item,))
    unique = tuple(dict.fromkeys(flat))
    return unique[0] if len(unique) == 1 else All(unique)


# ---- looking at expressions ----


def depends_on(expr: Expr, values: frozenset[SSAValue]) -> bool:
    """Whether the expression mentions one of the values, directly or through the operations that compute its atoms."""
    return any(_atom_depends(atom, values) for atom in atoms(expr))


def _atom_depends(atom: Atom, values: frozenset[SSAValue]) -> bool:
    match atom:
        case Value(ssa):
            return _ssa_depends(ssa, values)
        case Extreme(_, items):
            return any(depends_on(item, values) for item in items)
        case Select(condition, then, other):
            return condition_depends(condition, values) or depends_on(then, values) or depends_on(other, values)
        case Product(lhs, rhs):
            return depends_on(lhs, values) or depends_on(rhs, values)


def condition_depends(condition: Condition, values: frozenset[SSAValue]) -> bool:
    """Whether the condition mentions one of the values."""
    match condition:
        case NonNegative(expr):
            return depends_on(expr, values)
        case Flag(ssa):
            return _ssa_depends(ssa, values)
        case All(items):
            return any(condition_depends(item, values) for item in items)


def _ssa_depends(ssa: SSAValue, values: frozenset[SSAValue]) -> bool:
    if ssa in values:
        return True
    return isinstance(ssa.owner, Operation) and any(_ssa_depends(operand, values) for operand in ssa.owner.operands)


def leaves(expr: Expr) -> tuple[list[Expr], list[Condition]]:
    """The expressions between which minima, maxima and selections choose, and the conditions of the selections.

    In each row the value of `expr` is that of one of the leaves.
    """
    for atom, coefficient in expr.terms:
        rest = expr - of_atom(atom) * coefficient
        match atom:
            case Extreme(_, items):
                choices, conditions = list(items), []
            case Select(condition, then, other):
                choices, conditions = [then, other], [condition]
            case _:
                continue
        found: list[Expr] = []
        for choice in choices:
            inner, more = leaves(rest + choice * coefficient)
            found += inner
            conditions = conditions + more
        return list(dict.fromkeys(found)), list(dict.fromkeys(conditions))
    return [expr], []
