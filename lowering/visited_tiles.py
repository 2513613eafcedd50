"""How many partial tiles a mask may have, from what the host knows: lengths and integers, but no tables.

An interval function is executed on ranges: for all rows of a query tile at once, each value lies between two numbers.
What comes from a table may be anything. This bounds the tiles that the outer set can touch, and counts those that the
inner set surely fills.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Operation, SSAValue

from compilemask.dialects import arith, interval
from compilemask.lowering.descriptor_layout import KEYS, ceil_div

Ints = NDArray[np.int64]
FAR = 2**31
"""Values are 32-bit integers."""


class Span(NamedTuple):
    """least <= value <= most, per query tile."""

    least: Ints
    most: Ints


class Truth(NamedTuple):
    """Whether a truth value may be true, and false, per query tile."""

    true: NDArray[np.bool_]
    false: NDArray[np.bool_]


@dataclass
class Ranges:
    """Executes operations of an interval function on the rows of all query tiles; a value is worked out once."""

    tiles: int
    known: dict[SSAValue, Span] = field(default_factory=dict[SSAValue, Span])
    _truths: dict[SSAValue, Truth] = field(default_factory=dict[SSAValue, Truth])

    @classmethod
    def of_call(
        cls, func: interval.FuncOp, rows: Span, queries: int, keys: int, arguments: Sequence[int | None]
    ) -> Ranges:
        """Those of a call, for tiles of these rows; None stands for an argument that the host does not know."""
        ranges = cls(len(rows.least))
        q, *others = func.body.block.args
        ranges.known[q] = rows
        for argument, value in zip(others, (queries, keys, *arguments), strict=True):
            if value is not None:
                ranges.known[argument] = ranges.constant(value)
        return ranges

    def constant(self, value: int) -> Span:
        """The same number for all rows."""
        numbers = np.full(self.tiles, value, dtype=np.int64)
        return Span(numbers, numbers)

    def __getitem__(self, value: SSAValue) -> Span:
        if value not in self.known:
            found = self._execute(value)
            self.known[value] = Span(np.clip(found.least, -FAR, FAR), np.clip(found.most, -FAR, FAR))
        return self.known[value]

    def _execute(self, value: SSAValue) -> Span:
        anything = Span(self.constant(-FAR).least, self.constant(FAR).most)
        match op := value.owner:
            case xdsl_arith.ConstantOp() if isinstance(op.value, IntegerAttr):
                return self.constant(op.value.value.data)
            case xdsl_arith.AddiOp():
                a, b = self[op.lhs], self[op.rhs]
                return Span(a.least + b.least, a.most + b.most)
            case xdsl_arith.SubiOp():
                a, b = self[op.lhs], self[op.rhs]
                return Span(a.least - b.most, a.most - b.least)
            case xdsl_arith.MuliOp():
                return _product(self[op.lhs], self[op.rhs])
            case xdsl_arith.MaxSIOp():
                a, b = self[op.lhs], self[op.rhs]
                return Span(np.maximum(a.least, b.least), np.maximum(a.most, b.most))
            case xdsl_arith.MinSIOp():
                a, b = self[op.lhs], self[op.rhs]
                return Span(np.minimum(a.least, b.least), np.minimum(a.most, b.most))
            case arith.SelectOp():
                return self._select(*op.operands)
            case xdsl_arith.FloorDivSIOp() | xdsl_arith.DivSIOp():
                return self._quotient(self[op.lhs], self[op.rhs])
            case interval.SegmentOfOp():
                position = self[op.position]
                if value is op.begin:
                    return Span(np.minimum(position.least + 1, 0), position.most + 1)
                return Span(position.least + 1, anything.most)
            case interval.IsqrtOp():
                root = np.sqrt(np.maximum(self[op.operand].most, 0).astype(np.float64))
                return Span(self.constant(-1).least, root.astype(np.int64) + 1)
            case _:
                return anything

    def _quotient(self, a: Span, b: Span) -> Span:
        """Rounded in any direction; by a divisor that is the same positive number for all rows."""
        divisor = int(b.least[0]) if self.tiles else 1
        if divisor < 1 or np.any(b.least != divisor) or np.any(b.most != divisor):
            return Span(self.constant(-FAR).least, self.constant(FAR).most)
        return Span(a.least // divisor, -(-a.most // divisor))

    def _select(self, condition: SSAValue, then: SSAValue, other: SSAValue) -> Span:
        may, (a, b) = self.truth(condition), (self[then], self[other])
        least = np.minimum(np.where(may.true, a.least, FAR), np.where(may.false, b.least, FAR))
        most = np.maximum(np.where(may.true, a.most, -FAR), np.where(may.false, b.most, -FAR))
        return Span(least, most)

    # ---- truth values ----

    def truth(self, value: SSAValue) -> Truth:
        """What an i1 value may be."""
        if value not in self._truths:
            self._truths[value] = self._truth(value)
        return self._truths[value]

    def _truth(self, value: SSAValue) -> Truth:
        op, either = value.owner, np.ones(self.tiles, dtype=np.bool_)
        match op:
            case xdsl_arith.AndIOp():
                a, b = self.truth(op.lhs), self.truth(op.rhs)
                return Truth(a.true & b.true, a.false | b.false)
            case xdsl_arith.OrIOp():
                a, b = self.truth(op.lhs), self.truth(op.rhs)
                return Truth(a.true | b.true, a.false & b.false)
            case arith.CmpiOp() if op.predicate_name in ("slt", "sle", "sgt", "sge"):
                a, b = (self[operand] for operand in op.operands)
                if op.predicate_name in ("sgt", "sge"):
                    a, b = b, a
                # a < b, or a <= b
                slack = 0 if op.predicate_name in ("slt", "sgt") else 1
                return Truth(a.least < b.most + slack, a.most >= b.least + slack)
            case _:
                return Truth(either, either)


def _product(a: Span, b: Span) -> Span:
    corners = [x * y for x in a for y in b]
    return Span(np.minimum.reduce(corners), np.maximum.reduce(corners))


# ---- tiles ----


def most_partial_tiles(
    func: interval.FuncOp, arguments: Sequence[int | None], queries: int, keys: int, rows: int
) -> int:
    """Upper bound on the partial tiles of one mask over `queries` x `keys` positions, in query tiles of `rows` rows.

    `func` is in normal form. `arguments` are its mask parameters; None stands for one that the host does not know.
    """
    tiles = ceil_div(queries, rows)
    first = np.arange(tiles, dtype=np.int64) * rows
    span = Span(first, np.minimum(first + rows, queries) - 1)
    ranges = Ranges.of_call(func, span, queries, keys, arguments)
    end = func.body.block.last_op
    assert isinstance(end, interval.ReturnOp)
    root = end.value.owner
    outer, inner = (root.outer, root.inner) if isinstance(root, interval.BetweenOp) else (end.value, end.value)
    touched = sum((_touched(ranges, part.owner, keys) for part in _parts(outer)), np.zeros(tiles, dtype=np.int64))
    filled = sum((_filled(ranges, part.owner, keys) for part in _parts(inner)), np.zeros(tiles, dtype=np.int64))
    return int(np.maximum(np.minimum(touched, ceil_div(keys, KEYS)) - filled, 0).sum())


def _parts(value: SSAValue) -> tuple[SSAValue, ...]:
    concat = value.owner
    assert isinstance(concat, interval.ConcatOp)
    return tuple(concat.parts)


def _touched(ranges: Ranges, part: Any, keys: int) -> Ints:
    """Key tiles that some row of a query tile may see a part in."""
    if isinstance(part, interval.RangeOp):
        least, most = ranges[part.lo].least, ranges[part.hi].most
    else:
        assert isinstance(part, interval.FamilyOp)
        base, pitch = ranges[part.base], ranges[part.pitch]
        least = base.least + _product(ranges[part.first], pitch).least
        most = base.most + _product(ranges[part.last], pitch).most
    least, most = np.clip(least, 0, keys), np.clip(most, 0, keys)
    return np.where(most > least, -(-most // KEYS) - least // KEYS, 0)


def _filled(ranges: Ranges, part: Operation | Any, keys: int) -> Ints:
    """Key tiles that all rows of a query tile surely see."""
    if not isinstance(part, interval.RangeOp):
        return np.zeros(ranges.tiles, dtype=np.int64)
    first, last = np.clip(ranges[part.lo].most, 0, keys), np.clip(ranges[part.hi].least, 0, keys)
    return np.maximum(last // KEYS - -(-first // KEYS), 0)


__all__ = ["most_partial_tiles"]
