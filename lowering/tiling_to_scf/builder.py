"""Write functions of upstream dialects (arith, math, memref, scf, vector) in Python, one operation per call.

    fb = FunctionBuilder("double", {"x": memref(f32), "n": INDEX})
    with fb.for_loop(fb.constant(0), fb.arg("n")) as loop:
        fb.store(fb.load(fb.arg("x"), loop.index) * 2.0, fb.arg("x"), loop.index)
    text = fb.finish()                                # a builtin.module with one func.func

Values have the operators of their type: `+ - * / // % & << >>` and, for comparisons, `fb.compare`. Division and shifts
to the right are unsigned. Python numbers beside a value take its type.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

INDEX, I1, I32, I64, F32, F64 = "index", "i1", "i32", "i64", "f32", "f64"
Number: TypeAlias = "int | float"


def vector(size: int, element: str) -> str:
    """The type of a vector."""
    return f"vector<{size}x{element}>"


def memref(element: str, size: int | None = None) -> str:
    """The type of one-dimensional memory."""
    return f"memref<{'?' if size is None else size}x{element}>"


def element_of(type_: str) -> str:
    """The element of a vector or memref, and of any other type itself."""
    return type_[:-1].partition("x")[2] if type_.endswith(">") else type_


def with_element(type_: str, element: str) -> str:
    """A type of the same shape."""
    return f"{type_.partition('x')[0]}x{element}>" if type_.endswith(">") else element


def is_float(type_: str) -> bool:
    """Whether a type is a float or a vector of floats."""
    return element_of(type_) == F32


@dataclass(frozen=True)
class Value:
    """An SSA value."""

    name: str
    type: str
    builder: FunctionBuilder = field(repr=False, compare=False)

    def _with(self, integers: str, floats: str, other: Value | Number) -> Value:
        operation = floats if is_float(self.type) else integers
        return self.builder.binary(operation, self, self.builder.like(other, self))

    def __add__(self, other: Value | Number) -> Value:
        return self._with("addi", "addf", other)

    def __sub__(self, other: Value | Number) -> Value:
        return self._with("subi", "subf", other)

    def __mul__(self, other: Value | Number) -> Value:
        return self._with("muli", "mulf", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Value | Number) -> Value:
        return self._with("divui", "divf", other)

    def __floordiv__(self, other: Value | Number) -> Value:
        return self._with("divui", "divui", other)

    def __mod__(self, other: Value | Number) -> Value:
        return self._with("remui", "remui", other)

    def __and__(self, other: Value | Number) -> Value:
        return self._with("andi", "andi", other)

    def __or__(self, other: Value | Number) -> Value:
        return self._with("ori", "ori", other)

    def __lshift__(self, other: Value | Number) -> Value:
        return self._with("shli", "shli", other)

    def __rshift__(self, other: Value | Number) -> Value:
        return self._with("shrui", "shrui", other)


@dataclass
class Loop:
    """A loop while it is written (`index`, `carried`, `yield_`) and afterwards (`results`)."""

    index: Value
    carried: list[Value]
    results: list[Value] = field(default_factory=list[Value])
    yielded: list[Value] = field(default_factory=list[Value])

    def yield_(self, *values: Value) -> None:
        """What the next iteration, or the code behind the loop, gets."""
        self.yielded = list(values)


class FunctionBuilder:
    """Writes one `func.func` without results."""

    def __init__(self, name: str, arguments: Mapping[str, str]) -> None:
        self._name = name
        self._arguments = {name: Value(f"%{name}", type_, self) for name, type_ in arguments.items()}
        self._constants: dict[tuple[str, str], Value] = {}
        self._top: list[str] = []
        self._lines: list[str] = []
        self._depth, self._count = 2, 0

    def arg(self, name: str) -> Value:
        """An argument by its name."""
        return self._arguments[name]

    # ---- values ----

    def constant(self, number: Number, type_: str = INDEX) -> Value:
        """A constant at the top of the function; of a vector, one in all lanes."""
        element = element_of(type_)
        text = _literal(number, element)
        if (text, type_) not in self._constants:
            if type_ == element:
                operation = f"arith.constant {text} : {type_}"
            else:
                operation = f"vector.broadcast {self.constant(number, element).name} : {element} to {type_}"
            self._constants[text, type_] = self._top_level(operation, type_)
        return self._constants[text, type_]

    def like(self, other: Value | Number, value: Value) -> Value:
        """A number as a constant of a value's type."""
        return other if isinstance(other, Value) else self.constant(other, value.type)

    def binary(self, operation: str, a: Value, b: Value) -> Value:
        """An operation of arith on two values of one type."""
        return self._value(f"arith.{operation} {a.name}, {b.name} : {a.type}", a.type)

    def compare(self, predicate: str, a: Value, b: Value | Number) -> Value:
        """`arith.cmpf` or `arith.cmpi` with a predicate: i1, or a vector of i1."""
        operation = "cmpf" if is_float(a.type) else "cmpi"
        text = f"arith.{operation} {predicate}, {a.name}, {self.like(b, a).name} : {a.type}"
        return self._value(text, with_element(a.type, I1))

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """`a` where the condition holds, else `b`."""
        types = a.type if condition.type == I1 else f"{condition.type}, {a.type}"
        return self._value(f"arith.select {condition.name}, {a.name}, {b.name} : {types}", a.type)

    def minimum(self, a: Value, b: Value) -> Value:
        """The smaller of two signed integers."""
        return self.binary("minsi", a, b)

    def maximum(self, a: Value, b: Value) -> Value:
        """The larger of two signed integers."""
        return self.binary("maxsi", a, b)

    def ones(self, x: Value) -> Value:
        """How many bits of an integer are set."""
        return self._value(f"math.ctpop {x.name} : {x.type}", x.type)

    def leading_zeros(self, x: Value) -> Value:
        """How many bits above the highest one that is set an integer has."""
        return self._value(f"math.ctlz {x.name} : {x.type}", x.type)

    def square_root(self, x: Value) -> Value:
        """The square root of a float."""
        return self._value(f"math.sqrt {x.name} : {x.type}", x.type)

    def convert(self, operation: str, x: Value, type_: str) -> Value:
        """An operation of arith from one scalar type to another."""
        return self._value(f"arith.{operation} {x.name} : {x.type} to {type_}", type_)

    def extend(self, x: Value) -> Value:
        """A signed integer as i64."""
        return self.convert("extsi", x, I64)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """`a * b + c` of vectors, rounded once."""
        return self._value(f"vector.fma {a.name}, {b.name}, {c.name} : {a.type}", a.type)

    def log2(self, x: Value) -> Value:
        """The logarithm to base 2."""
        return self._value(f"math.log2 {x.name} : {x.type}", x.type)

    def splat(self, x: Value, size: int) -> Value:
        """A vector with a scalar in all lanes."""
        type_ = vector(size, x.type)
        return self._value(f"vector.broadcast {x.name} : {x.type} to {type_}", type_)

    def any_bit(self, x: Value) -> Value:
        """The OR of all lanes of a vector of integers."""
        return self._value(f"vector.reduction <or>, {x.name} : {x.type} into {element_of(x.type)}", element_of(x.type))

    def bits(self, x: Value, element: str) -> Value:
        """The same bits of a vector as other elements."""
        type_ = with_element(x.type, element)
        return self._value(f"vector.bitcast {x.name} : {x.type} to {type_}", type_)

    def index(self, x: Value) -> Value:
        """A signed integer as an index."""
        return self._value(f"arith.index_cast {x.name} : {x.type} to {INDEX}", INDEX)

    def integer(self, x: Value, type_: str = I32) -> Value:
        """An index as an integer, or one bit as 0 or 1."""
        operation = "extui" if x.type == I1 else "index_cast"
        return self._value(f"arith.{operation} {x.name} : {x.type} to {type_}", type_)

    # ---- memory ----

    def scratch(self, size: int, element: str) -> Value:
        """Memory of this call."""
        type_ = memref(element, size)
        return self._top_level(f"memref.alloca() {{alignment = 64 : i64}} : {type_}", type_)

    def size(self, memory: Value) -> Value:
        """How many elements there are."""
        return self._value(f"memref.dim {memory.name}, {self.constant(0).name} : {memory.type}", INDEX)

    def load(self, memory: Value, index: Value, size: int | None = None) -> Value:
        """An element, or a vector of so many."""
        element = element_of(memory.type)
        if size is None:
            return self._value(f"memref.load {memory.name}[{index.name}] : {memory.type}", element)
        type_ = vector(size, element)
        return self._value(f"vector.load {memory.name}[{index.name}] : {memory.type}, {type_}", type_)

    def store(self, x: Value, memory: Value, index: Value) -> None:
        """Store an element or a vector."""
        if x.type.startswith("vector"):
            self._line(f"vector.store {x.name}, {memory.name}[{index.name}] : {memory.type}, {x.type}")
        else:
            self._line(f"memref.store {x.name}, {memory.name}[{index.name}] : {memory.type}")

    # ---- control ----

    @contextmanager
    def for_loop(
        self, start: Value, stop: Value, step: int = 1, initial: Sequence[Value] = ()
    ) -> Generator[Loop, None, None]:
        """`scf.for`; what it carries must be yielded."""
        loop = Loop(self._named(INDEX), [self._named(value.type) for value in initial])
        by = self.constant(step)
        types = ", ".join(value.type for value in initial)
        head = f"scf.for {loop.index.name} = {start.name} to {stop.name} step {by.name}"
        if initial:
            pairs = zip(loop.carried, initial, strict=True)
            head += f" iter_args({', '.join(f'{a.name} = {b.name}' for a, b in pairs)}) -> ({types})"
            loop.results = self._results(head + " {", [value.type for value in initial])
        else:
            self._line(head + " {")
        with self._indented():
            yield loop
            if initial:
                assert [value.type for value in loop.yielded] == [value.type for value in initial]
                self._line(f"scf.yield {', '.join(value.name for value in loop.yielded)} : {types}")

    @contextmanager
    def when(self, condition: Value) -> Generator[None, None, None]:
        """`scf.if` without results and without an else."""
        self._line(f"scf.if {condition.name} {{")
        with self._indented():
            yield

    @contextmanager
    def numbers_below(self, counter: Value, stop: Value) -> Generator[Value, None, None]:
        """Loop over numbers that calls with one `counter` (memory of one i64) share among them, each up to `stop`."""
        number, drawn, more = (self._named(type_) for type_ in (I64, I64, I1))
        zero, one = self.constant(0), self.constant(1, I64)
        # In generic form, which xDSL reads too; 1 is addi.
        self._line('"scf.while"() ({')
        with self._indented(close="}, {"):
            self._line(
                f'{drawn.name} = "memref.atomic_rmw"({one.name}, {counter.name}, {zero.name}) <{{kind = 1 : i64}}> : '
                f"({I64}, {counter.type}, {INDEX}) -> {I64}"
            )
            self._line(f"{more.name} = arith.cmpi slt, {drawn.name}, {stop.name} : {I64}")
            self._line(f"scf.condition({more.name}) {drawn.name} : {I64}")
        with self._indented(close=f"}}) : () -> {I64}"):
            self._line(f"^bb0({number.name}: {I64}):")
            yield self.index(number)
            self._line("scf.yield")

    def finish(self) -> str:
        """The module."""
        arguments = ", ".join(f"{value.name}: {value.type}" for value in self._arguments.values())
        body = "\n".join([*self._top, *self._lines])
        return f"module {{\n  func.func @{self._name}({arguments}) {{\n{body}\n    return\n  }}\n}}\n"

    # ---- text ----

    def _named(self, type_: str) -> Value:
        self._count += 1
        return Value(f"%{self._count}", type_, self)

    def _line(self, text: str) -> None:
        self._lines.append("  " * self._depth + text)

    def _value(self, text: str, type_: str) -> Value:
        value = self._named(type_)
        self._line(f"{value.name} = {text}")
        return value

    def _top_level(self, text: str, type_: str) -> Value:
        value = self._named(type_)
        self._top.append(f"    {value.name} = {text}")
        return value

    def _results(self, text: str, types: Sequence[str]) -> list[Value]:
        first = self._named(types[0])
        self._line(f"{first.name}:{len(types)} = {text}")
        return [Value(f"{first.name}#{number}", type_, self) for number, type_ in enumerate(types)]

    @contextmanager
    def _indented(self, close: str = "}") -> Generator[None, None, None]:
        self._depth += 1
        yield
        self._depth -= 1
        self._line(close)


def _literal(number: Number, element: str) -> str:
    if element != F32:
        return str(int(number))
    # Bits say a float exactly, infinities and NaN too.
    return f"0x{struct.unpack('<I', struct.pack('<f', number))[0]:08X}"
