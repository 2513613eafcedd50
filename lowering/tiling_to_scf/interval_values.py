"""The arithmetic of an interval function, as scalars of a function for the CPU.

Integers are i64 that must stay inside 32 bits: one that does not sets a fault, because other levels would wrap it or
refuse it. Truth values are i1, floats f32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects import math as xdsl_math
from xdsl.dialects.builtin import Float32Type, FloatAttr, IndexType, IntegerAttr, IntegerType, i1
from xdsl.ir import Attribute, Block, Operation, SSAValue

from compilemask.dialects import arith, interval
from compilemask.dialects.semantics.arith import FAR
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_scf.builder import F32, F64, I1, I32, I64, FunctionBuilder, Value

_UNSIGNED = 0xFFFFFFFF


_Emit = Callable[[Any, Any], Value] | Callable[[Any, Any, Any], Value]
"""Writes an operation of one or two operands."""


class Scope:
    """The values of one block of an interval function, at one place of the function for the CPU."""

    def __init__(self, fb: FunctionBuilder, values: Mapping[SSAValue, Value], fault: Value) -> None:
        self.fb, self.fault = fb, fault
        """Memory of one i64, which is not 0 once a number has left 32 bits."""
        self._values = dict(values)

    def __getitem__(self, value: SSAValue) -> Value:
        return self._values[value]

    def nested(self, arguments: Mapping[SSAValue, Value]) -> Scope:
        """A scope inside this one, with more values."""
        return Scope(self.fb, {**self._values, **arguments}, self.fault)

    def run(self, block: Block) -> None:
        """Emit the arithmetic of a block; sets and terminators have no value."""
        for op in block.ops:
            match op:
                case interval.ReadOp():
                    self._values[op.result] = self._read(self[op.table], self[op.index])
                case interval.SegmentOfOp():
                    found = self._segment_of(self[op.offsets], self[op.position])
                    self._values |= zip((op.begin, op.end), found, strict=True)
                case interval.SearchOp():
                    self._values[op.result] = self._search(self[op.table], self[op.value])
                case interval.IsqrtOp():
                    self._values[op.result] = self._isqrt(self[op.operand])
                case _ if not isinstance(op, _WITHOUT_VALUE):
                    self._values[op.results[0]] = self._arithmetic(op)
                case _:
                    pass

    # ---- tables and roots ----

    def _entry(self, table: Value, index: Value) -> Value:
        return self.fb.extend(self.fb.load(table, self.fb.index(index)))

    def _length(self, table: Value) -> Value:
        return self.fb.integer(self.fb.size(table), I64)

    def _read(self, table: Value, index: Value) -> Value:
        """The entry at an index; an index outside the table reads the nearest entry."""
        nearest = self.fb.minimum(index, self._length(table) - 1)
        return self._entry(table, self.fb.maximum(nearest, self.fb.like(0, nearest)))

    def _entries_up_to(self, table: Value, number: Value) -> Value:
        """How many entries of an ascending table are at most a number: a binary search, bit by bit."""
        fb, length = self.fb, self._length(table)
        bits = fb.like(64, length) - fb.leading_zeros(length)
        with fb.for_loop(fb.constant(0), fb.index(bits), 1, [fb.constant(0, I64)]) as loop:
            (found,) = loop.carried
            step = fb.constant(1, I64) << (bits - 1 - fb.integer(loop.index, I64))
            candidate = found + step
            exists = fb.compare("sle", candidate, length)
            entry = self._entry(table, fb.minimum(candidate, length) - 1)
            loop.yield_(fb.select(exists & fb.compare("sle", entry, number), candidate, found))
        return loop.results[0]

    def _segment_of(self, offsets: Value, position: Value) -> tuple[Value, Value]:
        """Begin and end of the segment that holds a position; both are position + 1 where none does."""
        fb, last, behind = self.fb, self._length(offsets) - 1, position + 1
        found = self._entries_up_to(offsets, position)
        inside = fb.compare("sgt", found, 0) & fb.compare("sle", found, last)
        place = fb.select(inside, found, fb.like(1, found))
        begin = self._entry(offsets, place - 1)
        end = self._entry(offsets, fb.minimum(place, last))
        begin = fb.maximum(begin, fb.like(0, begin))
        return fb.select(inside, begin, behind), fb.select(inside, end, behind)

    def _search(self, table: Value, value: Value) -> Value:
        """The first position of an ascending table with at least a value; far beyond an end where none is inside."""
        fb, found = self.fb, self._entries_up_to(table, value - 1)
        inside = fb.select(fb.compare("eq", found, self._length(table)), fb.like(FAR, found), found)
        return fb.select(fb.compare("eq", found, 0), fb.like(-FAR, found), inside)

    def _isqrt(self, number: Value) -> Value:
        """The largest integer whose square is at most a number, -1 for a negative one: exact, as f64 holds it."""
        fb = self.fb
        least = fb.maximum(number, fb.like(0, number))
        root = fb.convert("fptosi", fb.square_root(fb.convert("sitofp", least, F64)), I64)
        return fb.select(fb.compare("slt", number, 0), fb.like(-1, root), root)

    # ---- arith ----

    def _arithmetic(self, op: Operation) -> Value:
        operands = [self[operand] for operand in op.operands]
        emit: Callable[..., Value] | None = cast("Any", self._KNOWN.get(type(op)))
        if emit is not None:
            return self._checked(emit(self, *operands), op.results[0].type)
        match op:
            case xdsl_arith.ConstantOp():
                assert isinstance(op.value, IntegerAttr | FloatAttr)
                return self.fb.constant(op.value.value.data, _type_of(op.result.type))
            case arith.CmpiOp():
                return self._compare(op.predicate_name, *operands)
            case arith.CmpfOp():
                return self.fb.compare(op.predicate_name, *operands)
            case arith.SelectOp():
                return self.fb.select(*operands)
            case xdsl_arith.ShLIOp() | xdsl_arith.ShRSIOp() | xdsl_arith.ShRUIOp():
                return self._shift(op, *operands)
            case arith.ExtSIOp() if op.input.type == i1:
                return self.fb.select(operands[0], self.fb.constant(-1, I64), self.fb.constant(0, I64))
            case arith.ExtUIOp() if op.input.type == i1:
                return self.fb.integer(operands[0], I64)
            case arith.TruncIOp() if op.result.type == i1:
                return self.fb.compare("ne", operands[0] & 1, 0)
            case _:
                raise LoweringError(f"{op.name} has no form on the CPU")

    def _checked(self, value: Value, type_: Attribute) -> Value:
        """A number, with a fault if it left 32 bits."""
        if value.type == I64 and isinstance(type_, IntegerType | IndexType):
            fb, zero = self.fb, self.fb.constant(0)
            left = fb.integer(fb.compare("ne", fb.extend(fb.convert("trunci", value, I32)), value), I64)
            fb.store(fb.load(self.fault, zero) | left, self.fault, zero)
        return value

    def quotient(self, a: Value, b: Value) -> Value:
        """a / b towards zero; 0 for b = 0."""
        fb, none = self.fb, self.fb.compare("eq", b, 0)
        return fb.select(none, fb.like(0, a), fb.binary("divsi", a, fb.select(none, fb.like(1, b), b)))

    def floor_quotient(self, a: Value, b: Value) -> Value:
        """a / b rounded down; 0 for b = 0."""
        fb, towards_zero = self.fb, self.quotient(a, b)
        is_inexact = fb.compare("ne", towards_zero * b, a) & fb.compare("ne", b, 0)
        is_negative = fb.compare("slt", fb.binary("xori", a, b), 0)
        return towards_zero - fb.integer(is_inexact & is_negative, I64)

    def _remainder(self, a: Value, b: Value) -> Value:
        rest = a - self.quotient(a, b) * b
        return self.fb.select(self.fb.compare("eq", b, 0), self.fb.like(0, a), rest)

    def _negated(self, a: Value) -> Value:
        return self.fb.like(0, a) - a

    def _unsigned(self, operation: Callable[[Value, Value], Value], a: Value, b: Value) -> Value:
        """An operation on the 32 bits of two numbers."""
        found = operation(a & _UNSIGNED, b & _UNSIGNED)
        return self.fb.extend(self.fb.convert("trunci", found, I32))

    def _unsigned_rest(self, a: Value, b: Value) -> Value:
        return self.fb.select(self.fb.compare("eq", b, 0), self.fb.like(0, a), a - self.quotient(a, b) * b)

    def _compare(self, predicate: str, a: Value, b: Value) -> Value:
        if a.type == I1 and predicate not in ("eq", "ne"):
            raise LoweringError("truth values are compared for equality alone")
        if predicate.startswith("u"):
            a, b = a & _UNSIGNED, b & _UNSIGNED
        return self.fb.compare(predicate, a, b)

    def _shift(self, op: Operation, a: Value, by: Value) -> Value:
        amount = op.operands[1].owner
        if not isinstance(amount, xdsl_arith.ConstantOp) or not isinstance(amount.value, IntegerAttr):
            raise LoweringError("numbers are shifted by constants alone")
        if not 0 <= amount.value.value.data < 32:
            raise LoweringError("numbers are shifted by less than 32 bits")
        if isinstance(op, xdsl_arith.ShRSIOp):
            return self.fb.binary("shrsi", a, by)
        if isinstance(op, xdsl_arith.ShLIOp):
            return self._checked(self.fb.binary("shli", a, by), op.result.type)
        return self._unsigned(lambda a, b: self.fb.binary("shrui", a, b), a, by)

    _KNOWN: ClassVar[dict[type[Operation], _Emit]] = {
        xdsl_arith.AddiOp: lambda self, a, b: a + b,
        xdsl_arith.SubiOp: lambda self, a, b: a - b,
        xdsl_arith.MuliOp: lambda self, a, b: a * b,
        xdsl_arith.DivSIOp: quotient,
        xdsl_arith.RemSIOp: _remainder,
        xdsl_arith.FloorDivSIOp: floor_quotient,
        xdsl_arith.CeilDivSIOp: lambda self, a, b: self._negated(self.floor_quotient(self._negated(a), b)),
        xdsl_arith.DivUIOp: lambda self, a, b: self._unsigned(self.quotient, a, b),
        xdsl_arith.RemUIOp: lambda self, a, b: self._unsigned(self._unsigned_rest, a, b),
        xdsl_arith.MinSIOp: lambda self, a, b: self.fb.binary("minsi", a, b),
        xdsl_arith.MaxSIOp: lambda self, a, b: self.fb.binary("maxsi", a, b),
        xdsl_arith.MinUIOp: lambda self, a, b: self._unsigned(self.fb.minimum, a, b),
        xdsl_arith.MaxUIOp: lambda self, a, b: self._unsigned(self.fb.maximum, a, b),
        xdsl_arith.AndIOp: lambda self, a, b: a & b,
        xdsl_arith.OrIOp: lambda self, a, b: a | b,
        xdsl_arith.XOrIOp: lambda self, a, b: self.fb.binary("xori", a, b),
        xdsl_arith.AddfOp: lambda self, a, b: a + b,
        xdsl_arith.SubfOp: lambda self, a, b: a - b,
        xdsl_arith.MulfOp: lambda self, a, b: a * b,
        xdsl_arith.DivfOp: lambda self, a, b: a / b,
        arith.SIToFPOp: lambda self, a: self.fb.convert("sitofp", a, F32),
        xdsl_math.SqrtOp: lambda self, a: self.fb.square_root(a),
    }


def _type_of(type_: Attribute) -> str:
    if type_ == i1:
        return I1
    return F32 if isinstance(type_, Float32Type) else I64


_WITHOUT_VALUE = (
    interval.RangeOp,
    interval.FamilyOp,
    interval.ConcatOp,
    interval.BetweenOp,
    interval.ReturnOp,
    interval.MemberOp,
    interval.YieldOp,
)
