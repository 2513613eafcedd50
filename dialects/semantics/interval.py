"""What an `interval.func` means: the keys that each row sees, as booleans or, in normal form, as bounds per row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import Block, Operation, SSAValue

from compilemask.dialects import interval
from compilemask.dialects.semantics import arith
from compilemask.dialects.semantics.arith import Value
from compilemask.errors import LoweringError

Argument = int | NDArray[np.integer]


@dataclass(frozen=True)
class Family:
    """A family per row: lines first <= line < last, whose cells start at base + line * pitch. Arrays are int64 [Sq]."""

    first: Value
    last: Value
    base: Value
    pitch: Value
    arity: int
    """Bound on last - first, or `UNBOUNDED`."""
    members: Callable[[Value, Value], tuple[Value, Value]]
    """(rows, lines) -> (lo, hi): the intervals of lines in rows, clipped to the lines' cells; operands broadcast."""


@dataclass(frozen=True)
class Between:
    """An inner and an outer set, and the predicate (q, kv) -> bool that decides between them."""

    inner: RowSets
    outer: RowSets
    predicate: Callable[[Value, Value], Value]


@dataclass(frozen=True)
class RowSets:
    """A set in normal form, for `rows` rows: ranges as (lo, hi), int64 [rows] each, and families; or a `between` alone.

    The parts are those of the function, one to one; a set of no parts shows nothing.
    """

    rows: int
    ranges: tuple[tuple[Value, Value], ...] = ()
    families: tuple[Family, ...] = ()
    between: Between | None = None


def visible(
    func: interval.FuncOp, arguments: Sequence[Argument], queries: int, keys: int, *, rows: slice | None = None
) -> NDArray[np.bool_]:
    """Which keys rows see: bool [queries, keys], or the given `rows` of it. `arguments` are the mask's parameters."""
    wanted = range(queries)[rows if rows is not None else slice(None)]
    frame = _Frame(func, arguments, queries, keys, np.asarray(wanted, dtype=np.int64))
    frame.run(func.body.block)
    return np.array(np.broadcast_to(frame.dense(_returned(func)), (len(wanted), keys)), dtype=np.bool_)


def evaluate(
    func: interval.FuncOp,
    arguments: Sequence[Argument],
    queries: int,
    keys: int,
    rows: NDArray[np.int64] | None = None,
) -> RowSets:
    """The bounds of a function in normal form, for all rows or those given. Bounds are not clipped to [0, keys)."""
    frame = _Frame(func, arguments, queries, keys, np.arange(queries, dtype=np.int64) if rows is None else rows)
    frame.run(func.body.block)
    return frame.normal_form(_returned(func))


def check_normal_form(func: interval.FuncOp, arguments: Sequence[Argument], queries: int, keys: int) -> None:
    """Raises `AssertionError` unless the function is in normal form, with sorted and disjoint parts on this data."""
    sets = evaluate(func, arguments, queries, keys)
    name = f"@{func.sym_name.data}"
    if sets.between is None:
        _check_disjoint(sets, keys, name)
        return
    _check_disjoint(sets.between.inner, keys, f"inner set of {name}")
    _check_disjoint(sets.between.outer, keys, f"outer set of {name}")
    frame = _Frame(func, arguments, queries, keys, np.arange(queries, dtype=np.int64))
    frame.run(func.body.block)
    between = _returned(func).owner
    assert isinstance(between, interval.BetweenOp)
    outside = frame.dense(between.inner) & ~frame.dense(between.outer)
    assert not outside.any(), f"{name}: the inner set leaves the outer set"


def dense_of(sets: RowSets, keys: int) -> NDArray[np.bool_]:
    """The keys in [0, keys) that a normal form shows: bool [Sq, keys]."""
    if sets.between is not None:
        inner, outer = dense_of(sets.between.inner, keys), dense_of(sets.between.outer, keys)
        q, kv = np.arange(len(inner))[:, None], np.arange(keys)[None, :]
        return inner | (outer & sets.between.predicate(q, kv))
    return _counts(sets, keys) > 0


def _counts(sets: RowSets, keys: int) -> Value:
    """How many parts of the set hold each key, int [Sq, keys]."""
    kv = np.arange(keys, dtype=np.int64)[None, :]
    counts = np.zeros((sets.rows, keys), dtype=np.int64)
    for lo, hi in sets.ranges:
        counts += (lo[:, None] <= kv) & (kv < hi[:, None])
    for family in sets.families:
        line = (kv - family.base[:, None]) // family.pitch[:, None]
        lo, hi = family.members(np.arange(sets.rows)[:, None], line)
        inside = (family.first[:, None] <= line) & (line < family.last[:, None])
        counts += inside & (lo <= kv) & (kv < hi)
    return counts


def _check_disjoint(sets: RowSets, keys: int, name: str) -> None:
    end = np.zeros(1, dtype=np.int64)
    for position, (lo, hi) in enumerate(sets.ranges):
        lo, hi = np.clip(lo, 0, keys), np.clip(hi, 0, keys)
        some = lo < hi
        bad = some & (lo < end)
        assert not bad.any(), f"{name}: range {position} starts before an earlier one ends, first in row {bad.argmax()}"
        end = np.where(some, hi, end)
    for position, family in enumerate(sets.families):
        bad = (family.first < family.last) & (family.pitch < 1)
        assert not bad.any(), f"{name}: family {position} has a pitch below 1, first in row {bad.argmax()}"
        if family.arity != interval.UNBOUNDED:
            bad = family.last - family.first > family.arity
            assert not bad.any(), (
                f"{name}: family {position} has more than {family.arity} lines, first in row {bad.argmax()}"
            )
    if sets.ranges or sets.families:
        twice = (_counts(sets, keys) > 1).any(axis=1)
        assert not twice.any(), f"{name}: parts overlap, first in row {twice.argmax()}"


def _returned(func: interval.FuncOp) -> SSAValue:
    last = func.body.block.last_op
    assert isinstance(last, interval.ReturnOp)
    return last.value


class _Frame:
    """Evaluates a function on a set of rows. A bound broadcasts to [rows, 1]; sets are looked at on demand."""

    def __init__(
        self, func: interval.FuncOp, arguments: Sequence[Argument], queries: int, keys: int, rows: Value
    ) -> None:
        block, name = func.body.block, func.sym_name.data
        if len(arguments) + 3 != len(block.args):
            raise TypeError(f"@{name} takes {len(block.args) - 3} mask parameters, got {len(arguments)}")
        self.name, self.keys, self.rows = name, keys, rows
        self.values: dict[SSAValue, Value] = {block.args[0]: rows[:, None]}
        for argument, value in zip(block.args[1:], (queries, keys, *arguments), strict=True):
            what = f"argument {argument.name_hint or argument.index} of @{name}"
            self.values[argument] = arith.as_argument(value, argument.type, what)

    def run(self, block: Block) -> None:
        """Executes the bounds of a block; sets have no value of their own."""
        for op in block.ops:
            _step(op, self.values)

    # ---- dense ----

    def dense(self, value: SSAValue) -> Value:
        """The keys of a set as a bool array that broadcasts to [rows, keys]."""
        op, kv = value.owner, np.arange(self.keys, dtype=np.int64)[None, :]
        match op:
            case interval.RangeOp():
                return (self.values[op.lo] <= kv) & (kv < self.values[op.hi])
            case interval.FamilyOp():
                return self._dense_family(op, kv)
            case interval.WhenOp():
                return self.values[op.condition] & self.dense(op.value)
            case interval.ConcatOp():
                parts = [self.dense(part) for part in op.parts]
                return np.logical_or.reduce(np.broadcast_arrays(np.zeros((1, self.keys), dtype=np.bool_), *parts))
            case interval.UnionOp():
                return self.dense(op.lhs) | self.dense(op.rhs)
            case interval.IntersectOp():
                return self.dense(op.lhs) & self.dense(op.rhs)
            case interval.ComplementOp():
                return ~self.dense(op.value)
            case interval.BetweenOp():
                decided = _evaluate_body(op.body.block, self.values, (self.rows[:, None], kv))[0]
                return self.dense(op.inner) | (self.dense(op.outer) & decided)
            case _:
                raise LoweringError(f"@{self.name}: a set cannot come from {op}")

    def _dense_family(self, op: interval.FamilyOp, kv: Value) -> Value:
        base, pitch = self.values[op.base], np.maximum(self.values[op.pitch], 1)
        line = np.asarray((kv - base) // pitch)
        inside = (self.values[op.first] <= line) & (line < self.values[op.last])
        # Other lines are never asked; a body may overflow far outside the raster.
        lo, hi = _evaluate_body(op.body.block, self.values, (np.where(inside, line, self.values[op.first]),))
        return inside & (lo <= kv) & (kv < hi)

    # ---- normal form ----

    def normal_form(self, value: SSAValue) -> RowSets:
        """The set as bounds per row."""
        op = value.owner
        if isinstance(op, interval.BetweenOp):
            body = op.body.block

            def predicate(q: Value, kv: Value) -> Value:
                return _evaluate_body(body, self._at_rows(body, q), (q, kv))[0]

            between = Between(self._concat(op.inner), self._concat(op.outer), predicate)
            return RowSets(len(self.rows), between=between)
        return self._concat(value)

    def _concat(self, value: SSAValue) -> RowSets:
        owner = value.owner
        parts = list(owner.parts) if isinstance(owner, interval.ConcatOp) else [value]
        ranges: list[tuple[Value, Value]] = []
        families: list[Family] = []
        for part in parts:
            op = part.owner
            if isinstance(op, interval.RangeOp) and not families:
                ranges.append((self._per_row(op.lo), self._per_row(op.hi)))
            elif isinstance(op, interval.FamilyOp):
                families.append(self._family(op))
            else:
                what = op.name if isinstance(op, Operation) else "a block argument"
                raise AssertionError(f"@{self.name} is not in normal form: {what} in a concat")
        return RowSets(len(self.rows), tuple(ranges), tuple(families))

    def _family(self, op: interval.FamilyOp) -> Family:
        body = op.body.block
        base, pitch = self._per_row(op.base), self._per_row(op.pitch)

        def members(rows: Value, lines: Value) -> tuple[Value, Value]:
            rows, lines = np.asarray(rows), np.asarray(lines)
            lo, hi = _evaluate_body(body, self._at_rows(body, rows), (lines,))
            cell = base[rows] + lines * pitch[rows]
            return np.maximum(lo, cell), np.minimum(hi, cell + pitch[rows])

        return Family(
            self._per_row(op.first), self._per_row(op.last), base, pitch, interval.set_of(op.result).count, members
        )

    def _per_row(self, value: SSAValue) -> Value:
        return np.array(np.broadcast_to(self.values[value], (len(self.rows), 1))[:, 0])

    def _at_rows(self, body: Block, rows: Value) -> dict[SSAValue, Value]:
        """What a body asks of the frame, as the given rows see it: values per row are gathered, others stay."""
        asked = {operand for op in body.ops for operand in op.operands}
        return {
            key: value[:, 0][rows] if value.ndim == 2 and value.shape[1] == 1 else value
            for key, value in self.values.items()
            if key in asked
        }


def _evaluate_body(block: Block, values: dict[SSAValue, Value], arguments: tuple[Value, ...]) -> tuple[Value, ...]:
    """Executes the body of a family or a between with its block arguments bound; the operands of its terminator."""
    local = dict(values)
    local.update(zip(block.args, arguments, strict=True))
    for op in block.ops:
        if isinstance(op, interval.MemberOp | interval.YieldOp):
            return tuple(np.asarray(local[operand]) for operand in op.operands)
        _step(op, local)
    raise ValueError("a block without a terminator")


def _step(op: Operation, values: dict[SSAValue, Value]) -> None:
    """Executes one operation on bounds."""
    match op:
        case interval.ReadOp():
            values[op.result] = arith.read(values[op.table], values[op.index])
        case interval.SegmentOfOp():
            values[op.begin], values[op.end] = arith.segment_of(values[op.offsets], values[op.position])
        case interval.SearchOp():
            values[op.result] = arith.search(values[op.table], values[op.value])
        case interval.IsqrtOp():
            values[op.result] = isqrt(values[op.operand])
        case _ if arith.handles(op):
            values[op.results[0]] = arith.execute(op, [values[operand] for operand in op.operands])
        case interval.ReturnOp() if op.parent is not None:
            pass
        case _ if op.results and isinstance(op.results[0].type, interval.SetType):
            pass
        case _:
            raise LoweringError(f"{op.name} has no semantics at the interval level")


def isqrt(value: Value) -> Value:
    """The largest integer whose square is at most `value`, -1 for negative values; exact."""
    value = np.asarray(value, dtype=np.int64)
    root = np.sqrt(np.maximum(value, 0).astype(np.float64)).astype(np.int64)
    return np.where(value < 0, -1, root)


__all__ = ["Between", "Family", "RowSets", "check_normal_form", "dense_of", "evaluate", "isqrt", "visible"]
