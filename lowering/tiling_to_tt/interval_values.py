"""The arithmetic of an interval function, emitted on values of a kernel: scalars, rows, or rows beside keys.

A value that does not depend on the row stays a scalar. Rows are tensors of rank 1; beside keys (rank 2) they stand
along axis 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import FloatAttr, IntegerAttr
from xdsl.ir import Block, Operation, SSAValue

from compilemask.dialects import interval
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt.arithmetic import arithmetic
from compilemask.lowering.tiling_to_tt.builder import KernelBuilder, Value, f32, i32


@dataclass(frozen=True)
class Table:
    """A mask parameter in memory: its first entry and how many it has (at least one)."""

    pointer: Value
    length: Value


Binding: TypeAlias = Value | Table


class Scope:
    """The values of one block of an interval function, at one place of the kernel.

    With `beside_keys`, values per row are columns [rows, 1]. A scope belongs to the region in which it is made.
    `q` is the function's argument for the row, `rows` how many rows there are (1 if the row is a scalar).
    """

    def __init__(
        self,
        kb: KernelBuilder,
        q: SSAValue,
        bindings: Mapping[SSAValue, Binding],
        *,
        rows: int = 1,
        beside_keys: bool = False,
    ) -> None:
        self.kb, self.q, self.rows, self.beside_keys = kb, q, rows, beside_keys
        self._bindings = dict(bindings)

    def __getitem__(self, value: SSAValue) -> Value:
        found = self._bindings[value]
        if isinstance(found, Table):
            raise LoweringError("a table is no number")
        if self.beside_keys and len(found.shape) == 1:
            found = self._bindings[value] = found[:, None]
        return found

    def table(self, value: SSAValue) -> Table:
        """A table parameter."""
        found = self._bindings[value]
        if not isinstance(found, Table):
            raise LoweringError("a number is no table")
        return found

    def nested(self, arguments: Mapping[SSAValue, Value] | None = None, *, beside_keys: bool = False) -> Scope:
        """A scope inside this one, with more values bound."""
        bindings = {**self._bindings, **(arguments or {})}
        return Scope(self.kb, self.q, bindings, rows=self.rows, beside_keys=beside_keys or self.beside_keys)

    def run(self, block: Block) -> None:
        """Emit the arithmetic of a block; sets and terminators have no value."""
        for op in block.ops:
            if not isinstance(op, _WITHOUT_VALUE):
                self._emit(op)

    def _emit(self, op: Operation) -> None:
        match op:
            case interval.ReadOp():
                self._bind(op.result, read(self.kb, self.table(op.table), self[op.index]))
            case interval.SegmentOfOp():
                begin, end = segment_of(self.kb, self.table(op.offsets), self[op.position])
                self._bind(op.begin, begin)
                self._bind(op.end, end)
            case interval.SearchOp():
                self._bind(op.result, search(self.kb, self.table(op.table), self[op.value]))
            case interval.IsqrtOp():
                self._bind(op.result, isqrt(self.kb, self[op.operand]))
            case xdsl_arith.ConstantOp():
                assert isinstance(op.value, IntegerAttr | FloatAttr)
                self._bind(op.result, self.kb.constant(op.value.value.data, op.result.type))
            case _:
                self._bind(op.results[0], arithmetic(self.kb, op, [self[operand] for operand in op.operands]))

    def _bind(self, name: SSAValue, value: Value) -> None:
        self._bindings[name] = value.named(name.name_hint) if name.name_hint else value


_WITHOUT_VALUE = (
    interval.RangeOp,
    interval.FamilyOp,
    interval.ConcatOp,
    interval.BetweenOp,
    interval.ReturnOp,
    interval.MemberOp,
    interval.YieldOp,
)

# ---- tables and roots ----


def read(kb: KernelBuilder, table: Table, index: Value) -> Value:
    """The entries at an index; an index outside the table reads the nearest entry."""
    nearest = kb.maximum(kb.minimum(index, table.length - 1), 0)
    return kb.load(table.pointer + nearest)


def segment_of(kb: KernelBuilder, offsets: Table, position: Value) -> tuple[Value, Value]:
    """Begin and end of the segment that holds each position; both are position + 1 where none does.

    A binary search whose depth follows from the table's length at run time. It reads inside the table whatever the
    table holds.
    """
    behind = position + 1
    segment = _entries_up_to(kb, offsets, position) - 1
    inside = (segment >= 0) & (segment < offsets.length - 1)
    begin = kb.load(offsets.pointer + segment, mask=inside, other=behind)
    end = kb.load(offsets.pointer + (segment + 1), mask=inside, other=behind)
    return kb.maximum(begin, 0), end


def search(kb: KernelBuilder, table: Table, value: Value) -> Value:
    """The first position of an ascending table with at least each value; 2^30 beyond an end where none is inside."""
    found = _entries_up_to(kb, table, value - 1)
    return kb.where(found == 0, -(2**30), kb.where(found == table.length, 2**30, found))


def _entries_up_to(kb: KernelBuilder, offsets: Table, position: Value) -> Value:
    """How many entries of an ascending table are at most `position`."""
    step = _highest_power_of_two(kb, offsets.length)
    found = kb.full(position.shape, 0, i32) if position.shape else kb.constant(0, i32)
    with kb.while_loop([step, found]) as loop:
        with loop.condition() as (step, found):
            loop.continue_if(step > 0, step, found)
        with loop.body() as (step, found):
            candidate = found + step
            exists = candidate <= offsets.length
            entry = kb.load(offsets.pointer + (candidate - 1), mask=exists, other=2**31 - 1)
            loop.yield_(step >> 1, kb.where(exists & (entry <= position), candidate, found))
    return loop.results[1]


def _highest_power_of_two(kb: KernelBuilder, number: Value) -> Value:
    """The highest bit of a positive number."""
    for shift in (1, 2, 4, 8, 16):
        number = number | kb.shift_right_unsigned(number, shift)
    return number - kb.shift_right_unsigned(number, 1)


def isqrt(kb: KernelBuilder, number: Value) -> Value:
    """The largest integer whose square is at most `number`, -1 for a negative number; exact below 2^30.

    The float root is off by at most one, and its square stays below 2^31.
    """
    root = kb.cast(kb.sqrt(kb.cast(kb.maximum(number, 0), f32)), i32)
    root = root - kb.cast(root * root > number, i32)
    above = root + 1
    root = root + kb.cast(above * above <= number, i32)
    return kb.where(number < 0, -1, root)
