"""What the scalar operations of `arith` mean, as terms. An i1 value is a truth value, any other one an integer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import IntegerAttr, i1
from xdsl.ir import Operation

from compilemask.dialects import arith
from compilemask.passes.smt.library import Term, z3
from compilemask.passes.smt.world import World

_BINARY: dict[str, Callable[[World, Term, Term], Term]] = {
    "arith.addi": lambda world, a, b: a + b,
    "arith.subi": lambda world, a, b: a - b,
    "arith.muli": lambda world, a, b: a * b,
    "arith.maxsi": lambda world, a, b: z3().If(a >= b, a, b),
    "arith.minsi": lambda world, a, b: z3().If(a <= b, a, b),
    "arith.floordivsi": lambda world, a, b: world.quotient(a, b)[0],
    "arith.divsi": lambda world, a, b: world.truncated_quotient(a, b),
    "arith.remsi": lambda world, a, b: a - world.truncated_quotient(a, b) * b,
    "arith.ceildivsi": lambda world, a, b: -world.quotient(-a, b)[0],
}

_LOGIC: dict[str, Callable[[Term, Term], Term]] = {
    "arith.andi": lambda a, b: z3().And(a, b),
    "arith.ori": lambda a, b: z3().Or(a, b),
    "arith.xori": lambda a, b: z3().Xor(a, b),
}

_RELATIONS: dict[str, Callable[[Term, Term], Term]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def execute(world: World, op: Operation, operands: Sequence[Term]) -> Term:
    """The one result of an operation. Operations without a rule here are functions about which nothing is known."""
    boolean = op.results[0].type == i1
    match op:
        case xdsl_arith.ConstantOp() if isinstance(op.value, IntegerAttr):
            value = op.value.value.data
            return z3().BoolVal(value != 0) if boolean else z3().IntVal(value)
        case arith.CmpiOp() if z3().is_int(operands[0]):
            return _compare(op.predicate_name, *operands)
        case arith.CmpiOp() if op.predicate_name in ("eq", "ne"):
            return _RELATIONS[op.predicate_name](*operands)
        case arith.SelectOp():
            return z3().If(*operands)
        case arith.ExtSIOp() | arith.ExtUIOp() if z3().is_bool(operands[0]):
            return z3().If(operands[0], z3().IntVal(-1 if isinstance(op, arith.ExtSIOp) else 1), z3().IntVal(0))
        case _:
            pass
    if boolean and op.name in _LOGIC:
        return _LOGIC[op.name](*operands)
    if not boolean and op.name in _BINARY:
        return _BINARY[op.name](world, *operands)
    return world.opaque(op.name, list(operands), boolean)


def _compare(predicate: str, a: Term, b: Term) -> Term:
    if predicate in ("eq", "ne"):
        return _RELATIONS[predicate](a, b)
    if predicate.startswith("u"):
        a, b = (z3().If(x < 0, x + 2**32, x) for x in (a, b))
    return _RELATIONS[predicate[1:]](a, b)


__all__ = ["execute"]
