"""What one row of a mask sees, as scalars of a function for the CPU: its intervals, and the bits of a tile of keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from compilemask.dialects import interval
from compilemask.lowering.descriptor_layout import KEYS, PATTERN_ROW_WORDS
from compilemask.lowering.tiling_to_scf.builder import I32, I64, FunctionBuilder, Value
from compilemask.lowering.tiling_to_scf.interval_values import Scope

Visit = Callable[[Value, Value, list[Value]], Sequence[Value]]
"""From an interval [lo, hi) and what is carried to what is carried on."""


class RowSet:
    """The ranges and families of a set in normal form, for the row of a scope, inside [0, keys)."""

    def __init__(self, scope: Scope, value: SSAValue, keys: Value) -> None:
        self.fb, self.scope, self.keys = scope.fb, scope, keys
        whole = value.owner
        owners = [part.owner for part in whole.parts] if isinstance(whole, interval.ConcatOp) else [whole]
        self._ranges = [owner for owner in owners if isinstance(owner, interval.RangeOp)]
        self._families = [Lines(self, owner) for owner in owners if isinstance(owner, interval.FamilyOp)]

    def clip(self, lo: Value, hi: Value, least: Value, most: Value) -> tuple[Value, Value]:
        """The part of an interval inside [least, most)."""
        fb = self.fb
        lo = fb.minimum(fb.maximum(lo, least), fb.maximum(most, least))
        return lo, fb.maximum(fb.minimum(hi, most), lo)

    def _in_ranges(self) -> list[tuple[Value, Value]]:
        zero = self.fb.like(0, self.keys)
        return [self.clip(self.scope[op.lo], self.scope[op.hi], zero, self.keys) for op in self._ranges]

    def every(self, initial: list[Value], visit: Visit) -> list[Value]:
        """Visit all intervals."""
        return self._each(initial, visit, lambda family: family.inside(self.fb.like(0, self.keys), self.keys))

    def in_tile(self, start: Value, initial: list[Value], visit: Visit) -> list[Value]:
        """Visit the intervals that may have keys of the tile that begins at key `start`."""
        return self._each(initial, visit, lambda family: family.inside(start, start + KEYS))

    def _each(
        self, carried: list[Value], visit: Visit, lines_of: Callable[[Lines], tuple[Value, Value]]
    ) -> list[Value]:
        fb = self.fb
        for lo, hi in self._in_ranges():
            carried = list(visit(lo, hi, carried))
        for family in self._families:
            first, last = lines_of(family)
            count = fb.maximum(last - first, fb.like(0, first))
            with fb.for_loop(fb.constant(0), fb.index(count), 1, carried) as loop:
                lo, hi = family.member(first + fb.integer(loop.index, I64))
                loop.yield_(*visit(lo, hi, loop.carried))
            carried = loop.results
        return carried

    def holds(self, key: Value) -> Value:
        """1 if the row sees a key, else 0."""
        fb = self.fb
        found = fb.constant(0, I64)
        for lo, hi in self._in_ranges():
            found = found | self._between(lo, key, hi)
        for family in self._families:
            first, last = family.inside(fb.like(0, key), self.keys)
            line = family.line_of(key)
            exists = fb.compare("sle", first, line) & fb.compare("slt", line, last)
            # The body of another line may leave 32 bits.
            lo, hi = family.member(fb.select(exists, line, first))
            found = found | (fb.integer(exists, I64) & self._between(lo, key, hi))
        return found

    def _between(self, lo: Value, key: Value, hi: Value) -> Value:
        return self.fb.integer(self.fb.compare("sle", lo, key) & self.fb.compare("slt", key, hi), I64)

    def words(self, start: Value) -> list[Value]:
        """The four words of the tile that begins at key `start`, i64."""
        fb = self.fb

        def add(lo: Value, hi: Value, words: list[Value]) -> list[Value]:
            seen = zip(words, keys_below(fb, hi - start), keys_below(fb, lo - start), strict=True)
            # hi >= lo: the keys below lo are among those below hi.
            return [word | fb.binary("xori", below_hi, below_lo) for word, below_hi, below_lo in seen]

        return self.in_tile(start, [fb.constant(0, I64)] * PATTERN_ROW_WORDS, add)


class Lines:
    """One family of a row's set."""

    def __init__(self, rows: RowSet, op: interval.FamilyOp) -> None:
        self.rows, self.op, self.fb = rows, op, rows.fb
        scope = rows.scope
        self._base, pitch = scope[op.base], scope[op.pitch]
        self._pitch = self.fb.maximum(pitch, self.fb.like(1, pitch))

    def line_of(self, key: Value) -> Value:
        """The line whose cell holds a key."""
        return self.rows.scope.floor_quotient(key - self._base, self._pitch)

    def inside(self, begin: Value, end: Value) -> tuple[Value, Value]:
        """First and last + 1 of the lines whose cells touch keys [begin, end), and [0, keys)."""
        fb, scope, zero = self.fb, self.rows.scope, self.fb.like(0, begin)
        begin, end = fb.maximum(begin, zero), fb.minimum(end, self.rows.keys)
        first = fb.maximum(scope[self.op.first], self.line_of(begin))
        behind = zero - scope.floor_quotient(self._base - end, self._pitch)
        return first, fb.minimum(scope[self.op.last], behind)

    def member(self, line: Value) -> tuple[Value, Value]:
        """The interval of a line, inside its cell and [0, keys)."""
        fb, body = self.fb, self.op.body.block
        scope = self.rows.scope.nested({body.args[0]: line})
        scope.run(body)
        member = body.last_op
        assert isinstance(member, interval.MemberOp)
        start = self._base + line * self._pitch
        least, most = fb.maximum(start, fb.like(0, start)), fb.minimum(start + self._pitch, self.rows.keys)
        return self.rows.clip(scope[member.lo], scope[member.hi], least, most)


class MaskRow:
    """What a row sees: `inner`, and what of `outer` the predicate lets through if there is one."""

    def __init__(self, scope: Scope, func: interval.FuncOp, keys: Value) -> None:
        self.fb, self.scope = scope.fb, scope
        scope.run(func.body.block)
        terminator = func.body.block.last_op
        assert isinstance(terminator, interval.ReturnOp)
        root = terminator.value.owner
        self._between = root if isinstance(root, interval.BetweenOp) else None
        inner, outer = (root.inner, root.outer) if isinstance(root, interval.BetweenOp) else [terminator.value] * 2
        self.inner, self.outer = RowSet(scope, inner, keys), RowSet(scope, outer, keys)
        self._row = func.body.block.args[0]

    def words(self, start: Value) -> list[Value]:
        """The four words of the tile that begins at key `start`, i32."""
        words = self.inner.words(start)
        if self._between is not None:
            asked = zip(words, self.outer.words(start), self._asked(self._between, start), strict=True)
            words = [inner | (outer & visible) for inner, outer, visible in asked]
        return [self.fb.convert("trunci", word, I32) for word in words]

    def _asked(self, between: interval.BetweenOp, start: Value) -> list[Value]:
        """Bits of the keys that the predicate shows. It is written once: it may be long."""
        fb, body, one = self.fb, between.body.block, self.fb.constant(1, I64)
        words = fb.scratch(PATTERN_ROW_WORDS, I64)
        with fb.for_loop(fb.constant(0), fb.constant(PATTERN_ROW_WORDS)) as of_word:
            first = start + (fb.integer(of_word.index, I64) << 1)
            with fb.for_loop(fb.constant(0), fb.constant(32), 1, [fb.constant(0, I64)]) as of_bit:
                bit = fb.integer(of_bit.index, I64)
                key = first + ((bit >> 1) << 3) + (bit & one)
                scope = self.scope.nested({body.args[0]: self.scope[self._row], body.args[1]: key})
                scope.run(body)
                last = body.last_op
                assert isinstance(last, interval.YieldOp)
                of_bit.yield_(of_bit.carried[0] | (fb.integer(scope[last.visible], I64) << bit))
            fb.store(of_bit.results[0], words, of_word.index)
        return [fb.load(words, fb.constant(word)) for word in range(PATTERN_ROW_WORDS)]


def keys_below(fb: FunctionBuilder, limit: Value) -> list[Value]:
    """The four words of a row whose keys < limit are visible, in the order of docs/descriptor.md, i64."""
    limit = fb.minimum(fb.maximum(limit, fb.like(0, limit)), fb.like(KEYS, limit))
    # A word holds two of every eight keys.
    whole, rest = (limit >> 3) << 1, limit & 7
    zero, two, one = (fb.constant(number, I64) for number in (0, 2, 1))
    counts = [whole + fb.minimum(fb.maximum(rest - 2 * word, zero), two) for word in range(PATTERN_ROW_WORDS)]
    return [(one << count) - 1 for count in counts]
