"""Traces a mask_mod: runs it once on tensors whose elements are graph nodes.

A `TorchFunctionMode` sees every torch function that the mask_mod calls, whatever helpers it goes through. Functions of
traced tensors build nodes; others run as they are, so views of captured tensors stay views.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from compilemask.errors import MaskError
from compilemask.language.from_mask_mod_graph import Graph, Node
from compilemask.language.from_mask_mod_types import NARROW, is_integer, is_truth, kept
from compilemask.language.narrowing import is_listed
from compilemask.language.values import Value, integer

MOST_ELEMENTS = 256
"""Elements of the largest tensor that may be computed for one pair (q, kv)."""
Nodes = NDArray[Any]
"""An array of `Node`."""
_INTEGERS = (*NARROW, torch.int32, torch.int64)
HINT = "from_mask_mod: the mask_mod"
"""How errors name the function."""
WITH_INTEGERS = "write the comparison with integers, as in 2 * kv_idx < q_idx for kv_idx < 0.5 * q_idx"
"""What to write instead of floats."""


class Traced(torch.Tensor):
    """A small tensor of nodes. As a torch tensor it has a shape and a dtype, and no data."""

    _elements: Nodes | None
    captured: torch.Tensor | None
    """The captured tensor that this one is a part of: `captured[position]`."""
    position: list[Node]
    _read: Callable[[], Nodes]

    @staticmethod
    def of(elements: Nodes, dtype: torch.dtype | None = None) -> Traced:
        """The tensor of an array of nodes; its type follows from them if not given."""
        if elements.size > MOST_ELEMENTS:
            refuse(f"computes a tensor of {elements.size} elements for each pair; at most {MOST_ELEMENTS}")
        shell = torch.empty(elements.shape, dtype=dtype or _dtype(elements), device="meta")
        result = torch.Tensor._make_subclass(Traced, shell)
        result._elements, result.captured = elements, None
        return result

    @staticmethod
    def part(captured: torch.Tensor, index: list[Node], read: Callable[[], Nodes]) -> Traced:
        """`captured[index]`, of which entries are read when they are asked for."""
        shell = torch.empty(captured.shape[len(index) :], dtype=captured.dtype, device="meta")
        result = torch.Tensor._make_subclass(Traced, shell)
        result._elements, result.captured, result.position, result._read = None, captured, index, read
        return result

    @property
    def elements(self) -> Nodes:
        """The nodes, in an array of this shape."""
        if self._elements is None:
            self._elements = self._read()
        return self._elements

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


def _dtype(elements: Nodes) -> torch.dtype:
    if any(node.is_float for node in elements.flat):
        return torch.float32
    return torch.bool if all(node.is_truth for node in elements.flat) else torch.int64


def as_array(node: Node) -> Nodes:
    """An array of shape [] that holds one node."""
    result = np.empty((), dtype=object)
    result[()] = node
    return result


@dataclass(frozen=True, eq=False)
class _Table:
    number: int
    tensor: torch.Tensor
    steps: dict[int, int]
    """The axes that are not those of b and h, and how many entries each strides over."""


@dataclass(eq=False)
class Tracer:
    """What is known while a mask_mod runs."""

    MADE_OF: ClassVar[str] = "masks are made of integer arithmetic, comparisons, torch.where and reads of tensors"
    batches: int | None
    heads: int | None
    graph: Graph = field(default_factory=Graph)
    sources: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    """The captured tensor that each table of the graph is a view of."""
    created: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    """Tensors that the mask_mod makes from numbers: constants."""
    rooms: dict[tuple[int, str], int | None] = field(default_factory=dict[tuple[int, str], int | None])
    """Tables that are read at "q" or at "kv" itself: for how many there are entries, None if for all of the table's."""
    _tables: dict[tuple[int, int | None, int | None, int], _Table] = field(
        default_factory=dict[tuple[int, int | None, int | None, int], "_Table"]
    )

    def __post_init__(self) -> None:
        self.batches, self.heads = (
            None if size is None else max(integer(what, size, 0), 1)  # of no batches, one says what they would be
            for what, size in (("B, the number of batches,", self.batches), ("H, the number of heads,", self.heads))
        )

    def axes(self) -> tuple[Node, Node]:
        """The indices of the batch and the head."""
        graph = self.graph
        b, h = (
            graph.integer(0) if size == 1 else graph.node(n) for n, size in (("b", self.batches), ("h", self.heads))
        )
        return b, h

    # ---- values ----

    def elements(self, value: Any) -> Nodes:
        """The nodes of a traced or captured tensor or a number."""
        if isinstance(value, Traced):
            return value.elements
        if isinstance(value, torch.Tensor):
            return self._of_tensor(value)
        if is_truth(value):
            return as_array(self.graph.truth(bool(value)))
        if is_integer(value) or (isinstance(value, float) and value.is_integer()):
            return as_array(self.graph.integer(int(value)))
        hint = f"; {WITH_INTEGERS}" if isinstance(value, float) else ""
        refuse(f"computes with {_shown(value)}; expected integers, truth values and tensors of them{hint}")

    def _of_tensor(self, tensor: torch.Tensor) -> Nodes:
        if any(tensor is constant for constant in self.created):
            return self._constants(tensor)
        if tensor.numel() > MOST_ELEMENTS:
            refuse(f"uses a tensor of shape {list(tensor.shape)} without an index")
        result = np.empty(tuple(tensor.shape), dtype=object)
        for place in np.ndindex(result.shape):
            result[place] = self.gather(tensor, [self.graph.integer(i) for i in place])
        return result

    def _constants(self, tensor: torch.Tensor) -> Nodes:
        if tensor.dtype != torch.bool and tensor.dtype not in _INTEGERS:
            refuse(f"makes a tensor of {tensor.dtype}; expected integers or truth values; {WITH_INTEGERS}")
        values = np.asarray(tensor.cpu().numpy())
        result = np.empty(values.shape, dtype=object)
        for place in np.ndindex(values.shape):
            result[place] = self.elements(values[place]).item()
        return result

    # ---- captured tensors ----

    def gather(self, tensor: torch.Tensor, index: Sequence[Node]) -> Node:
        """One entry of a captured tensor; the indices of its dimensions that are b and h choose the mask's own part."""
        if tensor.dtype != torch.bool and tensor.dtype not in _INTEGERS:
            refuse(
                f"reads a tensor of {tensor.dtype}; expected integers or truth values: compare or convert the tensor "
                "once, before it is captured"
            )
        entry = self.graph.read(*self.place(tensor, index))
        return self.graph.as_truth(entry) if tensor.dtype == torch.bool else entry

    def place(self, tensor: torch.Tensor, index: Sequence[Node]) -> tuple[int, Node]:
        """Which table of the graph an entry is in, and where."""
        axes = {node.kind: axis for axis, node in reversed(list(enumerate(index))) if node.kind in ("b", "h")}
        table = self._table(tensor, axes.get("b"), axes.get("h"))
        position = self.graph.integer(0)
        for axis, steps in table.steps.items():
            size, node = int(tensor.shape[axis]), index[axis]
            scaled = self.graph.binary("mul", self._wrapped(node, size), self.graph.integer(steps))
            position = self.graph.binary("add", position, scaled)
            if node.kind in ("q", "kv"):
                self._needs_room(table, node.kind, size)
        return table.number, position

    def _needs_room(self, table: _Table, kind: str, size: int) -> None:
        known = self.rooms.setdefault((table.number, kind), None if len(table.steps) == 1 else size)
        if known is not None:
            self.rooms[table.number, kind] = min(known, size)

    def _wrapped(self, node: Node, size: int) -> Node:
        """The index; negative ones count from the end."""
        graph, node = self.graph, self.graph.as_integer(node)
        if graph.is_non_negative(node):
            return node
        behind = graph.binary("add", node, graph.integer(size))
        return graph.select(graph.compare("slt", node, graph.integer(0)), behind, node)

    def _table(self, tensor: torch.Tensor, batch_axis: int | None, head_axis: int | None) -> _Table:
        key = (id(tensor), batch_axis, head_axis, tensor.data_ptr() if tensor.device.type != "meta" else 0)
        if key not in self._tables:
            view, steps = self._view(tensor, batch_axis, head_axis)
            is_plain = tensor.dim() == 1 and batch_axis is None and head_axis is None
            source = tensor if (is_plain and view.dtype == tensor.dtype) or tensor.dim() == 0 else view
            self.graph.tables.append(Value(view, source, not steps))
            self.sources.append(tensor)
            self._tables[key] = _Table(len(self.sources) - 1, tensor, steps)
        return self._tables[key]

    def _view(
        self, tensor: torch.Tensor, batch_axis: int | None, head_axis: int | None
    ) -> tuple[torch.Tensor, dict[int, int]]:
        """[B or 1, H or 1, entries], never a copy, and how many entries each other axis of the tensor strides over."""
        if not tensor.numel():
            refuse(f"reads a tensor of shape {list(tensor.shape)}, which has no entries")
        if tensor.dtype == torch.bool:
            tensor = tensor.view(torch.uint8)
        sizes, strides = list(tensor.shape), tensor.stride()
        outer: list[tuple[int, int]] = []
        for axis, wanted, what in ((batch_axis, self.batches, "batches"), (head_axis, self.heads, "heads")):
            if axis is not None and wanted is not None and sizes[axis] < wanted:
                refuse(f"reads a tensor for {sizes[axis]} {what}, expected {wanted}")
            outer.append((1, 0) if axis is None else (wanted or sizes[axis], strides[axis]))
        rest = [axis for axis in range(tensor.dim()) if axis not in (batch_axis, head_axis)]
        unit = gcd(*(strides[axis] for axis in rest if sizes[axis] > 1)) or 1
        steps = {axis: strides[axis] // unit for axis in rest}
        entries = 1 + sum((sizes[axis] - 1) * step for axis, step in steps.items())
        shape, step = zip(*outer, (entries, unit), strict=True)
        return tensor.as_strided(shape, step), steps

    def index(self, tensor: torch.Tensor, index: Any, before: Sequence[Node] = ()) -> Traced:
        """tensor[before][index] of a captured tensor; the last dimensions may be left out or be `:`."""
        items: list[Any] = [*index] if is_listed(index) else [index]
        while items and (items[-1] is Ellipsis or (isinstance(items[-1], slice) and items[-1] == slice(None))):
            items.pop()
        if len(before) + len(items) > tensor.dim() or any(item is None or isinstance(item, slice) for item in items):
            refuse(f"indexes a tensor of shape {list(tensor.shape)} in a way that is not supported")
        arrays = np.broadcast_arrays(*[self.elements(item) for item in items])
        if arrays[0].ndim == 0 and len(before) + len(items) < tensor.dim():
            known = [*before, *(array.item() for array in arrays)]
            return Traced.part(tensor, known, lambda: self._entries(tensor, known, []))
        return Traced.of(self._entries(tensor, list(before), list(arrays)), kept(tensor.dtype))

    def _entries(self, tensor: torch.Tensor, before: list[Node], arrays: list[Nodes]) -> Nodes:
        """All of tensor[before][arrays]."""
        shape = arrays[0].shape if arrays else ()
        result = np.empty((*shape, *tensor.shape[len(before) + len(arrays) :]), dtype=object)
        if result.size > MOST_ELEMENTS:
            refuse(f"reads {result.size} entries of a tensor for each pair, at most {MOST_ELEMENTS}")
        for place in np.ndindex(result.shape):
            head: list[Node] = [array[place[: len(shape)]] for array in arrays]  # type: ignore[misc]
            tail = [self.graph.integer(i) for i in place[len(shape) :]]
            result[place] = self.gather(tensor, [*before, *head, *tail])
        return result


Rules = Callable[[Tracer, Any, tuple[Any, ...], dict[str, Any]], Any]
"""What a torch function does to its arguments."""


class TraceMode(TorchFunctionMode):
    """Sends torch functions of traced tensors to the rules of from_mask_mod_rules."""

    def __init__(self, tracer: Tracer, rules: Rules) -> None:
        super().__init__()
        self.tracer, self.rules = tracer, rules

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _holds_traced((*args, *kwargs.values())):
            return self.rules(self.tracer, func, args, kwargs)
        if _RANDOM.fullmatch(getattr(func, "__name__", "")):
            refuse(f"calls {func.__name__}, a random number generator; draw the numbers once, into a captured tensor")
        result = func(*args, **kwargs)
        if getattr(func, "__name__", "") in _FACTORIES and isinstance(result, torch.Tensor):
            self.tracer.created.append(result)
        return result


_FACTORIES = ("tensor", "as_tensor", "scalar_tensor", "ones", "zeros", "full", "arange")
_RANDOM = re.compile(
    r"(rand|randn|randint|randperm)(_like)?|normal|poisson|bernoulli|multinomial|(feature_)?(alpha_)?dropout\d*|"
    r"(normal|uniform|random|bernoulli|exponential|geometric|cauchy|log_normal)_"
)
"""What draws random numbers."""


def _holds_traced(values: Any) -> bool:
    return any(
        isinstance(value, Traced) or (isinstance(value, tuple | list) and _holds_traced(value)) for value in values
    )


def refuse(what: str) -> NoReturn:
    """Raises `MaskError`: the mask_mod does something that cannot be traced."""
    raise MaskError(f"{HINT} {what}")


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:37] + '...'} ({type(value).__name__})"


__all__ = ["HINT", "WITH_INTEGERS", "TraceMode", "Traced", "Tracer", "as_array", "refuse"]
