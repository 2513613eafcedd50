"""Claims about the room that partial tiles get: each bound moves from row to row as passes/bound_motion.py counts it.

What follows from a kind of motion for the number of partial tiles is a table of lemmas (tests/test_prove_motion.py).
Here it is proved that the bounds of one function have the kinds that the table was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

from xdsl.ir import SSAValue

from compilemask.dialects import interval
from compilemask.passes.bound_motion import Motion
from compilemask.passes.bounds import (
    All,
    Condition,
    Expr,
    Select,
    constant,
    function_bounds,
    leaves,
    lift,
    of_atom,
)
from compilemask.passes.smt.bound_terms import condition_term, term
from compilemask.passes.smt.call import Call, Counterexample, ascending_tables
from compilemask.passes.smt.claims import Claim
from compilemask.passes.smt.interval_terms import LEADING, Row, parts_of
from compilemask.passes.smt.library import Term, z3
from compilemask.passes.smt.world import World


def reserve_claims(func: interval.FuncOp, name: str, height: int) -> list[Claim]:
    """What must hold of the bounds of an interval function for which room is reserved by the tiling function `name`,
    in tiles of `height` rows.
    """
    root = func.body.block.last_op
    assert isinstance(root, interval.ReturnOp)
    if isinstance(root.value.owner, interval.BetweenOp):
        return []
    bounds = function_bounds(func)
    ranges = [part for part in parts_of(root.value) if isinstance(part, interval.RangeOp)]
    values = list(dict.fromkeys(chain.from_iterable((item.lo, item.hi) for item in ranges)))
    split = {value: leaves(lift(bounds, value)) for value in values}
    motion = Motion(func.body.block.args[0], height)
    for value in values:
        motion.add(lift(bounds, value))
    if not motion.known or not values:
        return []
    found = dict.fromkeys(leaf for some, _ in split.values() for leaf in some)
    conditions = dict.fromkeys(item for _, some in split.values() for whole in some for item in _items(whole))

    def one_of(rows: list[Row]) -> Term:
        row = rows[0]
        return z3().And(*[_is_leaf(row, value, some) for value, (some, _) in split.items()])

    def moves(rows: list[Row]) -> Term:
        kinds = [_moves(rows, leaf, motion) for leaf in found]
        return z3().And(*kinds, *[_switches(rows, condition, motion.q) for condition in conditions])

    return [
        Claim(name, "leaves", "a bound has the value of a leaf that was counted", _at_rows(func, 1, one_of), _trusted),
        Claim(name, "motion", "leaves move, and conditions switch, as counted", _at_rows(func, 4, moves), _trusted),
    ]


def _trusted(found: Counterexample) -> bool:
    """These claims are about expressions of the compiler, which nothing executes."""
    return True


def _items(condition: Condition) -> list[Condition]:
    return [part for item in condition.items for part in _items(item)] if isinstance(condition, All) else [condition]


def _at_rows(func: interval.FuncOp, count: int, holds: Callable[[list[Row]], Term]) -> Callable[[World, Call], Term]:
    """A claim about so many rows, of which the first two are in order, and so are the next two."""

    def stated(world: World, call: Call) -> Term:
        rows = [call.q, *(world.integer("row") for _ in range(count - 1))]
        for row in rows:
            world.know(row >= 0, row < call.queries)
        world.know(*[a <= b for a, b in zip(rows[::2], rows[1::2], strict=False)])
        call.assume_ascending(number - LEADING for number in ascending_tables(func))
        return holds([Row(world, func, row, call.queries, call.keys, call.parameters) for row in rows])

    return stated


def _is_leaf(row: Row, value: SSAValue, found: list[Expr]) -> Term:
    return z3().Or(*[row.values[value] == term(row, leaf) for leaf in found])


def _moves(rows: list[Row], leaf: Expr, whole: Motion) -> Term:
    """A line of the table by which the leaf is counted as here, or as less. That it always rises or always falls is a
    claim about any two pairs of rows: the one rises or the other falls.
    """
    a, b, c, d = (term(row, leaf) for row in rows)
    motion = Motion(whole.q, whole.rows)
    motion.add(leaf)
    if motion.per_key_tile:
        return z3().Or(a <= b, c >= d)
    if motion.per_query_tile == 0:
        return a == 0
    offset = c - rows[2].q
    diagonal = offset == d - rows[3].q
    kinds = [a == b]
    if motion.per_query_tile >= motion.on_aligned_diagonal:
        kinds.append(z3().And(diagonal, offset % motion.unit <= 1))
    if motion.per_query_tile >= motion.on_diagonal:
        kinds.append(diagonal)
    return z3().Or(*kinds)


def _switches(rows: list[Row], condition: Condition, q: SSAValue) -> Term:
    """A condition that is counted once holds before some row or from it on; one that is not is the same on all rows."""
    a, b, c, d = (condition_term(row, condition) for row in rows)
    motion = Motion(q)
    motion.add(of_atom(Select(condition, constant(0), constant(0))))
    if motion.per_key_tile == 0:
        return a == b
    return z3().Or(z3().Implies(a, b), z3().Implies(d, c))


__all__ = ["reserve_claims"]
