"""What the scalar operations of `arith` and `math` compute, on numpy arrays.

Integers are int64 arrays that must stay inside 32 bits (a value that does not raises `OverflowError`, because the
hardware would wrap it silently); i1 values are bool arrays, f32 values float32 arrays. Operands broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects import math as xdsl_math
from xdsl.dialects.builtin import Float32Type, FloatAttr, IndexType, IntegerAttr, IntegerType, MemRefType, i1
from xdsl.ir import Attribute, Operation

from compilemask.dialects import arith
from compilemask.errors import LoweringError

Value = NDArray[Any]
"""Any numpy array or scalar: int64, bool or float32."""

MIN, MAX = -(2**31), 2**31 - 1


def checked(value: Value, what: str) -> Value:
    """`value`, if all its entries fit 32 bits."""
    if value.size and (value.min() < MIN or value.max() > MAX):
        raise OverflowError(f"{what} leaves 32 bits: values from {value.min()} to {value.max()}")
    return value


def _truncating_divide(a: Value, b: Value) -> Value:
    quotient = np.abs(a) // np.abs(b)
    return np.where((a < 0) != (b < 0), -quotient, quotient)


def _ceil_divide(a: Value, b: Value) -> Value:
    return -((-a) // b)


def _unsigned(a: Value) -> Value:
    return a & 0xFFFFFFFF


def _signed(a: Value) -> Value:
    return ((a & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def _shift(function: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    """A shift by 0 to 31 bits; hardware does with other amounts what it likes."""

    def shifted(a: Value, b: Value) -> Value:
        if b.size and (b.min() < 0 or b.max() > 31):
            raise OverflowError(f"a shift by {b.min()} to {b.max()} bits leaves 32 bits")
        return function(a, b)

    return shifted


def _as_unsigned(function: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    return lambda a, b: _signed(function(_unsigned(a), _unsigned(b)))


_BINARY: dict[type[Operation], Callable[[Value, Value], Value]] = {
    xdsl_arith.AddiOp: np.add,
    xdsl_arith.SubiOp: np.subtract,
    xdsl_arith.MuliOp: np.multiply,
    xdsl_arith.FloorDivSIOp: np.floor_divide,
    xdsl_arith.CeilDivSIOp: _ceil_divide,
    xdsl_arith.DivSIOp: _truncating_divide,
    xdsl_arith.RemSIOp: np.fmod,
    xdsl_arith.DivUIOp: _as_unsigned(np.floor_divide),
    xdsl_arith.RemUIOp: _as_unsigned(np.remainder),
    xdsl_arith.MinSIOp: np.minimum,
    xdsl_arith.MaxSIOp: np.maximum,
    xdsl_arith.MinUIOp: _as_unsigned(np.minimum),
    xdsl_arith.MaxUIOp: _as_unsigned(np.maximum),
    xdsl_arith.AndIOp: np.bitwise_and,
    xdsl_arith.OrIOp: np.bitwise_or,
    xdsl_arith.XOrIOp: np.bitwise_xor,
    xdsl_arith.ShLIOp: _shift(np.left_shift),
    xdsl_arith.ShRSIOp: _shift(np.right_shift),
    xdsl_arith.ShRUIOp: _shift(lambda a, b: _signed(_unsigned(a) >> b)),
    xdsl_arith.AddfOp: np.add,
    xdsl_arith.SubfOp: np.subtract,
    xdsl_arith.MulfOp: np.multiply,
    xdsl_arith.DivfOp: np.divide,
    xdsl_arith.MaximumfOp: np.maximum,
    xdsl_arith.MinimumfOp: np.minimum,
    xdsl_arith.MaxnumfOp: np.fmax,
    xdsl_arith.MinnumfOp: np.fmin,
}

_UNARY: dict[type[Operation], Callable[[Value], Value]] = {
    xdsl_arith.NegfOp: np.negative,
    xdsl_math.AbsFOp: np.abs,
    xdsl_math.AbsIOp: np.abs,
    xdsl_math.ExpOp: np.exp,
    xdsl_math.Exp2Op: np.exp2,
    xdsl_math.LogOp: np.log,
    xdsl_math.Log2Op: np.log2,
    xdsl_math.SqrtOp: np.sqrt,
    xdsl_math.RsqrtOp: lambda x: 1 / np.sqrt(x),
    xdsl_math.TanhOp: np.tanh,
    xdsl_math.SinOp: np.sin,
    xdsl_math.CosOp: np.cos,
    xdsl_math.FloorOp: np.floor,
    xdsl_math.CeilOp: np.ceil,
}

_CASTS: tuple[type[Operation], ...] = (
    arith.ExtSIOp,
    arith.ExtUIOp,
    arith.TruncIOp,
    arith.SIToFPOp,
    arith.FPToSIOp,
    arith.ExtFOp,
    xdsl_arith.IndexCastOp,
)

_RELATIONS: dict[str, Callable[[Value, Value], Value]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def handles(op: Operation) -> bool:
    """Whether `execute` knows this operation."""
    known = (xdsl_arith.ConstantOp, arith.CmpiOp, arith.CmpfOp, arith.SelectOp, *_CASTS)
    return type(op) in _BINARY or type(op) in _UNARY or isinstance(op, known)


def execute(op: Operation, operands: Sequence[Value], real: type[np.floating] = np.float32) -> Value:
    """The one result of an `arith` or `math` operation on integers, booleans or f32, which computes in `real`."""
    return checked_for(op.results[0].type, _compute(op, [np.asarray(value) for value in operands]), op.name, real)


def checked_for(kind: Attribute, value: Value, what: str, real: type[np.floating] = np.float32) -> Value:
    """`value` in the array type that stands for the IR type `kind`."""
    if kind == i1:
        return np.asarray(value, dtype=np.bool_)
    if isinstance(kind, Float32Type):
        return np.asarray(value, dtype=real)
    if isinstance(kind, IntegerType | IndexType):
        return checked(np.asarray(value, dtype=np.int64), what)
    raise LoweringError(f"{what} on {kind} has no semantics here")


def _compute(op: Operation, operands: list[Value]) -> Value:
    if isinstance(op, xdsl_arith.ConstantOp):
        assert isinstance(op.value, IntegerAttr | FloatAttr)
        return np.asarray(op.value.value.data)
    if (binary := _BINARY.get(type(op))) is not None:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return binary(*operands)
    if (unary := _UNARY.get(type(op))) is not None:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return unary(*operands)
    if isinstance(op, arith.CmpiOp):
        return _compare_integers(op.predicate_name, *operands)
    if isinstance(op, arith.CmpfOp):
        return _compare_floats(op.predicate_name, *operands)
    if isinstance(op, arith.SelectOp):
        return np.where(operands[0], operands[1], operands[2])
    if isinstance(op, arith.ExtSIOp) and op.input.type == i1:
        return -operands[0].astype(np.int64)
    if isinstance(op, arith.TruncIOp) and op.result.type == i1:
        return operands[0] & 1
    if isinstance(op, _CASTS):
        return operands[0]
    raise LoweringError(f"{op.name} has no semantics here")


def _compare_integers(predicate: str, lhs: Value, rhs: Value) -> Value:
    if predicate in ("eq", "ne"):
        return _RELATIONS[predicate](lhs, rhs)
    if predicate.startswith("u"):
        lhs, rhs = _unsigned(lhs), _unsigned(rhs)
    return _RELATIONS[predicate[1:]](lhs, rhs)


def _compare_floats(predicate: str, lhs: Value, rhs: Value) -> Value:
    unordered = np.isnan(lhs) | np.isnan(rhs)
    if predicate in ("ord", "uno"):
        return unordered == (predicate == "uno")
    if predicate in ("false", "true"):
        return np.full(unordered.shape, predicate == "true")
    ordered = _RELATIONS[predicate[1:]](lhs, rhs) & ~unordered
    return ordered | unordered if predicate.startswith("u") else ordered


def read(table: Value, index: Value) -> Value:
    """The entries of a table at `index`; an index outside the table reads the nearest entry."""
    if not table.size:
        raise IndexError("cannot read an empty table")
    return table[np.clip(index, 0, table.size - 1)]


def segment_of(offsets: Value, position: Value) -> tuple[Value, Value]:
    """Begin and end of the segment that holds each position; both are position + 1 where none does."""
    behind = np.asarray(position) + 1
    if offsets.size < 2:
        return behind, behind
    segment = np.searchsorted(offsets, position, side="right") - 1
    inside = (segment >= 0) & (segment < offsets.size - 1)
    segment = np.clip(segment, 0, offsets.size - 2)
    begin, end = np.maximum(offsets[segment], 0), offsets[segment + 1]
    return np.where(inside, begin, behind), np.where(inside, end, behind)


FAR = 2**30
"""Where a search ends that finds its value before or behind a table."""


def search(table: Value, value: Value) -> Value:
    """The first position at which an ascending table, read with `read`, holds at least each value."""
    found = np.searchsorted(table, value, side="left")
    return np.where(found == 0, -FAR, np.where(found == table.size, FAR, found))


def as_argument(value: object, kind: Attribute, what: str) -> Value:
    """A run-time argument as an int64 array: a scalar for `i32`, one dimension for `memref<?xi32>`."""
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{what} must hold integers, got {array.dtype}")
    rank = 1 if isinstance(kind, MemRefType) else 0
    if array.ndim != rank:
        raise TypeError(f"{what} is {kind} and takes an array of rank {rank}, got rank {array.ndim}")
    return checked(array.astype(np.int64), what)


__all__ = [
    "MAX",
    "MIN",
    "Value",
    "as_argument",
    "checked",
    "checked_for",
    "execute",
    "handles",
    "read",
    "search",
    "segment_of",
]
