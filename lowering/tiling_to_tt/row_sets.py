"""The intervals of some rows, as values of a kernel: how many keys of a tile they hold, and which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from compilemask.dialects import interval
from compilemask.lowering.descriptor_layout import KEYS
from compilemask.lowering.tiling_to_tt.builder import KernelBuilder, Value, i1, i32
from compilemask.lowering.tiling_to_tt.descriptor_bits import keys_between
from compilemask.lowering.tiling_to_tt.interval_values import Scope

FAR = 2**31 - 1


@dataclass(frozen=True)
class Extent:
    """Key tiles that one part of a set may touch, over all rows of a query tile: scalars.

    Outside the cover no row sees anything of the part; in the core every row sees every key. `connected`: all rows see
    some key in common, so that each tile of the cover holds a visible pair.
    """

    cover_begin: Value
    cover_end: Value
    core_begin: Value
    core_end: Value
    connected: Value


class RowSet:
    """The ranges and families of a set in normal form, for the rows of a scope, inside [0, keys)."""

    def __init__(self, scope: Scope, parts: Sequence[SSAValue], keys: Value) -> None:
        self.kb, self.scope, self.keys = scope.kb, scope, keys
        owners = [part.owner for part in parts]
        ranges = [owner for owner in owners if isinstance(owner, interval.RangeOp)]
        self.ranges = [self._clip(scope[op.lo], scope[op.hi], 0, keys) for op in ranges]
        self.families = [Lines(self, op) for op in owners if isinstance(op, interval.FamilyOp)]

    def _clip(self, lo: Value, hi: Value, least: Value | int, most: Value) -> tuple[Value, Value]:
        lo = self.kb.minimum(self.kb.maximum(lo, least), most)
        return lo, self.kb.maximum(self.kb.minimum(hi, most), lo)

    def clip_to_cell(self, lo: Value, hi: Value, start: Value, pitch: Value) -> tuple[Value, Value]:
        """The part of [lo, hi) in [start, start + pitch) and in [0, keys)."""
        return self._clip(lo, hi, self.kb.maximum(start, 0), self.kb.minimum(start + pitch, self.keys))

    # ---- over the rows of a tile ----

    def extents(self) -> list[Extent]:
        """The extent of each range, then of each family."""
        kb, columns = self.kb, list[tuple[Value, str]]()
        for lo, hi in self.ranges:
            some = lo < hi
            columns += [(kb.where(some, lo, FAR), "min"), (kb.where(some, hi, 0), "max"), (lo, "max"), (hi, "min")]
        for family in self.families:
            start, end = family.cells()
            some = start < end
            columns += [(kb.where(some, start, FAR), "min"), (kb.where(some, end, 0), "max")]
        found = iter(reduce_rows(kb, columns))
        extents = [self._extent(next(found), next(found), next(found), next(found)) for _ in self.ranges]
        nothing = kb.constant(0, i32)
        return extents + [self._extent(next(found), next(found), nothing, nothing) for _ in self.families]

    def _extent(self, cover_lo: Value, cover_hi: Value, core_lo: Value, core_hi: Value) -> Extent:
        return Extent(
            cover_lo >> 7, (cover_hi + (KEYS - 1)) >> 7, (core_lo + (KEYS - 1)) >> 7, core_hi >> 7, core_lo < core_hi
        )

    def holds(self, key: Value) -> Value:
        """Whether each row sees the key that is given for it: [rows] i1."""
        kb = self.kb
        found = kb.full(key.shape, False, i1)
        for lo, hi in self.ranges:
            found = found | ((lo <= key) & (key < hi))
        for family in self.families:
            lo, hi = family.member(self.scope, family.first_line(self.scope, key))
            found = found | ((lo <= key) & (key < hi))
        return found

    # ---- tiles of keys ----

    def coverage(self, start: Value) -> Value:
        """Keys that each row sees of the tiles that begin at keys `start` [1, tiles]: broadcasts to [rows, tiles]."""
        kb = self.kb
        total = kb.full((1, start.shape[1]), 0, i32)
        for lo, hi in self.ranges:
            total = total + self._overlap(column(lo), column(hi), start)
        for family in self.families:
            scope = self.scope.nested(beside_keys=True)
            with kb.for_loop(
                0, family.lines_per_tile(), 1, [kb.broadcast_to(total, (self.scope.rows, start.shape[1]))]
            ) as loop:
                lo, hi = family.member(scope, family.first_line(scope, start) + loop.index)
                loop.yield_(loop.carried[0] + self._overlap(lo, hi, start))
            (total,) = loop.results
        return total

    def _overlap(self, lo: Value, hi: Value, start: Value) -> Value:
        kb = self.kb
        return kb.maximum(kb.minimum(hi, start + KEYS) - kb.maximum(lo, start), 0)

    def words(self, start: Value, word: Value) -> Value:
        """Bits of the tile that begins at key `start`, for `word` [1, 4]: broadcasts to [rows, 4]."""
        kb = self.kb
        bits = kb.full((1, 4), 0, i32)
        for lo, hi in self.ranges:
            bits = bits | keys_between(kb, column(lo - start), column(hi - start), word)
        for family in self.families:
            with kb.for_loop(0, family.lines_per_tile(), 1, [kb.broadcast_to(bits, (self.scope.rows, 4))]) as loop:
                lo, hi = family.member(self.scope, family.first_line(self.scope, start) + loop.index)
                more = keys_between(kb, column(lo - start), column(hi - start), word)
                loop.yield_(loop.carried[0] | more)
            (bits,) = loop.results
        return bits


class Lines:
    """One family of a row set."""

    def __init__(self, rows: RowSet, op: interval.FamilyOp) -> None:
        self.rows, self.op, self.kb = rows, op, rows.kb
        member = op.body.block.last_op
        assert isinstance(member, interval.MemberOp)
        self._member = member

    def _pitch(self, scope: Scope) -> Value:
        return self.kb.maximum(scope[self.op.pitch], 1)

    def cells(self) -> tuple[Value, Value]:
        """Begin and end of the lines' cells inside [0, keys), per row; empty if there is no line."""
        kb, op, scope, keys = self.kb, self.op, self.rows.scope, self.rows.keys
        base, pitch = scope[op.base], self._pitch(scope)
        # Only lines whose cells touch the keys are multiplied: a line far outside would overflow.
        first = kb.maximum(scope[op.first], -base // pitch)
        last = kb.minimum(scope[op.last], -((base - keys) // pitch))
        some = first < last
        start, end = kb.where(some, base + first * pitch, 0), kb.where(some, base + last * pitch, 0)
        return kb.minimum(kb.maximum(start, 0), keys), kb.minimum(kb.maximum(end, 0), keys)

    def lines_per_tile(self) -> Value:
        """How many lines a tile of keys may touch: a scalar."""
        (pitch,) = reduce_rows(self.kb, [(self._pitch(self.rows.scope), "min")])
        return self.kb.trunc_div(pitch + (KEYS - 2), pitch) + 1

    def first_line(self, scope: Scope, start: Value) -> Value:
        """The line whose cell holds key `start`; lines before the first one exist in no cell."""
        return (start - scope[self.op.base]) // self._pitch(scope)

    def member(self, scope: Scope, line: Value) -> tuple[Value, Value]:
        """The intervals of lines; empty for a line that the family has not."""
        op, kb = self.op, self.kb
        inside = scope.nested({op.body.block.args[0]: line})
        inside.run(op.body.block)
        pitch = self._pitch(scope)
        lo, hi = inside[self._member.lo], inside[self._member.hi]
        lo, hi = self.rows.clip_to_cell(lo, hi, scope[op.base] + line * pitch, pitch)
        return lo, kb.where((scope[op.first] <= line) & (line < scope[op.last]), hi, lo)


def column(value: Value) -> Value:
    """A value per row as [rows, 1]; a scalar stays one."""
    return value[:, None] if len(value.shape) == 1 else value


def reduce_rows(kb: KernelBuilder, columns: Sequence[tuple[Value, str]]) -> list[Value]:
    """Minima and maxima over rows, all in one reduction; scalars stay as they are."""
    moving = [(value, kind) for value, kind in columns if value.shape]
    results: list[Value] = []
    if moving:
        combine = {"min": kb.minimum, "max": kb.maximum}
        results = list(
            kb.reduce_many(
                [value for value, _ in moving],
                0,
                lambda a, b: [combine[kind](x, y) for (_, kind), x, y in zip(moving, a, b, strict=True)],
            )
        )
    reduced = iter(results)
    return [next(reduced) if value.shape else value for value, _ in columns]


class MaskRows:
    """What some rows of a mask see: `inner`, and what of `outer` the predicate lets through if there is one."""

    def __init__(self, scope: Scope, func: interval.FuncOp, keys: Value) -> None:
        self.kb, self.scope = scope.kb, scope
        terminator = func.body.block.last_op
        assert isinstance(terminator, interval.ReturnOp)
        root = terminator.value.owner
        self.between = root if isinstance(root, interval.BetweenOp) else None
        if self.between is not None:
            self.inner, self.outer = (self._set(side, keys) for side in (self.between.inner, self.between.outer))
        else:
            self.inner = self.outer = self._set(terminator.value, keys)

    def _set(self, value: SSAValue, keys: Value) -> RowSet:
        concat = value.owner
        assert isinstance(concat, interval.ConcatOp)
        return RowSet(self.scope, concat.parts, keys)

    def words(self, start: Value) -> Value:
        """Bits of the tile that begins at key `start`: [rows, 4]."""
        kb = self.kb
        word = kb.arange(0, 4)[None, :]
        bits = self.inner.words(start, word)
        if self.between is not None:
            bits = bits | (self.outer.words(start, word) & self._asked(start, word))
        return kb.broadcast_to(bits, (self.scope.rows, 4))

    def _asked(self, start: Value, word: Value) -> Value:
        """Bits of the keys that the predicate shows, one word after the other."""
        kb, rows = self.kb, self.scope.rows
        bit = kb.arange(0, 32)[None, :]
        with kb.for_loop(0, 4, 1, [kb.full((rows, 4), 0, i32)]) as loop:
            key = start + ((bit >> 1) << 3) + (bit & 1) + (loop.index << 1)
            visible = kb.broadcast_to(self._visible(key), (rows, 32))
            bits = kb.reduce(kb.where(visible, 1 << bit, 0), 1, "or")
            loop.yield_(kb.where(word == loop.index, bits[:, None], loop.carried[0]))
        return loop.results[0]

    def _visible(self, key: Value) -> Value:
        """The predicate for keys [1, n]."""
        assert self.between is not None
        body = self.between.body.block
        row = self.scope.nested(beside_keys=True)
        inside = row.nested({body.args[0]: row[self.scope.q], body.args[1]: key})
        inside.run(body)
        last = body.last_op
        assert isinstance(last, interval.YieldOp)
        visible = inside[last.visible]
        return visible if visible.shape else self.kb.full((1, 1), visible, i1)
