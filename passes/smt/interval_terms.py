"""What an `interval.func` means for one unknown row: its bounds as terms, its sets as formulas about a key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import Block, Operation, SSAValue

from compilemask.dialects import interval
from compilemask.errors import LoweringError
from compilemask.passes.smt import arith_terms, lemmas
from compilemask.passes.smt.call import Call, ascending_tables
from compilemask.passes.smt.library import Term, z3
from compilemask.passes.smt.world import Table, World

LEADING = 3
"""Arguments that an interval function has before the mask's parameters: q, queries, keys."""

Part = interval.RangeOp | interval.FamilyOp


class Row:
    """One row of a call of an interval function."""

    def __init__(
        self,
        world: World,
        func: interval.FuncOp,
        q: Term,
        queries: Term,
        keys: Term,
        parameters: Sequence[Term | Table],
    ) -> None:
        self.world, self.keys, self.q = world, keys, q
        self.name = func.sym_name.data
        last = func.body.block.last_op
        assert isinstance(last, interval.ReturnOp)
        self.returned = last.value
        self.values: dict[SSAValue, Any] = dict(zip(func.body.block.args, (q, queries, keys, *parameters), strict=True))
        for op in func.body.block.ops:
            self._step(op, self.values)

    @classmethod
    def of_call(cls, world: World, func: interval.FuncOp, call: Call) -> Row:
        """The row of the call's query."""
        call.assume_ascending(number - LEADING for number in ascending_tables(func))
        return cls(world, func, call.q, call.queries, call.keys, call.parameters)

    def visible(self, kv: Term) -> Term:
        """Whether the row sees a key."""
        return self.contains(self.returned, kv)

    # ---- sets ----

    def contains(self, value: SSAValue, kv: Term) -> Term:
        """Whether a key in [0, keys) lies in a set of the function."""
        op = value.owner
        match op:
            case interval.RangeOp():
                return z3().And(self.values[op.lo] <= kv, kv < self.values[op.hi])
            case interval.FamilyOp():
                return self._in_family(op, kv)
            case interval.WhenOp():
                return z3().And(self.values[op.condition], self.contains(op.value, kv))
            case interval.ConcatOp():
                return z3().Or(*[self.contains(part, kv) for part in op.parts])
            case interval.UnionOp():
                return z3().Or(self.contains(op.lhs, kv), self.contains(op.rhs, kv))
            case interval.IntersectOp():
                return z3().And(self.contains(op.lhs, kv), self.contains(op.rhs, kv))
            case interval.ComplementOp():
                return z3().Not(self.contains(op.value, kv))
            case interval.BetweenOp():
                decided = z3().And(self.contains(op.outer, kv), self.predicate(op, kv))
                return z3().Or(self.contains(op.inner, kv), decided)
            case _:
                raise LoweringError(f"@{self.name}: a set cannot come from {op}")

    def predicate(self, op: interval.BetweenOp, kv: Term) -> Term:
        """What the predicate of a `between` says of a key."""
        return self._body(op.body.block, self.q, kv)[0]

    def _in_family(self, op: interval.FamilyOp, kv: Term) -> Term:
        """The key's line is one of the family's, and its member holds the key. The line is an unknown of its own."""
        first, last, base, pitch = (self.values[x] for x in (op.first, op.last, op.base, op.pitch))
        line, _ = self.world.quotient(kv - base, pitch)
        self.world.know(lemmas.cells(line, first, last, pitch))
        lo, hi = self._body(op.body.block, line)
        return z3().And(first <= line, line < last, lo <= kv, kv < hi)

    def hull(self, part: Part) -> tuple[Term, Term]:
        """The keys between which a part lies: its bounds, or the cells of its lines."""
        if isinstance(part, interval.RangeOp):
            return self.values[part.lo], self.values[part.hi]
        first, last, base, pitch = (self.values[x] for x in (part.first, part.last, part.base, part.pitch))
        some = first < last
        zero = z3().IntVal(0)
        return z3().If(some, base + first * pitch, zero), z3().If(some, base + last * pitch, zero)

    # ---- operations on bounds ----

    def _body(self, block: Block, *arguments: Term) -> tuple[Term, ...]:
        local = {**self.values, **dict(zip(block.args, arguments, strict=True))}
        for op in block.ops:
            if isinstance(op, interval.MemberOp | interval.YieldOp):
                return tuple(local[operand] for operand in op.operands)
            self._step(op, local)
        raise ValueError("a block without a terminator")

    def _step(self, op: Operation, values: dict[SSAValue, Any]) -> None:
        match op:
            case interval.ReadOp():
                values[op.result] = values[op.table].read(values[op.index])
            case interval.SegmentOfOp():
                values[op.begin], values[op.end] = values[op.offsets].bounds_of(values[op.position])
            case interval.SearchOp():
                values[op.result] = values[op.table].search(values[op.value])
            case interval.IsqrtOp():
                values[op.result] = self.world.root(values[op.operand])
            case interval.ReturnOp():
                pass
            case _ if isinstance(op.results[0].type, interval.SetType):
                pass
            case _:
                values[op.results[0]] = arith_terms.execute(self.world, op, [values[x] for x in op.operands])


def parts_of(value: SSAValue) -> list[Part]:
    """The ranges and families of a set in normal form; raises ValueError for another one."""
    owner = value.owner
    parts = list(owner.parts) if isinstance(owner, interval.ConcatOp) else [value]
    found = [part.owner for part in parts]
    if not all(isinstance(part, interval.RangeOp | interval.FamilyOp) for part in found):
        raise ValueError("not in normal form")
    return found  # type: ignore[return-value]


__all__ = ["Part", "Row", "parts_of"]
