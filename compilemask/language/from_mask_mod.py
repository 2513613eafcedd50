"""Masks from FlexAttention's mask_mods, unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, i32, i64
from xdsl.ir import Block, Region, SSAValue

from compilemask.dialects import mask as dialect
from compilemask.errors import MaskError
from compilemask.language.builder import Builder
from compilemask.language.extent import Extent, Room
from compilemask.language.from_mask_mod_graph import Emitter, Graph, Node
from compilemask.language.mask import Mask
from compilemask.language.user_code import SideEffects, captured, located
from compilemask.language.values import Value

if TYPE_CHECKING:
    import torch

    MaskMod = Callable[..., Any]
    """FlexAttention's `mask_mod(b, h, q_idx, kv_idx)`."""


@dataclass(frozen=True, eq=False, repr=False)
class _FromMaskMod(Mask):
    graph: Graph
    visible: Node
    names: tuple[str, ...]
    ascending: frozenset[int]
    rooms: dict[tuple[int, str], int | None]
    axes: tuple[tuple[str, Value], ...]
    label: str

    @property
    def name(self) -> str:
        return self.label

    def extents(self) -> tuple[Extent, ...]:
        found: list[Extent] = []
        for number in sorted(_reads(self.visible)):
            name, values = self.names[number], (self.graph.tables[number],)
            what = f"{self.label}: {name}"
            if number in self.ascending:
                found.append(Extent(what, values, _checked_ascending(name)))
            if number in self.graph.trusted:
                found.append(Extent(what, values, _checked_not_negative(name)))
            found += [
                Room(what, values, partial(entries_of, size), keys_only=axis == "kv")
                for (table, axis), size in self.rooms.items()
                if table == number
            ]
        return tuple(found)

    def emit(self, builder: Builder) -> SSAValue:
        used = _reads(self.visible)
        tables: list[Any] = [None] * len(self.names)
        for number, value in enumerate(self.graph.tables):
            if number in used:
                make = builder.scalar if value.is_scalar else builder.table
                tables[number] = make(self.names[number], value)
        body = Block(arg_types=[i32, i32])
        for argument, hint in zip(body.args, ("q", "kv"), strict=True):
            argument.name_hint = hint
        emitter = Emitter(body, tables)
        for name, value in self.axes:
            emitter.done[self.graph.node(name)] = builder.scalar({"b": "batch", "h": "head"}[name], value)
        body.add_op(dialect.YieldOp(emitter.value(self.visible)))
        op = dialect.WhereOp(Region(body))
        listed = {tables[number].index for number in self.ascending}
        if listed:
            op.attributes["ascending"] = ArrayAttr([IntegerAttr(number, i64) for number in sorted(listed)])
        return builder.add(op, "visible")


def _checked_ascending(name: str) -> Callable[[torch.Tensor], int]:
    """The check, when a mask is used, that a table in host memory still ascends: it may have been written to."""

    def check(table: torch.Tensor) -> int:
        if not _ascends(table):
            raise MaskError(f"{name} no longer ascends, as it did when from_mask_mod saw it; make the mask again")
        return 0

    return check


def _checked_not_negative(name: str) -> Callable[[torch.Tensor], int]:
    """The check, when a mask is used, that a table of indices in host memory still counts from the begin."""

    def check(table: torch.Tensor) -> int:
        if bool((table < 0).any()):
            raise MaskError(
                f"{name} holds negative indices, and did not when from_mask_mod saw it; make the mask again"
            )
        return 0

    return check


def entries_of(size: int | None, table: torch.Tensor) -> int:
    """How many entries a table has along an axis: so many, or all."""
    return int(table.shape[-1]) if size is None else size


def _ascends(table: torch.Tensor) -> bool:
    return bool((table[..., 1:] >= table[..., :-1]).all())


def from_mask_mod(
    mask_mod: MaskMod,
    B: int | None = None,
    H: int | None = None,
    *,
    sorted_tables: Iterable[str | torch.Tensor] = (),
) -> Mask:
    """A mask from a FlexAttention `mask_mod(b, h, q_idx, kv_idx)`, which stays as it is.

    The function is called once, on symbols, through whatever helpers it uses (`and_masks`, closures, ...). It may do
    integer and logical arithmetic with Python's operators and torch functions, `torch.where`, and read captured tensors
    by index. Captured tensors become parameters of the mask: they are not copied, and what is written to them later
    counts. What the function computes from captured tensors alone is computed once, here. Python integers become
    constants of the mask; a captured tensor of shape [] is a run-time integer.

    Comparisons are solved for the key where that is possible, and then a row sees a few intervals of keys. Tables of
    ids that ascend, as those of packed documents do, are solved too: in host memory they are looked at, in device
    memory `sorted_tables` says so, because a look would wait for the device. Everything else works through the
    predicate.

    Args:
        mask_mod: the function.
        B, H: numbers of batches and of query heads. Needed only if the function computes with b or h; tables that it
            indexes by them say how many there are.
        sorted_tables: captured tensors in device memory whose entries ascend (along the last dimension), by the name of
            the variable that holds them or themselves. Wrong promises give wrong masks.

    Raises:
        MaskError: the function cannot be traced (the message says what it did, on which line, and what to write
            instead), has side effects, a captured tensor holds no integers or truth values, `sorted_tables` names none
            of them, or B or H is no number of batches or heads; where the mask is used, if it reads a table at q_idx or
            kv_idx and there are more queries or keys than entries, or if a table in host memory that ascended, or held
            no negative index, does so no more.
    """
    from compilemask.language.from_mask_mod_rules import apply
    from compilemask.language.from_mask_mod_trace import HINT, Traced, TraceMode, Tracer, as_array, refuse

    if not callable(mask_mod):
        raise MaskError(f"from_mask_mod takes a mask_mod(b, h, q_idx, kv_idx), got {type(mask_mod).__name__}")
    tracer = Tracer(B, H)
    nodes = (*tracer.axes(), tracer.graph.node("q"), tracer.graph.node("kv"))
    effects = SideEffects(mask_mod)
    try:
        with TraceMode(tracer, apply):
            elements = tracer.elements(mask_mod(*(Traced.of(as_array(node)) for node in nodes)))
        if elements.size != 1:
            refuse(f"returns a tensor of shape {list(elements.shape)}, expected []")
    except Exception as error:
        raise located(error, mask_mod, HINT) from error
    effects.check(HINT)
    visible = tracer.graph.as_truth(elements.item())
    names = captured_names(mask_mod, tracer.sources)
    ascending = _ascending(tracer.graph.tables, tracer.sources, names, _reads(visible), list(sorted_tables))
    sizes = (("b", tracer.batches), ("h", tracer.heads))
    axes = tuple((name, _axis_value(name, size)) for name, size in sizes if _uses(visible, name))
    return _FromMaskMod(tracer.graph, visible, names, ascending, tracer.rooms, axes, label_of(mask_mod, "mask_mod"))


# ---- what the graph uses ----


def walk(root: Node) -> list[Node]:
    """All nodes that a value is computed from, and itself."""
    seen: dict[Node, None] = {}
    pending = [root]
    while pending:
        node = pending.pop()
        if node not in seen:
            seen[node] = None
            pending.extend(node.operands)
    return list(seen)


def _reads(root: Node) -> set[int]:
    return {node.payload for node in walk(root) if node.kind == "read" and isinstance(node.payload, int)}


def _uses(root: Node, axis: str) -> bool:
    return any(node.kind == axis for node in walk(root))


def _axis_value(name: str, size: int | None) -> Value:
    import torch

    if size is None:
        argument, what = {"b": ("B", "batch"), "h": ("H", "head")}[name]
        raise MaskError(f"from_mask_mod: the mask_mod computes with the {what} index; pass {argument}=")
    numbers = torch.arange(size, dtype=torch.int32)
    return Value(numbers.view(-1, 1, 1) if name == "b" else numbers.view(1, -1, 1), numbers, True)


def _ascending(
    tables: list[Value],
    sources: list[torch.Tensor],
    names: tuple[str, ...],
    used: set[int],
    promised: list[str | torch.Tensor],
) -> frozenset[int]:
    """The tables whose entries ascend: those in host memory that do, and those that were promised to."""
    found: set[int] = set()
    for number in used:
        table = tables[number].data
        if tables[number].is_scalar or isinstance(table, int):
            continue
        is_promised = any(_means(item, sources[number], names[number]) for item in promised)
        on_host = table.device.type == "cpu"
        if is_promised and on_host and not _ascends(table):
            raise MaskError(f"from_mask_mod: sorted_tables names {names[number]}, which does not ascend")
        if is_promised or (on_host and _ascends(table)):
            found.add(number)
    for item in promised:
        if not any(_means(item, source, name) for source, name in zip(sources, names, strict=True)):
            shown = item if isinstance(item, str) else f"a tensor of shape {list(item.shape)}"
            raise MaskError(f"from_mask_mod: sorted_tables has {shown}, but the mask_mod reads {', '.join(names)}")
    return frozenset(found)


def _means(item: str | torch.Tensor, source: torch.Tensor, name: str) -> bool:
    return item == name if isinstance(item, str) else item is source


# ---- names ----


def label_of(function: Callable[..., Any], default: str) -> str:
    """What the IR calls a function: its name, if that is one."""
    label = getattr(function, "__name__", "")
    return label if label.isidentifier() and label.isascii() else default


def captured_names(function: Callable[..., Any], sources: list[torch.Tensor]) -> tuple[str, ...]:
    """What the variables that hold the captured tensors are called."""
    known: dict[int, str] = {}
    seen: set[int] = set()
    pending: list[Any] = [function]
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        for name, content in captured(value):
            if hasattr(content, "data_ptr"):
                known.setdefault(id(content), name)
            elif callable(content) or isinstance(content, tuple | list):
                pending.append(content)
    return tuple(known.get(id(source), "table") for source in sources)


__all__ = ["captured_names", "entries_of", "from_mask_mod", "label_of", "walk"]
