"""The graph that a mask_mod is traced into: integers and truth values of one (b, h, q, kv), each node made once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import IntegerAttr, i1, i32
from xdsl.ir import Block, Operation, SSAValue

from compilemask.dialects import arith
from compilemask.dialects import mask as dialect
from compilemask.errors import MaskError
from compilemask.passes.bound_emission import constant_name

if TYPE_CHECKING:
    from compilemask.language.values import Value

COMPARISONS = ("eq", "ne", "slt", "sle", "sgt", "sge")

_OPERATIONS: dict[str, tuple[type[Operation], Callable[[int, int], int]]] = {
    "add": (xdsl_arith.AddiOp, lambda a, b: a + b),
    "sub": (xdsl_arith.SubiOp, lambda a, b: a - b),
    "mul": (xdsl_arith.MuliOp, lambda a, b: a * b),
    "floordiv": (xdsl_arith.FloorDivSIOp, lambda a, b: a // b),
    "min": (xdsl_arith.MinSIOp, min),
    "max": (xdsl_arith.MaxSIOp, max),
    "and": (xdsl_arith.AndIOp, lambda a, b: a & b),
    "or": (xdsl_arith.OrIOp, lambda a, b: a | b),
    "xor": (xdsl_arith.XOrIOp, lambda a, b: a ^ b),
    "shl": (xdsl_arith.ShLIOp, lambda a, b: a << b),
    "shr": (xdsl_arith.ShRSIOp, lambda a, b: a >> b),
}
_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "slt": lambda a, b: a < b,
    "sle": lambda a, b: a <= b,
    "sgt": lambda a, b: a > b,
    "sge": lambda a, b: a >= b,
}


FLOAT = "float "
"""Kinds of floats start like this; only score_mods compute with them."""


class Node:
    """One value: `kind` is "q", "kv", "b", "h", "constant", "read", "select", an operation or a comparison."""

    __slots__ = ("is_truth", "kind", "operands", "payload")

    def __init__(self, kind: str, operands: tuple[Node, ...], payload: Hashable, is_truth: bool) -> None:
        self.kind, self.operands, self.payload, self.is_truth = kind, operands, payload, is_truth

    @property
    def is_float(self) -> bool:
        """Whether the value is a float."""
        return self.kind.startswith(FLOAT)

    @property
    def number(self) -> int | None:
        """The value of a constant."""
        return self.payload if self.kind == "constant" and isinstance(self.payload, int) else None


@dataclass(eq=False)
class Graph:
    """Makes nodes and folds constants."""

    tables: list[Value] = field(default_factory=lambda: [])
    """What "read" nodes read, by number."""
    trusted: set[int] = field(default_factory=set[int])
    """The tables whose entries were seen not to be negative, and are relied on to stay so."""
    _nodes: dict[object, Node] = field(default_factory=dict[object, Node])

    def node(self, kind: str, operands: tuple[Node, ...] = (), payload: Hashable = None, truth: bool = False) -> Node:
        """The node, made on the first call."""
        key = (kind, operands, payload, truth)
        if key not in self._nodes:
            self._nodes[key] = Node(kind, operands, payload, truth)
        return self._nodes[key]

    # ---- leaves ----

    def integer(self, value: int) -> Node:
        """A constant integer."""
        if not -(2**31) <= value < 2**31:
            raise MaskError(f"from_mask_mod: {value} is no 32-bit integer")
        return self.node("constant", payload=int(value))

    def truth(self, value: bool) -> Node:
        """A constant truth value."""
        return self.node("constant", payload=bool(value), truth=True)

    def read(self, table: int, index: Node) -> Node:
        """An entry of a table."""
        return self.node("read", (index,), table)

    # ---- operations ----

    def binary(self, kind: str, lhs: Node, rhs: Node) -> Node:
        """An operation on two integers, or "and", "or", "xor" on two truth values."""
        truth = lhs.is_truth and rhs.is_truth and kind in ("and", "or", "xor")
        if not truth:
            lhs, rhs = self.as_integer(lhs), self.as_integer(rhs)
        if kind == "floordiv" and rhs.number == 0:
            raise MaskError("from_mask_mod: the mask_mod divides by zero")
        if kind == "shr" and rhs.number is not None and rhs.number > 31:
            rhs = self.integer(31)  # the sign is all that is left of 32 bits
        if kind in ("shl", "shr") and rhs.number is not None and not 0 <= rhs.number <= 31:
            raise MaskError(f"from_mask_mod: the mask_mod shifts by {rhs.number} bits; masks compute in 32 bits")
        if lhs.number is not None and rhs.number is not None:
            value = _OPERATIONS[kind][1](lhs.number, rhs.number)
            return self.truth(bool(value)) if truth else self.integer(value)
        if (same := _unchanged(kind, lhs, rhs, truth)) is not None:
            return same
        return self.node(kind, (lhs, rhs), truth=truth)

    def modulo(self, lhs: Node, rhs: Node) -> Node:
        """lhs - floor(lhs / rhs) * rhs."""
        return self.binary("sub", lhs, self.binary("mul", self.binary("floordiv", lhs, rhs), rhs))

    def compare(self, kind: str, lhs: Node, rhs: Node) -> Node:
        """A comparison of two integers or truth values."""
        if lhs.is_truth and rhs.is_truth and kind in ("eq", "ne"):
            differ = self.binary("xor", lhs, rhs)
            return differ if kind == "ne" else self.invert(differ)
        lhs, rhs = self.as_integer(lhs), self.as_integer(rhs)
        if lhs.number is not None and rhs.number is not None:
            return self.truth(_RELATIONS[kind](lhs.number, rhs.number))
        return self.node(kind, (lhs, rhs), truth=True)

    def invert(self, value: Node) -> Node:
        """Not the truth value, or the complement of an integer's bits."""
        return self.binary("xor", value, self.truth(True) if value.is_truth else self.integer(-1))

    def select(self, condition: Node, then: Node, other: Node) -> Node:
        """`then` where the condition holds, else `other`."""
        condition = self.as_truth(condition)
        if condition.number is not None:
            return then if condition.number else other
        if then.is_truth and other.is_truth:
            yes, no = self.binary("and", condition, then), self.binary("and", self.invert(condition), other)
            return self.binary("or", yes, no)
        then, other = self.as_integer(then), self.as_integer(other)
        return then if then is other else self.node("select", (condition, then, other))

    def as_integer(self, value: Node) -> Node:
        """1 for true and 0 for false."""
        if not value.is_truth:
            return value
        if value.number is not None:
            return self.integer(int(value.number))
        return self.node("select", (value, self.integer(1), self.integer(0)))

    def as_truth(self, value: Node) -> Node:
        """Whether an integer is not 0."""
        return value if value.is_truth else self.compare("ne", value, self.integer(0))

    # ---- what is known ----

    def is_non_negative(self, value: Node) -> bool:
        """Whether an integer is surely not negative."""
        match value.kind:
            case "q" | "kv" | "b" | "h":
                return True
            case "constant":
                return value.number is not None and value.number >= 0
            case "add" | "mul" | "floordiv" | "min" | "shr":
                return all(self.is_non_negative(operand) for operand in value.operands)
            case "max" | "and":
                return any(self.is_non_negative(operand) for operand in value.operands)
            case "select":
                return all(self.is_non_negative(operand) for operand in value.operands[1:])
            case "sub":
                return self._is_remainder(value)
            case "read":
                assert isinstance(value.payload, int)
                return self.holds_no_negative(value.payload)
            case _:
                return value.is_truth

    def holds_no_negative(self, table: int) -> bool:
        """Whether the entries of a table in host memory are not negative, which is relied on from now on."""
        known = self.tables[table].least_and_greatest()
        if known is None or known[0] < 0:
            return False
        self.trusted.add(table)
        return True

    def _is_remainder(self, value: Node) -> bool:
        """x - (x // c) * c with a positive c."""
        whole, product = value.operands
        if product.kind != "mul":
            return False
        quotient, divisor = product.operands
        same = quotient.kind == "floordiv" and quotient.operands == (whole, divisor)
        return same and divisor.number is not None and divisor.number > 0


def _unchanged(kind: str, lhs: Node, rhs: Node, truth: bool) -> Node | None:
    """The operand that an operation with a constant leaves as it is, or the constant that it always gives."""
    for one, other in ((lhs, rhs), (rhs, lhs)):
        if truth and one.number is not None and kind != "xor":
            return other if bool(one.number) == (kind == "and") else one
        if one.number == 0 and kind == "add" and not truth:
            return other
    if rhs.number is not None and not truth and (rhs.number, kind) in ((0, "sub"), (1, "mul"), (1, "floordiv")):
        return lhs
    return None


@dataclass
class Emitter:
    """Writes nodes into the body of a `mask.where`."""

    body: Block
    tables: list[SSAValue]
    """The parameters by number: tables in memory, or integers that were read already."""
    done: dict[Node, SSAValue] = field(default_factory=dict[Node, SSAValue])

    def value(self, root: Node) -> SSAValue:
        """The value of a node. Not recursive: a mask_mod may be long."""
        pending = [root]
        while pending:
            missing = [operand for operand in pending[-1].operands if operand not in self.done]
            if missing:
                pending += missing
                continue
            last = pending.pop()
            if last not in self.done:
                self.done[last] = self.write(last, [self.done[operand] for operand in last.operands])
        return self.done[root]

    def write(self, node: Node, operands: list[SSAValue]) -> SSAValue:
        """Writes one node, of which the operands are written."""
        match node.kind:
            case "q" | "kv":
                return self.body.args[node.kind == "kv"]
            case "constant":
                return self._constant(node)
            case "read":
                assert isinstance(node.payload, int)
                table = self.tables[node.payload]
                return table if table.type == i32 else self.add(dialect.ReadOp(table, operands[0]))
            case "select":
                return self.add(arith.SelectOp(*operands))
            case kind if kind in COMPARISONS:
                return self.add(arith.CmpiOp(operands[0], operands[1], kind))
            case kind:
                return self.add(_OPERATIONS[kind][0](*operands))  # pyright: ignore[reportCallIssue]

    def _constant(self, node: Node) -> SSAValue:
        assert node.number is not None
        op = xdsl_arith.ConstantOp(IntegerAttr(int(node.number), i1 if node.is_truth else i32))
        if not node.is_truth:
            op.result.name_hint = constant_name(node.number)
        return self.add(op)

    def add(self, op: Operation) -> SSAValue:
        """Appends an operation; its result."""
        self.body.add_op(op)
        return op.results[0]


__all__ = ["COMPARISONS", "FLOAT", "Emitter", "Graph", "Node"]
