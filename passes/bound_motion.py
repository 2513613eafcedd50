"""How bounds move from row to row: what follows for the room that partial tiles need, and whether a mask is
translation invariant.

Take one bound over the rows of a query tile. The key tiles that it makes partial lie between its smallest and its
largest value there. In each row a bound has the value of one of its *leaves* (bounds.leaves); where minima and maxima
change from one leaf to another, what lies in between is covered by the motion of one of the two, and where a
condition switches, it is at most every key tile, once. So it is enough to count leaves and switches, each distinct
one once for the whole mask. In tiles of R rows, which start at multiples of u = gcd(R, 128):

| leaf | key tiles made partial |
|---|---|
| 0 | none |
| the same on all rows | 1 per query tile |
| q + c, c = 0 or 1 modulo u | ceil((R + 128 - u) / 128) per query tile: 1 for R = 128, 2 for R = 192 |
| q + c | ceil((R + 126) / 128) per query tile: 2 for R = 128, 3 for R = 192 |
| never falling, or never rising | 1 per query tile, and 1 per key tile in all |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import gcd

from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import BlockArgument, SSAValue
from xdsl.traits import ConstantLike

from compilemask.dialects import interval
from compilemask.dialects.narrowing import is_array, is_integer
from compilemask.passes.bounds import (
    All,
    Bounds,
    Condition,
    Expr,
    NonNegative,
    Value,
    condition_depends,
    depends_on,
    leaves,
    lift,
    of_atom,
)

TILE = 128
"""Keys of a tile."""


@dataclass
class Motion:
    """Distinct leaves and switches of some bounds, as what they cost in tiles of so many rows; `known` is false if one
    of them moves in an unknown way.
    """

    q: SSAValue
    rows: int = 128
    known: bool = True
    _per_query: dict[object, int] = field(default_factory=dict[object, int])
    _per_key: dict[object, int] = field(default_factory=dict[object, int])

    @property
    def unit(self) -> int:
        """Query tiles and key tiles start at multiples of it."""
        return gcd(self.rows, TILE)

    @property
    def on_aligned_diagonal(self) -> int:
        """Partial tiles per query tile of a bound q + c that is 0 or 1 modulo the unit."""
        return -(-(self.rows + TILE - self.unit) // TILE)

    @property
    def on_diagonal(self) -> int:
        """Partial tiles per query tile of any bound q + c."""
        return -(-(self.rows + TILE - 2) // TILE)

    @property
    def per_query_tile(self) -> int:
        """Partial tiles per query tile."""
        return sum(self._per_query.values())

    @property
    def per_key_tile(self) -> int:
        """Partial tiles per key tile, over all query tiles."""
        return sum(self._per_key.values())

    def add(self, bound: Expr) -> None:
        """Count one bound."""
        found, conditions = leaves(bound)
        for leaf in found:
            self._add_leaf(leaf)
        for condition in conditions:
            self._add_condition(condition)

    def _add_leaf(self, leaf: Expr) -> None:
        if leaf == Expr(0):
            return
        if not self._varies(leaf):
            self._per_query[leaf] = 1
            return
        offset = leaf - of_atom(Value(self.q))
        if not self._varies(offset):
            if offset.is_constant and offset.constant % self.unit in (0, 1):
                self._per_query["diagonal", offset.constant // self.unit] = self.on_aligned_diagonal
            else:
                self._per_query[leaf] = self.on_diagonal
        elif _direction(leaf, self.q) is not None:
            self._per_query[leaf] = self._per_key[leaf] = 1
        else:
            self.known = False

    def _add_condition(self, condition: Condition) -> None:
        match condition:
            case All(items):
                for item in items:
                    self._add_condition(item)
            case NonNegative(expr) if self._varies(expr):
                directions = {_direction(leaf, self.q) for leaf in leaves(expr)[0]}
                if len(directions) == 1 and None not in directions:
                    self._per_key[condition] = 1
                else:
                    self.known = False
            case _ if condition_depends(condition, frozenset({self.q})):
                self.known = False
            case _:
                pass

    def follows_raster(self, first: Expr, pitch: Expr, bounds: Bounds) -> bool:
        """Whether the first line of a row is its own line of the raster and an offset, or the same on all rows: then
        the lines of a query tile's rows are few.
        """
        found, conditions = leaves(first)
        return not any(condition_depends(condition, frozenset({self.q})) for condition in conditions) and all(
            not self._varies(leaf) or self._is_own_line(leaf, pitch, bounds) for leaf in found
        )

    def _is_own_line(self, leaf: Expr, pitch: Expr, bounds: Bounds) -> bool:
        """Whether an expression is (q + c) / pitch + d, c and d being the same on all rows."""
        moving = [(atom, factor) for atom, factor in leaf.terms if self._varies(of_atom(atom))]
        if len(moving) != 1 or moving[0][1] != 1 or not isinstance(atom := moving[0][0], Value):
            return False
        op = atom.ssa.owner
        if not isinstance(op, xdsl_arith.FloorDivSIOp | xdsl_arith.DivSIOp):
            return False
        offset = lift(bounds, op.lhs) - of_atom(Value(self.q))
        return lift(bounds, op.rhs) == pitch and not self._varies(offset)

    def _varies(self, expr: Expr) -> bool:
        return depends_on(expr, frozenset({self.q}))


def _direction(expr: Expr, q: SSAValue) -> int | None:
    """1 if the expression never falls as q rises, -1 if it never rises, None if that is not known; constant counts as
    1.
    """
    signs: set[int] = set()
    for atom, coefficient in expr.terms:
        if not depends_on(of_atom(atom), frozenset({q})):
            continue
        if not isinstance(atom, Value) or not _rises(atom.ssa, q):
            return None
        signs.add(1 if coefficient > 0 else -1)
    return signs.pop() if len(signs) == 1 else (1 if not signs else None)


def _rises(value: SSAValue, q: SSAValue) -> bool:
    """Whether a value never falls as q rises: q itself, what does not depend on it, and what grows with such values."""
    if not depends_on(of_atom(Value(value)), frozenset({q})):
        return True
    match value.owner:
        case interval.SegmentOfOp() as op:
            return _rises(op.position, q)
        case interval.SearchOp() as op:
            return _rises(op.value, q)
        case interval.ReadOp() as op:
            return is_ascending(op.table) and _rises(op.index, q)
        case xdsl_arith.AddiOp() | xdsl_arith.MaxSIOp() | xdsl_arith.MinSIOp() as op:
            return _rises(op.lhs, q) and _rises(op.rhs, q)
        case xdsl_arith.SubiOp() as op:
            return _rises(op.lhs, q) and not depends_on(of_atom(Value(op.rhs)), frozenset({q}))
        case xdsl_arith.FloorDivSIOp() as op:
            divisor = ConstantLike.get_constant_value(op.rhs)
            return isinstance(divisor, IntegerAttr) and divisor.value.data > 0 and _rises(op.lhs, q)
        case _:
            return value is q


def is_ascending(table: SSAValue) -> bool:
    """Whether a parameter's function says that the table's entries ascend (`ascending` lists their numbers)."""
    func = table.owner.parent_op() if isinstance(table, BlockArgument) else None
    listed = func.attributes.get("ascending") if func is not None else None
    if not is_array(listed) or not isinstance(table, BlockArgument):
        return False
    return any(is_integer(item) and item.value.data == table.index for item in listed.data)


# ---- translation invariance ----


def is_relative(expr: Expr, q: SSAValue) -> bool:
    """Whether the expression is q plus something that is the same on all rows."""
    found, conditions = leaves(expr)
    values = frozenset({q})
    if any(condition_depends(condition, values) for condition in conditions):
        return False
    return all(not depends_on(leaf - of_atom(Value(q)), values) for leaf in found)


def moving_bounds(func: interval.FuncOp, ranges: Iterable[interval.RangeOp], bounds: Bounds) -> list[SSAValue]:
    """The bounds of the ranges that are neither 0 below nor the number of keys above: lo, then hi, of each; each value
    once.
    """
    keys = of_atom(Value(func.body.block.args[2]))
    moving: dict[SSAValue, None] = {}
    for item in ranges:
        if lift(bounds, item.lo) != Expr(0):
            moving[item.lo] = None
        if lift(bounds, item.hi) != keys:
            moving[item.hi] = None
    return list(moving)
