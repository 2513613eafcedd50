"""What torch functions do to traced tensors of a score_mod: as to those of a mask_mod, and more for floats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from compilemask.language.from_mask_mod_graph import FLOAT, Graph, Node
from compilemask.language.from_mask_mod_rules import apply, elementwise
from compilemask.language.from_mask_mod_trace import Nodes, Tracer, as_array, refuse
from compilemask.language.from_mask_mod_types import is_float
from compilemask.score.from_score_mod_graph import UNARY, ScoreGraph


@dataclass(eq=False)
class ScoreTracer(Tracer):
    """What is known while a score_mod runs."""

    MADE_OF: ClassVar[str] = (
        "scores are made of arithmetic, comparisons, torch.where, reads of tensors and what docs/scores.md lists"
    )
    graph: ScoreGraph = field(default_factory=ScoreGraph)  # pyright: ignore[reportIncompatibleVariableOverride]

    def elements(self, value: Any) -> Nodes:
        """The nodes of a traced or captured tensor or a number."""
        if is_float(value):
            return as_array(self.graph.number(float(value)))
        return super().elements(value)

    def gather(self, tensor: torch.Tensor, index: Sequence[Node]) -> Node:
        """One entry of a captured tensor."""
        if not tensor.is_floating_point():
            return super().gather(tensor, index)
        number, position = self.place(tensor, index)
        return self.graph.node(FLOAT + "read", (position,), number)

    def _constants(self, tensor: torch.Tensor) -> Nodes:
        if not tensor.is_floating_point():
            return super()._constants(tensor)
        result = np.empty(tuple(tensor.shape), dtype=object)
        for place in np.ndindex(result.shape):
            result[place] = self.graph.number(float(tensor[place]))
        return result


def _divide(graph: Graph, a: Node, b: Node) -> Node:
    return graph.binary("div", a, b)


def _absolute(graph: ScoreGraph, x: Node) -> Node:
    return graph.unary("abs", x)


def _sign(graph: ScoreGraph, x: Node) -> Node:
    zero = graph.number(0.0)
    negative = graph.select(graph.compare("slt", x, zero), graph.number(-1.0), zero)
    return graph.select(graph.compare("sgt", x, zero), graph.number(1.0), negative)


def _sigmoid(graph: ScoreGraph, x: Node) -> Node:
    half = graph.number(0.5)
    return graph.binary("add", half, graph.binary("mul", half, graph.unary("tanh", graph.binary("mul", half, x))))


_ONE: dict[str, Callable[[ScoreGraph, Node], Node]] = {
    **{kind: (lambda graph, x, kind=kind: graph.unary(kind, x)) for kind in UNARY if kind != "abs"},
    "sigmoid": _sigmoid,
    "silu": lambda graph, x: graph.binary("mul", x, _sigmoid(graph, x)),
    "relu": lambda graph, x: graph.binary("max", x, graph.integer(0)),
    "reciprocal": lambda graph, x: graph.binary("div", graph.integer(1), x),
    "square": lambda graph, x: graph.binary("mul", x, x),
}
_OF_FLOATS = {"abs": _absolute, "absolute": _absolute, "sign": _sign}
"""What is something else for integers."""
_FLOATS = {"float", "double", "half", "bfloat16"}
_QUOTIENTS = {"div", "divide", "truediv", "true_divide"}


def apply_score(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a torch function of which an argument is traced."""
    full = getattr(func, "__name__", "")
    name = full.strip("_")
    if full.endswith("_") and not full.endswith("__"):
        return apply(tracer, func, args, kwargs)
    if name in _ONE and len(args) == 1 and not {key for key in kwargs if key != "inplace" or kwargs[key]}:
        return elementwise(tracer, _ONE[name], args[0])
    if name in _QUOTIENTS and kwargs.get("rounding_mode") is None and len(args) == 2:
        return elementwise(tracer, _divide, *args)
    if name in ("rtruediv", "rdiv"):
        return elementwise(tracer, _divide, *reversed(args))
    if name in _OF_FLOATS and tracer.elements(args[0]).flat[0].is_float:
        return elementwise(tracer, _OF_FLOATS[name], args[0])
    if name in _FLOATS or (name in ("to", "type", "type_as") and _is_to_float((*args[1:], *kwargs.values()))):
        return elementwise(tracer, ScoreGraph.as_float, args[0])
    if name in ("int", "long") and tracer.elements(args[0]).flat[0].is_float:
        refuse("converts a float to an integer; use torch.where and comparisons")
    return apply(tracer, func, args, kwargs)


def _is_to_float(arguments: Sequence[Any]) -> bool:
    """Whether the arguments of a conversion name a float type, which is float32 here whatever its width."""
    types = [x.dtype if isinstance(x, torch.Tensor) else x for x in arguments]
    return any(isinstance(x, torch.dtype) and x.is_floating_point for x in types)


__all__ = ["ScoreTracer", "apply_score"]
