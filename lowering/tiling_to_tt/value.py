"""Values with operators: arithmetic on scalars and tensors of one kernel, each call one operation.

A `Value` is an SSA value or a literal. A literal (a Python number with a type) becomes an operation only when something
uses it, so `x + 0`, `x * 1` and `3 * 4` leave no trace in the IR. Scalars and dimensions of size 1 broadcast; ranks and
element types must agree otherwise, there is no silent promotion.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import AnyFloat, BFloat16Type, Float16Type, Float32Type, IntegerType, f32, i1, i32, i64
from xdsl.ir import Attribute, Operation, SSAValue

from compilemask.dialects import arith
from compilemask.dialects.narrowing import is_integer_type
from compilemask.dialects.triton import tt
from compilemask.dialects.triton.layouts import SliceLayout
from compilemask.dialects.triton.types import PointerType, element_of, encoding_of, like, shape_of, with_shape
from compilemask.errors import LoweringError

Number: TypeAlias = bool | int | float


class Emitter(Protocol):
    """What a value needs of the kernel that it belongs to."""

    def emit(self, op: Operation) -> Value:
        """Append an operation at the insertion point and wrap its one result."""
        ...

    def materialize(self, literal: Number, type_: Attribute) -> SSAValue:
        """The constant (of a scalar type, or all elements of a tensor), emitted once per function."""
        ...


class Value:
    """A scalar or tensor of one kernel: an SSA value, or a literal not yet emitted.

    `dtype` is the element type, `shape` is `()` for scalars. Operators: `+ - * / // % & | ^ << >> ~`, comparisons
    (signed), unary minus. `//` and `%` floor as in Python. `x[:, None]` inserts dimensions. Pointers take `+` and `-`
    of element offsets.
    """

    __slots__ = ("_ssa", "emitter", "literal", "type")

    def __init__(
        self, emitter: Emitter, type_: Attribute, *, ssa: SSAValue | None = None, literal: Number | None = None
    ) -> None:
        if (ssa is None) == (literal is None):
            raise LoweringError("a value is either an SSA value or a literal")
        self.emitter, self.type, self._ssa = emitter, type_, ssa
        self.literal = None if literal is None else normalize(literal, element_of(type_))

    @property
    def ssa(self) -> SSAValue:
        """The SSA value; a literal is emitted as a constant at the top of the function."""
        if self._ssa is not None:
            return self._ssa
        assert self.literal is not None
        return self.emitter.materialize(self.literal, self.type)

    @property
    def dtype(self) -> Attribute:
        """The element type."""
        return element_of(self.type)

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape, `()` for a scalar."""
        return shape_of(self.type)

    @property
    def is_float(self) -> bool:
        """Whether the elements are floats."""
        return isinstance(self.dtype, AnyFloat)

    @property
    def is_pointer(self) -> bool:
        """Whether the elements are pointers."""
        return isinstance(self.dtype, PointerType)

    def named(self, name: str) -> Value:
        """This value, with a name in printed IR."""
        if self._ssa is not None:
            self._ssa.name_hint = name
        return self

    def __repr__(self) -> str:
        return f"Value({self.type}{'' if self.literal is None else f', {self.literal}'})"

    def __bool__(self) -> bool:
        raise LoweringError("a kernel value has no truth at build time; use where(), if_else() or & and |")

    def __getitem__(self, index: slice | tuple[slice | None, ...] | None) -> Value:
        """`x[:, None]`, `x[None, :]`, ...: insert dimensions of size 1."""
        result = self
        items = index if isinstance(index, tuple) else (index,)
        for axis, item in enumerate(items):
            if item is None:
                result = expand_dims(result, axis)
            elif item != slice(None):
                raise LoweringError(f"only `:` and None index a kernel value, got {item!r}")
        return result

    def __add__(self, other: Value | Number) -> Value:
        return add_pointer(self, other) if self.is_pointer else binary("add", self, other)

    def __sub__(self, other: Value | Number) -> Value:
        return add_pointer(self, negate(lift(self, other))) if self.is_pointer else binary("sub", self, other)

    def __mul__(self, other: Value | Number) -> Value:
        return binary("mul", self, other)

    def __truediv__(self, other: Value | Number) -> Value:
        return binary("div", self, other)

    def __floordiv__(self, other: Value | Number) -> Value:
        return floor_div(self, other)

    def __mod__(self, other: Value | Number) -> Value:
        return floor_mod(self, other)

    def __and__(self, other: Value | Number) -> Value:
        return binary("and", self, other)

    def __or__(self, other: Value | Number) -> Value:
        return binary("or", self, other)

    def __xor__(self, other: Value | Number) -> Value:
        return binary("xor", self, other)

    def __lshift__(self, other: Value | Number) -> Value:
        return binary("shl", self, other)

    def __rshift__(self, other: Value | Number) -> Value:
        return binary("shr", self, other)

    def __radd__(self, other: Number) -> Value:
        return binary("add", other, self)

    def __rsub__(self, other: Number) -> Value:
        return binary("sub", other, self)

    def __rmul__(self, other: Number) -> Value:
        return binary("mul", other, self)

    def __rtruediv__(self, other: Number) -> Value:
        return binary("div", other, self)

    def __rfloordiv__(self, other: Number) -> Value:
        return floor_div(other, self)

    def __rmod__(self, other: Number) -> Value:
        return floor_mod(other, self)

    def __rand__(self, other: Number) -> Value:
        return binary("and", other, self)

    def __ror__(self, other: Number) -> Value:
        return binary("or", other, self)

    def __rlshift__(self, other: Number) -> Value:
        return binary("shl", other, self)

    def __rrshift__(self, other: Number) -> Value:
        return binary("shr", other, self)

    def __neg__(self) -> Value:
        return negate(self)

    def __invert__(self) -> Value:
        return binary("xor", self, True if self.dtype == i1 else -1)

    def __lt__(self, other: Value | Number) -> Value:
        return compare("lt", self, other)

    def __le__(self, other: Value | Number) -> Value:
        return compare("le", self, other)

    def __gt__(self, other: Value | Number) -> Value:
        return compare("gt", self, other)

    def __ge__(self, other: Value | Number) -> Value:
        return compare("ge", self, other)

    def __eq__(self, other: object) -> Value:  # pyright: ignore[reportIncompatibleMethodOverride]
        return compare("eq", self, _operand(other))

    def __ne__(self, other: object) -> Value:  # pyright: ignore[reportIncompatibleMethodOverride]
        return compare("ne", self, _operand(other))

    __hash__ = object.__hash__


def _operand(value: object) -> Value | Number:
    if isinstance(value, Value | bool | int | float):
        return value
    raise LoweringError(f"cannot compare a kernel value with {value!r}")


# ---------------------------------------------------------------- literals, types, shapes

_FLOAT_FORMATS: tuple[tuple[type[Attribute], str], ...] = ((Float32Type, "<f"), (Float16Type, "<e"))


def normalize(literal: Number, dtype: Attribute) -> Number:
    """The literal as `dtype` holds it: wrapped two's complement for integers, rounded for floats."""
    if dtype == i1:
        return bool(literal)
    if is_integer_type(dtype):
        if isinstance(literal, float):
            raise LoweringError(f"float literal {literal} where {dtype} is needed")
        width = dtype.width.data
        wrapped = int(literal) % (1 << width)
        return wrapped - (1 << width) if wrapped >> (width - 1) else wrapped
    if isinstance(dtype, AnyFloat):
        return _round_float(float(literal), dtype)
    raise LoweringError(f"no literal of type {dtype}")


def _round_float(value: float, dtype: Attribute) -> float:
    if isinstance(dtype, BFloat16Type):
        return _round_bf16(value)
    for kind, code in _FLOAT_FORMATS:
        if isinstance(dtype, kind):
            try:
                return struct.unpack(code, struct.pack(code, value))[0]
            except OverflowError:
                return float("inf") if value > 0 else float("-inf")
    return value


def _round_bf16(value: float) -> float:
    single = _round_float(value, f32)
    if single != single or single in (float("inf"), float("-inf")):
        return single
    bits = struct.unpack("<I", struct.pack("<f", single))[0]
    bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000) & 0xFFFFFFFF
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def default_type(literal: Number) -> Attribute:
    """The type of a literal that meets no typed operand: i1, i32 (i64 if it does not fit) or f32."""
    if isinstance(literal, bool):
        return i1
    if isinstance(literal, int):
        return i32 if -(1 << 31) <= literal < 1 << 31 else i64
    return f32


def lift(partner: Value, value: Value | Number) -> Value:
    """A Python number as a literal of the partner's element type (i32 beside a pointer); values pass through."""
    if isinstance(value, Value):
        return value
    dtype = default_type(value) if partner.is_pointer else partner.dtype
    if is_integer_type(dtype) and not -(1 << (dtype.width.data - 1)) <= value < 1 << dtype.width.data:
        raise LoweringError(f"{value} does not fit {dtype}")
    return Value(partner.emitter, dtype, literal=value)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape; scalars go with everything, tensors need one rank and equal or unit dimensions."""
    ranks = {len(shape) for shape in shapes if shape}
    if not ranks:
        return ()
    if len(ranks) > 1:
        raise LoweringError(f"ranks of {', '.join(map(str, shapes))} differ; insert dimensions with x[:, None]")
    result: list[int] = []
    for sizes in zip(*(shape for shape in shapes if shape), strict=True):
        larger = {size for size in sizes if size != 1}
        if len(larger) > 1:
            raise LoweringError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
        result.append(max(sizes))
    return tuple(result)


def broadcast_to(value: Value, shape: Sequence[int], layout: Attribute | None = None) -> Value:
    """`value` splatted (scalar, or literal) in a layout, or broadcast (dimensions of size 1), to `shape`."""
    shape = tuple(shape)
    if value.literal is not None:
        target = with_shape(value.dtype, shape, layout or encoding_of(value.type))
        return value if value.type == target else Value(value.emitter, target, literal=value.literal)
    if value.shape == shape:
        return value
    target = with_shape(value.dtype, shape, layout)
    if broadcast_shapes(value.shape, shape) != shape:
        raise LoweringError(f"{value.type} does not broadcast to {shape}")
    if not value.shape:
        return value.emitter.emit(tt.SplatOp(value.ssa, target))
    return value.emitter.emit(tt.BroadcastOp(value.ssa, shape))


def expand_dims(value: Value, axis: int) -> Value:
    """A dimension of size 1 inserted at `axis` (negative axes count from the end of the result)."""
    rank = len(value.shape)
    axis = axis + rank + 1 if axis < 0 else axis
    if not 0 <= axis <= rank or not value.shape:
        raise LoweringError(f"no dimension can be inserted at {axis} in {value.type}")
    if value.literal is not None:
        shape = (*value.shape[:axis], 1, *value.shape[axis:])
        return Value(value.emitter, with_shape(value.dtype, shape), literal=value.literal)
    layout = encoding_of(value.type)
    if layout is not None and not (isinstance(layout, SliceLayout) and layout.dim.data == axis):
        raise LoweringError(f"{layout} is no slice along dimension {axis}; convert_layout() first")
    return value.emitter.emit(tt.ExpandDimsOp(value.ssa, axis))


def unify(*operands: Value | Number) -> tuple[Value, ...]:
    """Operands with one element type and one shape; Python numbers take the type of the values beside them."""
    partner = next((operand for operand in operands if isinstance(operand, Value)), None)
    if partner is None:
        raise LoweringError("at least one operand must be a kernel value")
    values = [lift(partner, operand) for operand in operands]
    if len({value.dtype for value in values}) > 1:
        raise LoweringError(
            f"element types differ: {', '.join(str(value.type) for value in values)}; cast() one of them"
        )
    return broadcast_together(*values)


def broadcast_together(*values: Value) -> tuple[Value, ...]:
    """Values broadcast to their common shape, and in the layout of those that have one."""
    shape, layout = broadcast_shapes(*(value.shape for value in values)), common_layout(*values)
    return tuple(broadcast_to(value, shape, layout) for value in values)


def common_layout(*values: Value) -> Attribute | None:
    """The layout of all values that have one, None if none has; literals take any."""
    layouts = {encoding_of(value.type) for value in values if value.literal is None} - {None}
    if len(layouts) > 1:
        raise LoweringError(f"layouts differ: {', '.join(map(str, layouts))}; convert_layout() one of the operands")
    return next(iter(layouts or {encoding_of(value.type) for value in values} - {None}), None)


# ---------------------------------------------------------------- arithmetic

_INTEGER_OPS: dict[str, type[xdsl_arith.SignlessIntegerBinaryOperation]] = {
    "add": xdsl_arith.AddiOp,
    "sub": xdsl_arith.SubiOp,
    "mul": xdsl_arith.MuliOp,
    "tdiv": xdsl_arith.DivSIOp,
    "trem": xdsl_arith.RemSIOp,
    "and": xdsl_arith.AndIOp,
    "or": xdsl_arith.OrIOp,
    "xor": xdsl_arith.XOrIOp,
    "shl": xdsl_arith.ShLIOp,
    "shr": xdsl_arith.ShRSIOp,
    "shru": xdsl_arith.ShRUIOp,
    "min": xdsl_arith.MinSIOp,
    "max": xdsl_arith.MaxSIOp,
    "umin": xdsl_arith.MinUIOp,
    "umax": xdsl_arith.MaxUIOp,
}
_FLOAT_OPS: dict[str, type[xdsl_arith.FloatingPointLikeBinaryOperation]] = {
    "add": xdsl_arith.AddfOp,
    "sub": xdsl_arith.SubfOp,
    "mul": xdsl_arith.MulfOp,
    "div": xdsl_arith.DivfOp,
    "min": xdsl_arith.MinnumfOp,
    "max": xdsl_arith.MaxnumfOp,
    "min_nan": xdsl_arith.MinimumfOp,
    "max_nan": xdsl_arith.MaximumfOp,
}


def _truncated_quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_INTEGER_FOLDS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "tdiv": _truncated_quotient,
    "trem": lambda a, b: a - b * _truncated_quotient(a, b),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
    "min": min,
    "max": max,
}
_FLOAT_FOLDS: dict[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
}
# kind: literals on the right, and on the left, that leave the other operand as it is
_INTEGER_UNITS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "add": ((0,), (0,)),
    "sub": ((0,), ()),
    "mul": ((1,), (1,)),
    "tdiv": ((1,), ()),
    "and": ((-1,), (-1,)),
    "or": ((0,), (0,)),
    "xor": ((0,), (0,)),
    "shl": ((0,), ()),
    "shr": ((0,), ()),
    "shru": ((0,), ()),
}
_INTEGER_ZEROS: dict[str, int] = {"mul": 0, "and": 0, "or": -1}


def binary(kind: str, lhs: Value | Number, rhs: Value | Number) -> Value:
    """One elementwise operation: add, sub, mul, div (floats), tdiv, trem (towards zero), and, or, shl, shr, min, ..."""
    a, b = unify(lhs, rhs)
    folded = _fold_float(kind, a, b) if a.is_float else _fold_integer(kind, a, b)
    if folded is not None:
        return folded
    op = (_FLOAT_OPS if a.is_float else _INTEGER_OPS).get(kind)
    if op is None or a.is_pointer:
        raise LoweringError(f"there is no '{kind}' for {a.type}")
    return a.emitter.emit(op(a.ssa, b.ssa))


def _fold_float(kind: str, a: Value, b: Value) -> Value | None:
    if a.literal is not None and b.literal is not None and kind in _FLOAT_FOLDS:
        return Value(a.emitter, a.type, literal=_FLOAT_FOLDS[kind](float(a.literal), float(b.literal)))
    if kind in ("mul", "div") and b.literal == 1.0:
        return a
    return b if kind == "mul" and a.literal == 1.0 else None


def _fold_integer(kind: str, a: Value, b: Value) -> Value | None:
    left, right = _as_integer(a), _as_integer(b)
    if right == 0 and kind in ("tdiv", "trem"):
        raise LoweringError(f"'{kind}' by zero")
    if left is not None and right is not None and kind in _INTEGER_FOLDS:
        return Value(a.emitter, a.type, literal=_INTEGER_FOLDS[kind](left, right))
    right_units, left_units = _INTEGER_UNITS.get(kind, ((), ()))
    if right is not None and right in right_units:
        return a
    if left is not None and left in left_units:
        return b
    zero = _INTEGER_ZEROS.get(kind)
    if zero is not None and zero in (left, right):
        return Value(a.emitter, a.type, literal=zero)
    return None


def _as_integer(value: Value) -> int | None:
    """A literal as a signed integer, true being -1 (all bits set)."""
    if value.literal is None or value.is_float:
        return None
    return -int(value.literal) if value.dtype == i1 else int(value.literal)


def negate(value: Value) -> Value:
    """`-value`; floats as `-0.0 - value`, which is exact."""
    return binary("sub", -0.0 if value.is_float else 0, value)


def floor_div(lhs: Value | Number, rhs: Value | Number) -> Value:
    """Python's `//`, rounding down: a shift for a literal power of two, else `arith.divsi` and a correction."""
    a, b = unify(lhs, rhs)
    if (shift := _log2_of_literal(b)) is not None:
        return binary("shr", a, shift)
    quotient, remainder = binary("tdiv", a, b), binary("trem", a, b)
    return quotient - cast(_needs_floor(remainder, b), a.dtype)


def floor_mod(lhs: Value | Number, rhs: Value | Number) -> Value:
    """Python's `%`, with the divisor's sign: a mask for a literal power of two, else `arith.remsi` and a correction."""
    a, b = unify(lhs, rhs)
    if (shift := _log2_of_literal(b)) is not None:
        return binary("and", a, (1 << shift) - 1)
    remainder = binary("trem", a, b)
    return remainder + where(_needs_floor(remainder, b), b, 0)


def _needs_floor(remainder: Value, divisor: Value) -> Value:
    """Whether a truncated remainder and its divisor have opposite signs."""
    if isinstance(divisor.literal, int) and divisor.literal > 0:
        return remainder < 0
    return (remainder != 0) & ((remainder ^ divisor) < 0)


def _log2_of_literal(value: Value) -> int | None:
    if value.is_float or value.is_pointer or value.dtype == i1:
        raise LoweringError(f"integer division of {value.type}")
    number = value.literal
    if isinstance(number, int) and number > 0 and number & (number - 1) == 0:
        return number.bit_length() - 1
    return None


def add_pointer(pointer: Value, offset: Value | Number) -> Value:
    """Pointers moved by a number of elements, both broadcast to one shape."""
    moved = lift(pointer, offset)
    if not is_integer_type(moved.dtype) or moved.dtype == i1:
        raise LoweringError(f"pointers move by integers, not by {moved.type}")
    if moved.literal == 0 and not moved.shape:
        return pointer
    base, moved = broadcast_together(pointer, moved)
    return pointer.emitter.emit(tt.AddPtrOp(base.ssa, moved.ssa))


# ---------------------------------------------------------------- comparisons and selection

_COMPARISONS: dict[str, Callable[[Number, Number], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def compare(kind: str, lhs: Value | Number, rhs: Value | Number) -> Value:
    """eq, ne, lt, le, gt, ge (signed, or ordered floats) and ult, ule, ugt, uge (unsigned integers) as i1."""
    a, b = unify(lhs, rhs)
    if a.is_pointer:
        raise LoweringError(f"no comparison of {a.type}")
    if a.literal is not None and b.literal is not None and kind in _COMPARISONS:
        return Value(a.emitter, like(a.type, i1), literal=_COMPARISONS[kind](a.literal, b.literal))
    if a.is_float:
        return a.emitter.emit(arith.CmpfOp(a.ssa, b.ssa, "une" if kind == "ne" else f"o{kind}"))
    signed = kind if kind in ("eq", "ne") or kind.startswith("u") else f"s{kind}"
    return a.emitter.emit(arith.CmpiOp(a.ssa, b.ssa, signed))


def where(condition: Value, lhs: Value | Number, rhs: Value | Number) -> Value:
    """`lhs` where the condition (i1) holds, else `rhs`; all three broadcast."""
    if condition.dtype != i1:
        raise LoweringError(f"a condition must be i1, not {condition.type}")
    if not isinstance(lhs, Value) and not isinstance(rhs, Value):
        dtype = f32 if isinstance(lhs, float) or isinstance(rhs, float) else default_type(max(lhs, rhs, key=abs))
        lhs = Value(condition.emitter, dtype, literal=lhs)
    a, b = unify(lhs, rhs)
    if condition.shape:
        condition, a, b = broadcast_together(condition, a, b)
    if condition.literal is not None:
        return a if condition.literal else b
    return condition.emitter.emit(arith.SelectOp(condition.ssa, a.ssa, b.ssa))


# ---------------------------------------------------------------- casts


def cast(value: Value, dtype: Attribute, *, unsigned: bool = False) -> Value:
    """The value as another number type; i1 is 0 or 1, integers are signed unless `unsigned`; floats truncate."""
    if value.dtype == dtype:
        return value
    if value.literal is not None and (is_integer_type(dtype) or isinstance(dtype, AnyFloat)):
        literal = int(value.literal) if is_integer_type(dtype) and dtype != i1 else value.literal
        if not (unsigned and literal < 0):
            return Value(value.emitter, like(value.type, dtype), literal=literal)
    if value.is_float and isinstance(dtype, AnyFloat) and value.dtype != f32 and dtype != f32:
        return cast(cast(value, f32), dtype)
    if dtype == i1 and isinstance(value.dtype, IntegerType):
        return value != 0
    return value.emitter.emit(_cast_op(value, dtype, unsigned or value.dtype == i1)(value.ssa, like(value.type, dtype)))


def _cast_op(value: Value, dtype: Attribute, unsigned: bool) -> Callable[[SSAValue, Attribute], Operation]:
    source = value.dtype
    if isinstance(source, IntegerType) and isinstance(dtype, IntegerType):
        if dtype.bitwidth < source.bitwidth:
            return arith.TruncIOp
        return arith.ExtUIOp if unsigned else arith.ExtSIOp
    if isinstance(source, IntegerType) and isinstance(dtype, AnyFloat):
        return arith.UIToFPOp if unsigned else arith.SIToFPOp
    if isinstance(source, AnyFloat) and isinstance(dtype, IntegerType):
        return arith.FPToUIOp if unsigned else arith.FPToSIOp
    if isinstance(source, AnyFloat) and isinstance(dtype, AnyFloat):
        return arith.ExtFOp if dtype.bitwidth > source.bitwidth else arith.TruncFOp
    raise LoweringError(f"no cast from {value.type} to {dtype}")


def bitcast(value: Value, dtype: Attribute) -> Value:
    """The same bits as another type of equal width (also between pointer types)."""
    if value.dtype == dtype:
        return value
    return value.emitter.emit(tt.BitcastOp(value.ssa, like(value.type, dtype)))
