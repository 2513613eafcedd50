"""Symbolic bounds of passes/bounds.py as terms, for one row."""

from __future__ import annotations

from functools import reduce

from compilemask.passes.bounds import All, Atom, Condition, Expr, Extreme, Flag, NonNegative, Product, Select, Value
from compilemask.passes.smt.interval_terms import Row
from compilemask.passes.smt.library import Term, z3


def term(row: Row, expr: Expr) -> Term:
    """The value of an expression in a row."""
    total = z3().IntVal(expr.constant)
    for atom, coefficient in expr.terms:
        total = total + _atom(row, atom) * coefficient
    return total


def _atom(row: Row, atom: Atom) -> Term:
    match atom:
        case Value(ssa):
            return row.values[ssa]
        case Product(lhs, rhs):
            return term(row, lhs) * term(row, rhs)
        case Select(condition, then, other):
            return z3().If(condition_term(row, condition), term(row, then), term(row, other))
        case Extreme(kind, items):
            terms = [term(row, item) for item in items]
            larger = kind == "max"
            return reduce(lambda a, b: z3().If((a >= b) if larger else (a <= b), a, b), terms)


def condition_term(row: Row, condition: Condition) -> Term:
    """Whether a condition holds in a row."""
    match condition:
        case NonNegative(expr):
            return term(row, expr) >= 0
        case Flag(ssa):
            return row.values[ssa]
        case All(items):
            return z3().And(*[condition_term(row, item) for item in items])


__all__ = ["condition_term", "term"]
