"""From symbolic bounds back to arith: each expression is emitted once per block, at the builder's insertion point."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.builder import Builder
from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import IntegerAttr, i32
from xdsl.ir import Block, Operation, SSAValue

from compilemask.dialects import arith
from compilemask.passes.bounds import (
    All,
    Atom,
    Condition,
    Expr,
    Extreme,
    Flag,
    NonNegative,
    Product,
    Select,
    Value,
    condition_depends,
    depends_on,
)

_SGE, _SGT, _SLE = 5, 4, 3


def constant_name(value: int) -> str:
    """What an integer is called in printed IR."""
    return {0: "zero", 1: "one"}.get(value, f"c{value}" if value >= 0 else f"minus{-value}")


@dataclass
class BoundEmitter:
    """Emits expressions as i32 values and conditions as i1 values.

    Inside the body of a family, `outer` is the emitter of the function and `lines` the values that stand for the
    body's line: what does not depend on the line is emitted outside, and operations of the bodies that an expression
    came from are cloned.
    """

    builder: Builder
    outer: BoundEmitter | None = None
    lines: frozenset[SSAValue] = frozenset()
    line: SSAValue | None = None
    _values: dict[Expr | Atom | Condition | SSAValue, SSAValue] = field(
        default_factory=dict[Expr | Atom | Condition | SSAValue, SSAValue]
    )

    def emit_named(self, expr: Expr, hint: str) -> SSAValue:
        """The value of an expression, called `hint` in printed IR unless it has a name."""
        value = self.emit(expr)
        if value.name_hint is None:
            value.name_hint = hint
        return value

    def emit(self, expr: Expr) -> SSAValue:
        """The value of an expression."""
        if self.outer is not None and not depends_on(expr, self.lines):
            return self.outer.emit(expr)
        if expr not in self._values:
            self._values[expr] = self._linear(expr)
        return self._values[expr]

    def emit_condition(self, condition: Condition) -> SSAValue:
        """The value of a condition."""
        if self.outer is not None and not condition_depends(condition, self.lines):
            return self.outer.emit_condition(condition)
        if condition not in self._values:
            self._values[condition] = self._condition(condition)
        return self._values[condition]

    def _linear(self, expr: Expr) -> SSAValue:
        """Positive terms first, so that differences need no negation."""
        total: SSAValue | None = None
        for atom, coefficient in sorted(expr.terms, key=lambda term: term[1] < 0):
            value = self._scaled(self._atom(atom), abs(coefficient))
            if total is None:
                total = value if coefficient > 0 else self._insert(xdsl_arith.SubiOp(self._constant(0), value))
            else:
                op = xdsl_arith.AddiOp if coefficient > 0 else xdsl_arith.SubiOp
                total = self._insert(op(total, value))
        if total is None:
            return self._constant(expr.constant)
        if expr.constant > 0:
            return self._insert(xdsl_arith.AddiOp(total, self._constant(expr.constant)))
        if expr.constant < 0:
            return self._insert(xdsl_arith.SubiOp(total, self._constant(-expr.constant)))
        return total

    def _scaled(self, value: SSAValue, factor: int) -> SSAValue:
        return value if factor == 1 else self._insert(xdsl_arith.MuliOp(value, self._constant(factor)))

    def _atom(self, atom: Atom) -> SSAValue:
        if atom not in self._values:
            self._values[atom] = self._fresh_atom(atom)
        return self._values[atom]

    def _fresh_atom(self, atom: Atom) -> SSAValue:
        match atom:
            case Value(ssa):
                return self._inside(ssa)
            case Product(lhs, rhs):
                return self._insert(xdsl_arith.MuliOp(self.emit(lhs), self.emit(rhs)))
            case Select(condition, then, other):
                return self._insert(arith.SelectOp(self.emit_condition(condition), self.emit(then), self.emit(other)))
            case Extreme(kind, items):
                op = xdsl_arith.MaxSIOp if kind == "max" else xdsl_arith.MinSIOp
                total = self.emit(items[0])
                for item in items[1:]:
                    total = self._insert(op(total, self.emit(item)))
                return total

    def _condition(self, condition: Condition) -> SSAValue:
        match condition:
            case Flag(ssa):
                return self._inside(ssa)
            case All(items):
                total = self.emit_condition(items[0])
                for item in items[1:]:
                    total = self._insert(xdsl_arith.AndIOp(total, self.emit_condition(item)))
                return total
            case NonNegative(expr):
                return self._comparison(expr)

    def _comparison(self, expr: Expr) -> SSAValue:
        """expr >= 0 as a comparison of its positive with its negative terms."""
        left = Expr(0, tuple((a, c) for a, c in expr.terms if c > 0))
        right = left - expr
        predicate = _SGE
        if right.constant == 1:
            predicate, right = _SGT, right - 1
        if left.is_constant:
            # Only negative terms: what is compared reads better on the left.
            left, right, predicate = expr * -1 + expr.constant, Expr(expr.constant), _SLE
        return self._insert(arith.CmpiOp(self.emit(left), self.emit(right), predicate))

    def _inside(self, ssa: SSAValue) -> SSAValue:
        """A value as it is seen at the insertion point: the line, or a clone of an operation of a family's body."""
        if ssa in self.lines:
            assert self.line is not None
            return self.line
        owner = ssa.owner
        if self.outer is None or not isinstance(owner, Operation) or not self._in_family(owner):
            return ssa
        if ssa not in self._values:
            mapped = {operand: self._inside(operand) for operand in owner.operands}
            clone = self.builder.insert(owner.clone(value_mapper=mapped))
            self._values.update(zip(owner.results, clone.results, strict=True))
        return self._values[ssa]

    def _in_family(self, op: Operation) -> bool:
        """Whether an operation stands in the body of one of the families that the expression came from."""
        return any(isinstance(line.owner, Block) and line.owner is op.parent for line in self.lines)

    def _constant(self, value: int) -> SSAValue:
        if self.outer is not None:
            return self.outer._constant(value)
        key = Expr(value)
        if key not in self._values:
            constant = self._insert(xdsl_arith.ConstantOp(IntegerAttr(value, i32)))
            constant.name_hint = constant_name(value)
            self._values[key] = constant
        return self._values[key]

    def _insert(self, op: Operation) -> SSAValue:
        return self.builder.insert(op).results[0]
