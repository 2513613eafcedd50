"""Leaves of the catalogue whose bodies are Python functions, traced once on symbols as the predicate of `where` is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any, ClassVar

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, i32, i64
from xdsl.ir import Block, BlockArgument, Region, SSAValue

from compilemask.dialects import mask as dialect
from compilemask.language.builder import Builder
from compilemask.language.mask import Mask
from compilemask.language.predicate import KV, Condition, Emitter, Integer, IntegerLike, Q, SymbolicTable
from compilemask.language.values import Value

# ---- what functions of symbols may use beside operators ----

QUERIES, KEYS = Integer("queries"), Integer("keys")
"""The numbers of queries and keys."""


def constant(value: int) -> Integer:
    """An integer that is part of the mask's structure, as a symbol."""
    return Integer("constant", payload=value)


def _symbol(value: IntegerLike) -> Integer:
    return value if isinstance(value, Integer) else constant(value)


def smaller(*items: IntegerLike) -> Integer:
    """The minimum."""
    return reduce(lambda a, b: Integer("min", (a, b)), [_symbol(item) for item in items])


def larger(*items: IntegerLike) -> Integer:
    """The maximum."""
    return reduce(lambda a, b: Integer("max", (a, b)), [_symbol(item) for item in items])


def chosen(condition: Condition, then: IntegerLike, other: IntegerLike) -> Integer:
    """`then` where the condition holds, else `other`."""
    return Integer("select", (condition, _symbol(then), _symbol(other)))


def first_at_least(table: SymbolicTable, value: IntegerLike) -> Integer:
    """The index of the first entry of an ascending table that is at least a value; -2^30 for the very first entry."""
    return Integer("search", (_symbol(value),), table.name)


def last_at_most(table: SymbolicTable, value: IntegerLike) -> Integer:
    """The index of the last entry of an ascending table that is at most a value; before the table if none is."""
    return first_at_least(table, _symbol(value) + 1) - 1


# ---- leaves ----


@dataclass(frozen=True, eq=False)
class Line:
    """What a row sees of one line of a raster: the keys [lo, hi), if the line is one of [first, last)."""

    lo: IntegerLike
    hi: IntegerLike
    first: IntegerLike
    last: IntegerLike


def _symbols(data: Mapping[str, SSAValue]) -> dict[str, Any]:
    """What stands for the data in a traced function."""
    return {
        name: Integer("scalar", payload=name) if value.type == i32 else SymbolicTable(name)
        for name, value in data.items()
    }


def _body(hints: tuple[str, str]) -> Block:
    body = Block(arg_types=[i32, i32])
    for argument, hint in zip(body.args, hints, strict=True):
        argument.name_hint = hint
    return body


def emit_where(
    builder: Builder, visible: Callable[..., Condition], data: Mapping[str, SSAValue], ascending: tuple[str, ...] = ()
) -> SSAValue:
    """The pairs for which visible(q, kv, **data) holds. `data` are values of the mask's function; `ascending` names
    those of its tables whose entries never fall.
    """
    body = _body(("q", "kv"))
    emitter = Emitter(body, dict(data))
    body.add_op(dialect.YieldOp(emitter.value(visible(Q, KV, **_symbols(data)))))
    op = dialect.WhereOp(Region(body))
    numbers = sorted(table.index for name in ascending if isinstance(table := data[name], BlockArgument))
    if numbers:
        op.attributes["ascending"] = ArrayAttr([IntegerAttr(number, i64) for number in numbers])
    return builder.add(op, "visible")


def emit_lines(
    builder: Builder,
    raster: tuple[SSAValue, SSAValue],
    line: Callable[..., Line],
    data: Mapping[str, SSAValue],
    at_most: int | None = None,
    columns: Callable[..., Line] | None = None,
    columns_at_most: int | None = None,
) -> SSAValue:
    """What line(q, number, **data) says of each line of a raster, which is (base, pitch). `columns`, if given, says the
    same of (kv, number): which queries see a key.
    """
    rows = _line_body("q", line, data)
    others = None if columns is None else _line_body("kv", columns, data)
    return builder.add(dialect.LinesOp(*raster, rows, at_most, others, columns_at_most), "lines")


def _line_body(position: str, line: Callable[..., Line], data: Mapping[str, SSAValue]) -> Region:
    body = _body((position, "line"))
    emitter = Emitter(body, dict(data))
    found = line(Q, KV, **_symbols(data))
    values = [emitter.value(_symbol(bound)) for bound in (found.lo, found.hi, found.first, found.last)]
    body.add_op(dialect.MemberOp(*values))
    return Region(body)


class Pointwise(Mask):
    """A mask that is one predicate. Its run-time data are its fields that hold values."""

    ASCENDING: ClassVar[tuple[str, ...]] = ()
    """Fields that hold ascending tables."""

    visible: ClassVar[Callable[..., Condition]]
    """(q, kv, and the data by name) -> whether the pair is visible."""

    def emit(self, builder: Builder) -> SSAValue:
        return emit_where(builder, self.visible, bound(builder, self), self.ASCENDING)


def bound(builder: Builder, mask: Any) -> dict[str, SSAValue]:
    """The fields of a mask that hold values, as values of its function."""
    values = {field.name: getattr(mask, field.name) for field in fields(mask)}
    return {
        name: builder.scalar(name, value) if value.is_scalar else builder.table(name, value)
        for name, value in values.items()
        if isinstance(value, Value)
    }


__all__ = [
    "KEYS",
    "QUERIES",
    "Line",
    "Pointwise",
    "bound",
    "chosen",
    "constant",
    "emit_lines",
    "emit_where",
    "first_at_least",
    "larger",
    "last_at_most",
    "smaller",
]
