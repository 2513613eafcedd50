"""Claims about an interval function in normal form: it says what its mask says, and its parts are in order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
from xdsl.ir import BlockArgument

from compilemask.dialects import interval, mask
from compilemask.dialects.semantics import interval as interval_semantics
from compilemask.dialects.semantics import mask as mask_semantics
from compilemask.errors import LoweringError
from compilemask.passes.smt import mask_terms
from compilemask.passes.smt.call import Call, Counterexample, ascending_tables
from compilemask.passes.smt.claims import Claim
from compilemask.passes.smt.interval_terms import LEADING, Part, Row, parts_of
from compilemask.passes.smt.library import Term, z3
from compilemask.passes.smt.world import World


def interval_claims(func: interval.FuncOp, source: mask.FuncOp | None = None) -> list[Claim]:
    """What must hold of an interval function, and of it and the mask that it was lowered from."""
    claims = [] if source is None else _faithful(source, func)
    root = func.body.block.last_op
    assert isinstance(root, interval.ReturnOp)
    owner = root.value.owner
    sets = [("", root.value)]
    if isinstance(owner, interval.BetweenOp):
        sets = [("inner ", owner.inner), ("outer ", owner.outer)]
        if source is None:
            claims.append(_nested(func, owner))
    for prefix, value in sets:
        try:
            claims += _ordered(func, source, parts_of(value), prefix)
        except ValueError:  # not in normal form; its meaning has been compared all the same
            continue
    return claims


# ---- the mask and its intervals ----


def _faithful(source: mask.FuncOp, func: interval.FuncOp) -> list[Claim]:
    given, expected = func.function_type.inputs.data[3:], source.function_type.inputs.data
    if given != expected:
        raise LoweringError(f"prove: @{func.sym_name.data} does not take the parameters of its mask")
    _check_ascending(source, func)
    root = func.body.block.last_op
    assert isinstance(root, interval.ReturnOp)
    between = root.value.owner

    def claim(name: str, meaning: str, holds: Callable[[Term, Row, Term], Term], also: _Also | None = None) -> Claim:
        def stated(world: World, call: Call) -> Term:
            return holds(mask_terms.visible(world, source, call), Row.of_call(world, func, call), call.kv)

        def violated(found: Counterexample) -> bool:
            return _differs(source, func, found) or (also is not None and _one_sided(source, func, found, also))

        return Claim(func.sym_name.data, name, meaning, stated, violated)

    if not isinstance(between, interval.BetweenOp):
        return [claim("visible", "the set holds the visible keys", lambda seen, row, kv: seen == row.visible(kv))]
    inner, outer = between.inner, between.outer

    def decides(seen: Term, row: Row, kv: Term) -> Term:
        open_ = z3().And(row.contains(outer, kv), z3().Not(row.contains(inner, kv)))
        return z3().Implies(open_, seen == row.predicate(between, kv))

    return [
        claim(
            "inner",
            "keys of the inner set are visible",
            lambda seen, row, kv: z3().Implies(row.contains(inner, kv), seen),
            lambda seen, between, kv: interval_semantics.dense_of(between.inner, kv + 1)[-1, kv] and not seen,
        ),
        claim(
            "outer",
            "visible keys lie in the outer set",
            lambda seen, row, kv: z3().Implies(seen, row.contains(outer, kv)),
            lambda seen, between, kv: seen and not interval_semantics.dense_of(between.outer, kv + 1)[-1, kv],
        ),
        claim("predicate", "between the two, the predicate says what is visible", decides),
    ]


def _check_ascending(source: mask.FuncOp, func: interval.FuncOp) -> None:
    """Raises LoweringError if the intervals take a table to ascend of which the mask does not say so."""
    said: set[int] = set()
    for op in source.body.walk():
        said.update(ascending_tables(op))
        if isinstance(op, mask.SegmentsOp | mask.SearchOp):
            table = op.offsets if isinstance(op, mask.SegmentsOp) else op.table
            assert isinstance(table, BlockArgument)
            said.add(table.index)
    for number in ascending_tables(func):
        if number - LEADING not in said:
            name = func.body.block.args[number].name_hint
            raise LoweringError(f"prove: @{func.sym_name.data} takes {name} to ascend, its mask does not say so")


_Also = Callable[[bool, interval_semantics.Between, int], bool]


def _seen(source: mask.FuncOp, found: Counterexample) -> bool:
    row = slice(found.q, found.q + 1)
    return bool(mask_semantics.visible(source, found.arguments(), found.queries, found.keys, rows=row)[0, found.kv])


def _differs(source: mask.FuncOp, func: interval.FuncOp, found: Counterexample) -> bool:
    """Whether the two levels, executed, disagree about a pair."""
    row = slice(found.q, found.q + 1)
    try:
        shown = interval_semantics.visible(func, found.arguments(), found.queries, found.keys, rows=row)
        return bool(shown[0, found.kv]) != _seen(source, found)
    except (OverflowError, IndexError):
        return False


def _one_sided(source: mask.FuncOp, func: interval.FuncOp, found: Counterexample, test: _Also) -> bool:
    """Whether one side of a `between`, executed, is wrong about a pair."""
    try:
        # The last of q + 1 rows is row q; the number of queries is what it was.
        sets = interval_semantics.evaluate(func, found.arguments(), found.queries, found.keys)
        assert sets.between is not None
        one = interval_semantics.Between(
            _row_of(sets.between.inner, found.q), _row_of(sets.between.outer, found.q), sets.between.predicate
        )
        return bool(test(_seen(source, found), one, found.kv))
    except (OverflowError, IndexError):
        return False


def _row_of(sets: interval_semantics.RowSets, q: int) -> interval_semantics.RowSets:
    """One row of a set."""
    row = slice(q, q + 1)
    families = tuple(
        interval_semantics.Family(
            f.first[row],
            f.last[row],
            f.base[row],
            f.pitch[row],
            f.arity,
            lambda rows, lines, f=f: f.members(np.asarray(rows) + q, lines),
        )
        for f in sets.families
    )
    return interval_semantics.RowSets(1, tuple((lo[row], hi[row]) for lo, hi in sets.ranges), families)


# ---- the parts of a set ----


def _nested(func: interval.FuncOp, between: interval.BetweenOp) -> Claim:
    def holds(world: World, call: Call) -> Term:
        row = Row.of_call(world, func, call)
        return z3().Implies(row.contains(between.inner, call.kv), row.contains(between.outer, call.kv))

    return Claim(func.sym_name.data, "nested", "the inner set lies in the outer one", holds, _malformed(func))


def _ordered(func: interval.FuncOp, source: mask.FuncOp | None, parts: list[Part], prefix: str) -> list[Claim]:
    name, claims = func.sym_name.data, list[Claim]()
    ranges = [part for part in parts if isinstance(part, interval.RangeOp)]
    families = [part for part in parts if isinstance(part, interval.FamilyOp)]

    def row_of(world: World, call: Call) -> Row:
        if source is not None:  # for what the mask's operations take for granted
            mask_terms.visible(world, source, call)
        return Row.of_call(world, func, call)

    def sorted_(world: World, call: Call) -> Term:
        row = row_of(world, call)
        bounds = [(_clipped(row, part.lo), _clipped(row, part.hi)) for part in ranges]
        pairs = combinations(bounds, 2)
        return z3().And(*[z3().Implies(z3().And(a < b, c < d), b <= c) for (a, b), (c, d) in pairs])

    def disjoint(world: World, call: Call) -> Term:
        row = row_of(world, call)
        holding = [row.contains(part.result, call.kv) for part in parts]
        first = len(ranges)
        pairs = [(a, b) for b in range(first, len(parts)) for a in range(b)]
        return z3().And(*[z3().Not(z3().And(holding[a], holding[b])) for a, b in pairs])

    def lines(world: World, call: Call) -> Term:
        row = row_of(world, call)
        return z3().And(*[_lines(row, family) for family in families])

    if len(ranges) > 1:
        claims.append(
            Claim(name, f"{prefix}sorted", "non-empty ranges are sorted and disjoint", sorted_, _malformed(func))
        )
    if families:
        claims.append(Claim(name, f"{prefix}lines", "lines are as many as promised", lines, _malformed(func)))
    if families and len(parts) > 1:
        meaning = "families are disjoint from other parts"
        claims.append(Claim(name, f"{prefix}disjoint", meaning, disjoint, _malformed(func)))
    return claims


def _clipped(row: Row, bound: object) -> Term:
    value = row.values[bound]  # type: ignore[index]
    return z3().If(value < 0, z3().IntVal(0), z3().If(value > row.keys, row.keys, value))


def _lines(row: Row, family: interval.FamilyOp) -> Term:
    first, last, pitch = row.values[family.first], row.values[family.last], row.values[family.pitch]
    arity = interval.set_of(family.result).count
    few = z3().BoolVal(True) if arity == interval.UNBOUNDED else last - first <= arity
    return z3().Implies(first < last, z3().And(pitch >= 1, few))


def _malformed(func: interval.FuncOp) -> Callable[[Counterexample], bool]:
    """Whether a call, executed, shows a set that is not in normal form."""

    def violated(found: Counterexample) -> bool:
        try:
            interval_semantics.check_normal_form(func, found.arguments(), found.queries, found.keys)
        except AssertionError:
            return True
        except (OverflowError, IndexError):
            return False
        return False

    return violated


__all__ = ["interval_claims"]
