"""The graph that a score_mod is traced into: that of a mask_mod, with floats; and how it becomes a score region."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects import math
from xdsl.dialects.builtin import f32
from xdsl.ir import Operation, SSAValue

from compilemask.dialects import arith
from compilemask.language.from_mask_mod_graph import FLOAT, Emitter, Graph, Node
from compilemask.language.from_mask_mod_trace import refuse
from compilemask.score.builder import ScoreBuilder

BINARY: dict[str, Callable[[SSAValue, SSAValue], Operation]] = {
    "add": xdsl_arith.AddfOp,
    "sub": xdsl_arith.SubfOp,
    "mul": xdsl_arith.MulfOp,
    "div": xdsl_arith.DivfOp,
    "min": xdsl_arith.MinimumfOp,
    "max": xdsl_arith.MaximumfOp,
}
UNARY: dict[str, Callable[[SSAValue], Operation]] = {
    "exp": math.ExpOp,
    "exp2": math.Exp2Op,
    "log": math.LogOp,
    "log2": math.Log2Op,
    "sqrt": math.SqrtOp,
    "rsqrt": math.RsqrtOp,
    "tanh": math.TanhOp,
    "sin": math.SinOp,
    "cos": math.CosOp,
    "floor": math.FloorOp,
    "ceil": math.CeilOp,
    "abs": math.AbsFOp,
}
RELATIONS = {"eq": "oeq", "ne": "une", "slt": "olt", "sle": "ole", "sgt": "ogt", "sge": "oge"}


class ScoreGraph(Graph):
    """Makes nodes of integers, truth values and floats, which are all float32; integers beside floats become floats."""

    @property
    def score(self) -> Node:
        """The score of the pair."""
        return self.node(FLOAT + "score")

    def number(self, value: float) -> Node:
        """A constant float."""
        return self.node(FLOAT + "constant", payload=value)

    def unary(self, kind: str, value: Node) -> Node:
        """A function of a float."""
        return self.node(FLOAT + kind, (self.as_float(value),))

    def holds_no_negative(self, table: int) -> bool:
        """Never relied on: nobody would look again when attention runs, and scores gain nothing by it."""
        return False

    def as_float(self, value: Node) -> Node:
        """A number as a float."""
        if value.is_float:
            return value
        value = self.as_integer(value)
        return self.number(float(value.number)) if value.number is not None else self.node(FLOAT + "cast", (value,))

    def as_integer(self, value: Node) -> Node:
        """As it is, or 1 for true and 0 for false; floats are no integers."""
        if value.is_float:
            refuse("uses a float where an integer is needed")
        return super().as_integer(value)

    def as_truth(self, value: Node) -> Node:
        """Whether a number is not 0."""
        return self.compare("ne", value, self.integer(0)) if value.is_float else super().as_truth(value)

    def binary(self, kind: str, lhs: Node, rhs: Node) -> Node:
        """An operation on two numbers or truth values."""
        if kind != "div" and not lhs.is_float and not rhs.is_float:
            return super().binary(kind, lhs, rhs)
        if kind not in BINARY:
            refuse(f"computes {kind} of floats, which is not supported")
        return self.node(FLOAT + kind, (self.as_float(lhs), self.as_float(rhs)))

    def compare(self, kind: str, lhs: Node, rhs: Node) -> Node:
        """A comparison of two numbers or truth values."""
        if not lhs.is_float and not rhs.is_float:
            return super().compare(kind, lhs, rhs)
        return self.node("compare floats", (self.as_float(lhs), self.as_float(rhs)), RELATIONS[kind], truth=True)

    def select(self, condition: Node, then: Node, other: Node) -> Node:
        """`then` where the condition holds, else `other`."""
        if not then.is_float and not other.is_float:
            return super().select(condition, then, other)
        condition, then, other = self.as_truth(condition), self.as_float(then), self.as_float(other)
        if condition.number is not None:
            return then if condition.number else other
        return self.node(FLOAT + "select", (condition, then, other))


@dataclass
class ScoreEmitter(Emitter):
    """Writes nodes into the body of a score region."""

    builder: ScoreBuilder | None = None

    def write(self, node: Node, operands: list[SSAValue]) -> SSAValue:
        """Writes one node, of which the operands are written."""
        builder = self.builder
        assert builder is not None
        kind = node.kind.removeprefix(FLOAT)
        if kind in ("b", "h", "q", "kv"):
            return dict(zip(("b", "h", "q", "kv"), builder.pair, strict=True))[kind]
        if kind == "read":
            assert isinstance(node.payload, int)
            return builder.read(self.tables[node.payload], operands[0])
        if kind == "compare floats":
            assert isinstance(node.payload, str)
            return builder.add(arith.CmpfOp(operands[0], operands[1], node.payload))
        if not node.is_float:
            return super().write(node, operands)
        if kind == "constant":
            assert isinstance(node.payload, float)
            return builder.constant(node.payload)
        if kind == "cast":
            return builder.add(arith.SIToFPOp(operands[0], f32))
        if kind == "select":
            return builder.add(arith.SelectOp(*operands))
        return builder.add(BINARY[kind](*operands) if kind in BINARY else UNARY[kind](*operands))


__all__ = ["UNARY", "ScoreEmitter", "ScoreGraph"]
