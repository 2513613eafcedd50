"""Affine masks as sets of the integer set library, isl: a second opinion that shares no code with the proofs by z3.

An integer is a piecewise affine function of (q, kv) with the lengths and mask parameters as unknowns, a truth value is
the set of pairs for which it holds. isl decides whether two such sets are equal for all values of the unknowns.
"""

from __future__ import annotations

from typing import Any

import islpy as isl
from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import IntegerAttr, i1
from xdsl.ir import Block, Operation, SSAValue

from compilemask.dialects import arith, interval, mask


class NotAffine(Exception):
    """A table, a root, or a product of unknowns."""


class Plane:
    """Pairs (q, kv) with 0 <= q < queries and 0 <= kv < keys, for parameters of some names."""

    def __init__(self, names: list[str]) -> None:
        unknowns = ", ".join(["queries", "keys", *names])
        self.pairs = isl.Set(f"[{unknowns}] -> {{ [q, kv] : 0 <= q < queries and 0 <= kv < keys }}")
        self.space = isl.LocalSpace.from_space(self.pairs.get_space())
        self.names = names

    def unknown(self, number: int) -> Any:
        """The number of queries, the number of keys, then the parameters."""
        return isl.PwAff.from_aff(isl.Aff.var_on_domain(self.space, isl.dim_type.param, number))

    def position(self, number: int) -> Any:
        """q, then kv."""
        return isl.PwAff.from_aff(isl.Aff.var_on_domain(self.space, isl.dim_type.set, number))

    def constant(self, value: int) -> Any:
        """The same for all pairs."""
        return isl.PwAff.from_aff(isl.Aff.val_on_domain(self.space, isl.Val(value)))

    def truth(self, value: bool) -> Any:
        """All pairs, or none."""
        return self.pairs if value else isl.Set.empty(self.pairs.get_space())

    def execute(self, op: Operation, operands: list[Any]) -> Any:
        """The result of an arith operation."""
        if isinstance(op, xdsl_arith.ConstantOp) and isinstance(op.value, IntegerAttr):
            value = op.value.value.data
            return self.truth(value != 0) if op.result.type == i1 else self.constant(value)
        if isinstance(op, arith.CmpiOp):
            return self._compare(op.predicate_name, *operands)
        if isinstance(op, arith.SelectOp):
            condition, then, other = operands
            return then.intersect_domain(condition).union_add(other.intersect_domain(self.outside(condition)))
        if op.results[0].type == i1:
            return self._logic(op.name, *operands)
        return self._integer(op.name, *operands)

    def outside(self, pairs: Any) -> Any:
        """All other pairs."""
        return self.pairs.subtract(pairs)

    def _compare(self, predicate: str, a: Any, b: Any) -> Any:
        methods = {"eq": "eq_set", "ne": "ne_set", "slt": "lt_set", "sle": "le_set", "sgt": "gt_set", "sge": "ge_set"}
        return getattr(a, methods[predicate])(b).intersect(self.pairs)

    def _logic(self, name: str, a: Any, b: Any) -> Any:
        match name:
            case "arith.andi":
                return a.intersect(b)
            case "arith.ori":
                return a.union(b)
            case "arith.xori":
                return a.subtract(b).union(b.subtract(a))
        raise NotAffine(name)

    def _integer(self, name: str, a: Any, b: Any) -> Any:
        match name:
            case "arith.addi":
                return a.add(b)
            case "arith.subi":
                return a.sub(b)
            case "arith.maxsi":
                return a.max(b)
            case "arith.minsi":
                return a.min(b)
            case "arith.muli" if a.is_cst() or b.is_cst():
                return a.mul(b)
            case "arith.floordivsi" if b.is_cst():
                return a.div(b).floor()
        raise NotAffine(name)


def visible(func: mask.FuncOp, plane: Plane) -> Any:
    """The pairs that a mask shows."""
    values: dict[SSAValue, Any] = {arg: plane.unknown(2 + arg.index) for arg in func.body.block.args}
    q, kv = plane.position(0), plane.position(1)

    def within(begin: Any, position: Any, end: Any) -> Any:
        return begin.le_set(position).intersect(position.lt_set(end)).intersect(plane.pairs)

    def run(block: Block) -> Any:
        for op in block.ops:
            match op:
                case mask.ReturnOp() | mask.YieldOp():
                    return values[op.operands[0]]
                case mask.WhereOp():
                    values.update(zip(op.body.block.args, (q, kv), strict=True))
                    found = run(op.body.block)
                case mask.QueriesOp():
                    found = plane.unknown(0)
                case mask.KeysOp():
                    found = plane.unknown(1)
                case mask.AllOp() | mask.NoneOp():
                    found = plane.truth(isinstance(op, mask.AllOp))
                case mask.BandOp():
                    found = plane.pairs
                    if op.lower is not None:
                        found = found.intersect(kv.sub(q).ge_set(values[op.lower]))
                    if op.upper is not None:
                        found = found.intersect(kv.sub(q).le_set(values[op.upper]))
                case mask.RowsOp():
                    found = within(values[op.begin], q, values[op.end])
                case mask.ColsOp():
                    found = within(values[op.begin], kv, values[op.end])
                case mask.UnionOp():
                    found = values[op.lhs].union(values[op.rhs])
                case mask.IntersectOp():
                    found = values[op.lhs].intersect(values[op.rhs])
                case mask.SubtractOp():
                    found = values[op.lhs].subtract(values[op.rhs])
                case mask.ComplementOp():
                    found = plane.outside(values[op.region])
                case _ if op.name.startswith("arith."):
                    found = plane.execute(op, [values[operand] for operand in op.operands])
                case _:
                    raise NotAffine(op.name)
            values[op.results[0]] = found
        raise AssertionError("a block without a terminator")

    return run(func.body.block)


def seen(func: interval.FuncOp, plane: Plane) -> Any:
    """The pairs that an interval function in normal form shows."""
    q, kv = plane.position(0), plane.position(1)
    arguments = [q, *(plane.unknown(number) for number in range(2 + len(plane.names)))]
    values: dict[SSAValue, Any] = dict(zip(func.body.block.args, arguments, strict=True))

    def of(value: SSAValue) -> Any:
        match value.owner:
            case interval.RangeOp() as op:
                inside = values[op.lo].le_set(kv).intersect(kv.lt_set(values[op.hi]))
                return inside.intersect(plane.pairs)
            case interval.ConcatOp() as op:
                found = plane.truth(False)
                for part in op.parts:
                    found = found.union(of(part))
                return found
            case interval.BetweenOp() as op:
                return of(op.inner).union(of(op.outer).intersect(run(op.body.block, q, kv)))
            case owner:
                raise NotAffine(str(owner))

    def run(block: Block, *arguments: Any) -> Any:
        values.update(zip(block.args, arguments, strict=False))
        for op in block.ops:
            if isinstance(op, interval.ReturnOp):
                return of(op.value)
            if isinstance(op, interval.YieldOp):
                return values[op.visible]
            if op.name.startswith("arith."):
                values[op.results[0]] = plane.execute(op, [values[operand] for operand in op.operands])
            elif not isinstance(op.results[0].type, interval.SetType):
                raise NotAffine(op.name)
        raise AssertionError("a block without a terminator")

    return run(func.body.block)
