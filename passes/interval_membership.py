"""Whether a key lies in a set: the pointwise meaning of interval sets, as arith on (q, kv).

Emits the body of an `interval.between`: the operations that compute the set's bounds are cloned for the body's own q,
and each set operation becomes a condition on kv.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.builder import Builder
from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import IntegerAttr, i1, i32
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint

from compilemask.dialects import arith, interval
from compilemask.passes.bound_emission import constant_name

_SGE, _SLT = 5, 2


@dataclass
class MembershipEmitter:
    """Fills `block` (q: i32, kv: i32) with the membership test of a set of `func`."""

    func: interval.FuncOp
    block: Block
    _values: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])

    def __post_init__(self) -> None:
        self.builder = Builder(InsertPoint.at_end(self.block))
        self.q, self.kv = self.block.args
        self.q.name_hint, self.kv.name_hint = "q", "kv"
        self._values[self.func.body.block.args[0]] = self.q

    def emit(self, value: SSAValue) -> None:
        """Fill the block with the test of a set, up to its yield."""
        keys = self.func.body.block.args[2]
        visible = self._both(self._contains(value), self._within(self._constant(0), keys))
        self.builder.insert(interval.YieldOp(visible))

    def _contains(self, value: SSAValue) -> SSAValue:
        """Whether kv lies in a set."""
        op = value.owner
        match op:
            case interval.RangeOp():
                return self._within(self._copy(op.lo), self._copy(op.hi))
            case interval.FamilyOp():
                return self._in_family(op)
            case interval.WhenOp():
                return self._both(self._copy(op.condition), self._contains(op.value))
            case interval.ConcatOp():
                return self._any([self._contains(part) for part in op.parts])
            case interval.UnionOp():
                return self._any([self._contains(op.lhs), self._contains(op.rhs)])
            case interval.IntersectOp():
                return self._both(self._contains(op.lhs), self._contains(op.rhs))
            case interval.ComplementOp():
                true = self.builder.insert(xdsl_arith.ConstantOp(IntegerAttr(1, i1))).result
                return self._insert(xdsl_arith.XOrIOp(self._contains(op.value), true))
            case interval.BetweenOp():
                return self._between(op)
            case _:
                raise AssertionError(f"not a set operation: {op}")

    def _between(self, op: interval.BetweenOp) -> SSAValue:
        """In inner, or in outer and by the predicate."""
        body = op.body.block
        mapping: dict[SSAValue, SSAValue] = {body.args[0]: self.q, body.args[1]: self.kv}
        for inner in body.ops:
            if isinstance(inner, interval.YieldOp):
                visible = self._both(self._contains(op.outer), self._mapped(inner.visible, mapping))
                return self._any([self._contains(op.inner), visible])
            self._clone(inner, mapping)
        raise AssertionError("an interval.between without a yield")

    def _in_family(self, op: interval.FamilyOp) -> SSAValue:
        """The line of kv is one of the family's, and kv lies in that line's member.

        Division truncates, which is the line for kv >= base only; before the base there is no line.
        """
        first, last, base, pitch = (self._copy(x) for x in (op.first, op.last, op.base, op.pitch))
        offset = self._insert(xdsl_arith.SubiOp(self.kv, base))
        line = self._insert(xdsl_arith.DivSIOp(offset, pitch))
        mapping: dict[SSAValue, SSAValue] = {op.body.block.args[0]: line}
        behind = self._compare(self.kv, base, _SGE)
        inside = self._both(behind, self._both(self._compare(line, first, _SGE), self._compare(line, last, _SLT)))
        for inner in op.body.block.ops:
            if isinstance(inner, interval.MemberOp):
                lo, hi = self._mapped(inner.lo, mapping), self._mapped(inner.hi, mapping)
                return self._both(inside, self._within(lo, hi))
            self._clone(inner, mapping)
        raise AssertionError("an interval.family without a member")

    # ---- copies of the function's values ----

    def _copy(self, value: SSAValue) -> SSAValue:
        """A value of the function for this body's q; what does not depend on q is used as it is."""
        if value in self._values:
            return self._values[value]
        op = value.owner
        if not isinstance(op, Operation) or not op.operands:
            return value
        operands = [self._copy(operand) for operand in op.operands]
        if all(new is old for new, old in zip(operands, op.operands, strict=True)):
            return value
        clone = self.builder.insert(op.clone(value_mapper=dict(zip(op.operands, operands, strict=True))))
        self._values.update(zip(op.results, clone.results, strict=True))
        return self._values[value]

    def _mapped(self, value: SSAValue, mapping: dict[SSAValue, SSAValue]) -> SSAValue:
        """A value as an inner body sees it: its own values by the mapping, others as the function's."""
        return mapping[value] if value in mapping else self._copy(value)

    def _clone(self, op: Operation, mapping: dict[SSAValue, SSAValue]) -> None:
        operands = {operand: self._mapped(operand, mapping) for operand in op.operands}
        clone = self.builder.insert(op.clone(value_mapper=operands))
        mapping.update(zip(op.results, clone.results, strict=True))

    # ---- conditions ----

    def _within(self, lo: SSAValue, hi: SSAValue) -> SSAValue:
        return self._both(self._compare(self.kv, lo, _SGE), self._compare(self.kv, hi, _SLT))

    def _any(self, items: list[SSAValue]) -> SSAValue:
        if not items:
            return self.builder.insert(xdsl_arith.ConstantOp(IntegerAttr(0, i1))).result
        total = items[0]
        for item in items[1:]:
            total = self._insert(xdsl_arith.OrIOp(total, item))
        return total

    def _both(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self._insert(xdsl_arith.AndIOp(a, b))

    def _compare(self, a: SSAValue, b: SSAValue, predicate: int) -> SSAValue:
        return self._insert(arith.CmpiOp(a, b, predicate))

    def _constant(self, value: int) -> SSAValue:
        constant = self.builder.insert(xdsl_arith.ConstantOp(IntegerAttr(value, i32))).result
        constant.name_hint = constant_name(value)
        return constant

    def _insert(self, op: Operation) -> SSAValue:
        return self.builder.insert(op).results[0]
