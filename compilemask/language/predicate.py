"""Any mask that a pointwise predicate says: a Python function of (q, kv), traced once on symbols."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, NoReturn

from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import IntegerAttr, i1, i32
from xdsl.ir import Block, Operation, Region, SSAValue

from compilemask.dialects import mask as dialect
from compilemask.dialects.arith import CmpiOp, SelectOp
from compilemask.errors import MaskError
from compilemask.language.builder import Builder
from compilemask.language.mask import Mask
from compilemask.language.user_code import SideEffects, located
from compilemask.language.values import Value, integer, scalar, table

if TYPE_CHECKING:
    from compilemask.language.values import Scalar

_ARITH: dict[str, type[Operation]] = {
    "+": xdsl_arith.AddiOp,
    "-": xdsl_arith.SubiOp,
    "*": xdsl_arith.MuliOp,
    "//": xdsl_arith.FloorDivSIOp,
    "&": xdsl_arith.AndIOp,
    "|": xdsl_arith.OrIOp,
    "^": xdsl_arith.XOrIOp,
    "<<": xdsl_arith.ShLIOp,
    ">>": xdsl_arith.ShRSIOp,
    "min": xdsl_arith.MinSIOp,
    "max": xdsl_arith.MaxSIOp,
    "select": SelectOp,
}
_SIZES: dict[str, type[dialect.QueriesOp | dialect.KeysOp]] = {"queries": dialect.QueriesOp, "keys": dialect.KeysOp}
_HINT = "the predicate of where()"
_PASS_BY_NAME = (
    "the predicate of where() indexes something by a symbol; pass tables by name, as in "
    "where(lambda q, kv, label: label[q] == label[kv], label=tensor)"
)
_NO_FUNCTIONS = "it may use Python's operators and abs; cm.from_mask_mod takes functions of torch"
_COMPARISONS = {"==": "eq", "!=": "ne", "<": "slt", "<=": "sle", ">": "sgt", ">=": "sge"}


@dataclass(frozen=True, eq=False)
class Symbol:
    """A value that is known when the mask runs: `kind` is "q", "kv", "constant", "scalar", "read", or an operation.

    For the lines of a raster (traced.py), "kv" stands for the line.
    """

    kind: str
    operands: tuple[Symbol, ...] = ()
    payload: Any = None

    def __bool__(self) -> NoReturn:
        raise MaskError(
            "the predicate of where() has no value while it is traced; write & | ~ instead of and, or, not, if and "
            "chained comparisons"
        )

    def __float__(self) -> NoReturn:
        raise MaskError("the predicate of where() computes with integers only; a float was asked of a symbol")

    def __index__(self) -> NoReturn:
        raise MaskError(_PASS_BY_NAME)

    @classmethod
    def __torch_function__(cls, func: Any, *_: Any, **__: Any) -> NoReturn:
        name = getattr(func, "__name__", str(func))
        reads = name == "__getitem__"
        raise MaskError(_PASS_BY_NAME if reads else f"the predicate of where() calls {name}; {_NO_FUNCTIONS}")

    __array_ufunc__ = None
    """Numbers of numpy leave their operators to symbols."""


class Integer(Symbol):
    """A symbolic 32-bit integer. `//` and `%` round towards minus infinity, as in Python."""

    def __add__(self, other: IntegerLike) -> Integer:
        return _binary("+", self, other)

    def __radd__(self, other: IntegerLike) -> Integer:
        return _binary("+", other, self)

    def __sub__(self, other: IntegerLike) -> Integer:
        return _binary("-", self, other)

    def __rsub__(self, other: IntegerLike) -> Integer:
        return _binary("-", other, self)

    def __mul__(self, other: IntegerLike) -> Integer:
        return _binary("*", self, other)

    def __rmul__(self, other: IntegerLike) -> Integer:
        return _binary("*", other, self)

    def __floordiv__(self, other: IntegerLike) -> Integer:
        return _binary("//", self, other)

    def __rfloordiv__(self, other: IntegerLike) -> Integer:
        return _binary("//", other, self)

    def __mod__(self, other: IntegerLike) -> Integer:
        divisor = _integer(other)
        return self - _binary("//", self, divisor) * divisor

    def __rmod__(self, other: IntegerLike) -> Integer:
        return _integer(other) % self

    def __and__(self, other: IntegerLike) -> Integer:
        return _binary("&", self, other)

    def __or__(self, other: IntegerLike) -> Integer:
        return _binary("|", self, other)

    def __xor__(self, other: IntegerLike) -> Integer:
        return _binary("^", self, other)

    def __lshift__(self, other: IntegerLike) -> Integer:
        return _binary("<<", self, other)

    def __rshift__(self, other: IntegerLike) -> Integer:
        return _binary(">>", self, other)

    def __rlshift__(self, other: IntegerLike) -> Integer:
        return _binary("<<", other, self)

    def __rrshift__(self, other: IntegerLike) -> Integer:
        return _binary(">>", other, self)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __pow__(self, exponent: int) -> Integer:
        if not isinstance(exponent, int) or not 0 <= exponent <= 8:
            raise MaskError(f"the predicate of where() raises to the power {exponent!r}; expected an int from 0 to 8")
        return reduce(lambda power, factor: power * factor, [self] * exponent, _integer(1))

    def __neg__(self) -> Integer:
        return 0 - self

    def __pos__(self) -> Integer:
        return self

    def __invert__(self) -> Integer:
        return -1 - self

    def __abs__(self) -> Integer:
        return Integer("abs", (self,))

    def __eq__(self, other: IntegerLike) -> Condition:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _compare("==", self, other)

    def __ne__(self, other: IntegerLike) -> Condition:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _compare("!=", self, other)

    def __lt__(self, other: IntegerLike) -> Condition:
        return _compare("<", self, other)

    def __le__(self, other: IntegerLike) -> Condition:
        return _compare("<=", self, other)

    def __gt__(self, other: IntegerLike) -> Condition:
        return _compare(">", self, other)

    def __ge__(self, other: IntegerLike) -> Condition:
        return _compare(">=", self, other)

    def __truediv__(self, other: object) -> NoReturn:
        raise MaskError(
            "the predicate of where() divides with /; compare products, as in 2 * kv < q for kv < q / 2, or use //, "
            "which rounds down"
        )

    __hash__ = object.__hash__


class Condition(Symbol):
    """A symbolic truth value; combine with & | ^ ~, compare with == and !=."""

    def __and__(self, other: ConditionLike) -> Condition:
        return Condition("&", (self, _condition(other)))

    def __or__(self, other: ConditionLike) -> Condition:
        return Condition("|", (self, _condition(other)))

    def __xor__(self, other: ConditionLike) -> Condition:
        return Condition("^", (self, _condition(other)))

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> Condition:
        return self ^ True

    def __eq__(self, other: ConditionLike) -> Condition:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ~(self ^ other)

    def __ne__(self, other: ConditionLike) -> Condition:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self ^ other

    __hash__ = object.__hash__


IntegerLike = Integer | int
ConditionLike = Condition | bool


@dataclass(frozen=True, eq=False)
class SymbolicTable:
    """A table of the mask: `table[i]` reads an entry; an index outside reads the nearest one."""

    name: str

    def __getitem__(self, index: IntegerLike) -> Integer:
        return Integer("read", (_integer(index),), self.name)

    def _refuse(self, *_: object) -> NoReturn:
        """A table has no length while a predicate is read; without this, Python would count up indices for ever."""
        raise MaskError(f"table {self.name} can be read at an index, {self.name}[i], but not searched or iterated over")

    __iter__ = __contains__ = __len__ = __reversed__ = _refuse


def _integer(value: object) -> Integer:
    if isinstance(value, Integer):
        return value
    if isinstance(value, Symbol | SymbolicTable):
        wrong = "a comparison" if isinstance(value, Symbol) else f"table {value.name} without an index"
        raise MaskError(f"the predicate of where() computes with integers, got {wrong}")
    if isinstance(value, float):
        raise MaskError(
            f"the predicate of where() computes with integers only, got {value}; write the comparison with integers, "
            "as in 2 * kv < q for kv < 0.5 * q"
        )
    return Integer("constant", payload=integer("where: a constant of the predicate", value))


def _condition(value: object) -> Condition:
    if isinstance(value, Condition):
        return value
    if isinstance(value, bool):
        return Condition("constant", payload=value)
    raise MaskError(f"where: a truth value was expected, such as q >= kv, got {type(value).__name__}")


def _binary(operation: str, lhs: object, rhs: object) -> Integer:
    left, right = _integer(lhs), _integer(rhs)
    if operation == "//" and right.kind == "constant" and right.payload == 0:
        raise MaskError("the predicate of where() divides by zero")
    if operation in ("<<", ">>") and right.kind == "constant" and not 0 <= right.payload <= 31:
        raise MaskError(f"the predicate of where() shifts by {right.payload} bits; expected 0 to 31")
    return Integer(operation, (left, right))


def _compare(operation: str, lhs: object, rhs: object) -> Condition:
    return Condition(operation, (_integer(lhs), _integer(rhs)))


Q, KV = Integer("q"), Integer("kv")


@dataclass(frozen=True, eq=False, repr=False)
class _Where(Mask):
    visible: Condition
    bound: dict[str, Value]
    label: str

    @property
    def name(self) -> str:
        return self.label

    def emit(self, builder: Builder) -> SSAValue:
        values = {
            name: builder.scalar(name, value) if value.is_scalar else builder.table(name, value)
            for name, value in self.bound.items()
        }
        body = Block(arg_types=[i32, i32])
        for argument, hint in zip(body.args, ("q", "kv"), strict=True):
            argument.name_hint = hint
        emitter = Emitter(body, values)
        body.add_op(dialect.YieldOp(emitter.value(self.visible)))
        return builder.add(dialect.WhereOp(Region(body)), "visible")


@dataclass
class Emitter:
    """Writes symbols into the body of a leaf, each once."""

    body: Block
    arguments: dict[str, SSAValue]
    done: dict[Symbol, SSAValue] = field(default_factory=dict[Symbol, SSAValue])
    constants: dict[tuple[type, int], SSAValue] = field(default_factory=dict[tuple[type, int], SSAValue])

    def value(self, symbol: Symbol) -> SSAValue:
        if symbol not in self.done:
            self.done[symbol] = self._write(symbol)
        return self.done[symbol]

    def _write(self, symbol: Symbol) -> SSAValue:
        if symbol.kind in ("q", "kv"):
            return self.body.args[0 if symbol.kind == "q" else 1]
        if symbol.kind == "constant":
            return self._constant(symbol)
        if symbol.kind == "scalar":
            return self.arguments[symbol.payload]
        operands = [self.value(operand) for operand in symbol.operands]
        if symbol.kind == "read":
            return self._add(dialect.ReadOp(self.arguments[symbol.payload], operands[0]))
        if symbol.kind == "search":
            return self._add(dialect.SearchOp(self.arguments[symbol.payload], operands[0]))
        if symbol.kind in _SIZES:
            return self._add(_SIZES[symbol.kind]())
        if symbol.kind == "abs":
            negative = self._add(xdsl_arith.SubiOp(self._constant(Integer("constant", payload=0)), operands[0]))
            return self._add(xdsl_arith.MaxSIOp(operands[0], negative))
        if symbol.kind in _COMPARISONS:
            return self._add(CmpiOp(operands[0], operands[1], _COMPARISONS[symbol.kind]))
        return self._add(_ARITH[symbol.kind](*operands))  # pyright: ignore[reportArgumentType]

    def _constant(self, symbol: Symbol) -> SSAValue:
        key = (type(symbol), symbol.payload)
        if key not in self.constants:
            kind = i1 if isinstance(symbol, Condition) else i32
            value = self._add(ConstantOp(IntegerAttr(int(symbol.payload), kind)))
            if isinstance(symbol, Integer):
                value.name_hint = f"c{symbol.payload}" if symbol.payload >= 0 else f"minus{-symbol.payload}"
            self.constants[key] = value
        return self.constants[key]

    def _add(self, op: Operation) -> SSAValue:
        self.body.add_op(op)
        return op.results[0]


def where(predicate: Callable[..., Any], **arguments: Scalar) -> Mask:
    """Pairs for which predicate(q, kv, **arguments) is true; q and kv are positions from 0.

    The function is called once, on symbols: it may use + - * // % ** << >> abs, comparisons, & | ^ ~ and the named
    arguments, but not `if`, `and`, `or`, `not`. Python integers that it mentions become constants of the mask; what
    shall be run-time data, pass as a named argument: an int is an integer in the function, a tensor or list is a
    table, to be read as `name[index]` (an index outside reads the nearest entry), a tensor of shape [] is an
    integer. All computes in 32 bits, and a division by zero at run time yields any value; `//` and `%` floor, as in
    Python.

    The compiler knows nothing about such a mask but its predicate: named masks and their combinations are faster.

    Example: `where(lambda q, kv, label: label[q] == label[kv], label=labels)`.

    Args:
        predicate: function of (q, kv) and the arguments by name that returns a truth value.
        arguments: ints, or int32/int64 data of shape [n], [B, n] or [B, H, n].

    Raises:
        MaskError: an argument is not of these types, or the function does something that cannot be traced.
    """
    if not callable(predicate):
        raise MaskError(f"where takes a function of (q, kv), got {type(predicate).__name__}")
    values = {name: _argument(name, value) for name, value in arguments.items()}
    symbols = {
        name: Integer("scalar", payload=name) if value.is_scalar else SymbolicTable(name)
        for name, value in values.items()
    }
    effects = SideEffects(predicate)
    try:
        visible = _condition(predicate(Q, KV, **symbols))
    except IndexError as error:  # of a list, a tensor or an array: what is passed by name has no end
        raise located(MaskError(_PASS_BY_NAME).with_traceback(error.__traceback__), predicate, _HINT) from error
    except Exception as error:
        raise located(error, predicate, _HINT) from error
    effects.check(_HINT)
    label = getattr(predicate, "__name__", "")
    return _Where(visible, values, label if label.isidentifier() and label.isascii() else "where")


def _argument(name: str, value: Any) -> Value:
    if isinstance(value, int) or getattr(value, "shape", None) == ():
        return scalar(f"where: {name}", value)
    return table(f"where: {name}", value)


__all__ = ["KV", "Condition", "Emitter", "Integer", "IntegerLike", "Q", "SymbolicTable", "where"]
