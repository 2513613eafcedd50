"""Integers of a predicate as a reader would write them, and why a comparison was not solved for the key."""

from __future__ import annotations

from typing import Any

from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Operation, SSAValue

from compilemask.dialects import interval, mask
from compilemask.lowering.predicate_cycles import SHORTEST_PERIOD
from compilemask.lowering.predicate_terms import Choice, Entry, Opaque, Quotient
from compilemask.passes.bounds import Expr, Extreme, Product, Select, Value, depends_on

_INFIX: dict[type[Operation], str] = {
    xdsl_arith.AddiOp: "+",
    xdsl_arith.SubiOp: "-",
    xdsl_arith.MuliOp: "*",
    xdsl_arith.FloorDivSIOp: "//",
    xdsl_arith.AndIOp: "&",
    xdsl_arith.OrIOp: "|",
    xdsl_arith.XOrIOp: "^",
    xdsl_arith.ShLIOp: "<<",
    xdsl_arith.ShRSIOp: ">>",
}
_DEEPEST = 6
"""Operations above each other that are written out."""


def text_of(expr: Expr) -> str:
    """The expression, with values under their names in IR."""
    parts = [(factor, _atom_text(atom)) for atom, factor in expr.terms]
    # What is added first, so that the text does not begin with a minus where it need not.
    parts.sort(key=lambda part: part[0] < 0)
    written = ""
    for factor, name in parts:
        sign = " - " if factor < 0 else " + "
        written += (sign if written else "-" * (factor < 0)) + (name if abs(factor) == 1 else f"{abs(factor)} * {name}")
    if expr.constant or not written:
        sign = " - " if expr.constant < 0 else " + "
        written += (sign if written else "-" * (expr.constant < 0)) + str(abs(expr.constant))
    return written


def _grouped(expr: Expr) -> str:
    text = text_of(expr)
    return f"({text})" if " " in text else text


def _atom_text(atom: Any) -> str:
    match atom:
        case Value(ssa) | Opaque(ssa):
            return _value_text(ssa)
        case Quotient(dividend, divisor):
            return f"({_grouped(dividend)} // {divisor})"
        case Entry(table, index):
            return f"{table.name_hint or 'table'}[{text_of(index)}]"
        case Extreme(kind, items):
            return f"{kind}({', '.join(text_of(item) for item in items)})"
        case Choice(_, then, other) | Select(_, then, other):
            return f"({text_of(then)} or {text_of(other)})"
        case Product(lhs, rhs):
            return f"{_grouped(lhs)} * {_grouped(rhs)}"
        case _:
            return "?"


def _value_text(value: SSAValue, depth: int = _DEEPEST) -> str:
    op = value.owner
    if isinstance(op, xdsl_arith.ConstantOp) and isinstance(op.value, IntegerAttr):
        return str(op.value.value.data)
    if not isinstance(op, Operation) or value.name_hint:
        return value.name_hint or "?"
    operands = [_value_text(operand, depth - 1) for operand in op.operands] if depth else []
    if operands and (sign := _INFIX.get(type(op))) is not None:
        return f"({operands[0]} {sign} {operands[1]})"
    if operands and isinstance(op, interval.ReadOp | mask.ReadOp):
        return f"{operands[0]}[{operands[1]}]"
    return f"{op.name.partition('.')[2]}({', '.join(operands)})"


# ---- reasons ----


def entry_reason(entry: Entry) -> str:
    """Why an entry of a table cannot be turned around."""
    return (
        f"{_atom_text(entry)} is not solved for {text_of(entry.index)}: {entry.table.name_hint} is not known to ascend"
    )


def opaque_reason(value: SSAValue) -> str:
    """Why a value of the predicate is not looked into."""
    return f"{_value_text(value)} is not linear in the key"


def several_reason(expr: Expr, opened: list[tuple[Any, int]], row: SSAValue) -> str:
    """Why a sum of several terms that depend on the key is not solved."""
    quotients = [atom for atom, _ in opened if isinstance(atom, Quotient)]
    coarse = max(quotients, key=lambda atom: atom.divisor, default=None)
    if coarse is None or len(opened) != 2:
        return f"the key stands in several terms of {text_of(expr)}"
    text = f"{_grouped(coarse.dividend)} % {coarse.divisor}"
    if coarse.divisor < SHORTEST_PERIOD:
        return f"{text} repeats every {coarse.divisor} keys; below {SHORTEST_PERIOD}, cells are too many"
    if depends_on(coarse.dividend, frozenset({row})):
        return f"{text} repeats every {coarse.divisor} keys, from another key on in each row"
    return f"the key stands in several terms of {text_of(expr)}"


__all__ = ["entry_reason", "opaque_reason", "several_reason", "text_of"]
