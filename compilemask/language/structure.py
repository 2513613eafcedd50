"""The structure of a mask without its values: masks of one structure share their IR, however often they are made."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp

from compilemask.language.narrowing import is_tuple
from compilemask.language.values import Value

if TYPE_CHECKING:
    from compilemask.language.mask import Mask

_LARGEST = 256
"""Structures whose IR is kept."""


@dataclass(frozen=True)
class Template:
    """The IR of a structure; `parameters` are names and positions among the mask's values."""

    module: ModuleOp
    text: str
    parameters: tuple[tuple[str, int], ...]


_templates: OrderedDict[tuple[object, ...], Template] = OrderedDict()


def structure_of(mask: Mask) -> tuple[tuple[object, ...], list[Value]] | None:
    """What a mask's IR depends on, and its values; None if it holds what cannot be compared, such as a predicate."""
    values: list[Value] = []
    tables: dict[tuple[int, bool], int] = {}
    numbers: dict[int, int] = {}
    parts: list[object] = [mask.name]
    pending = [mask]
    while pending:
        last = pending.pop()
        if id(last) in numbers:
            parts.append(numbers[id(last)])
            continue
        numbers[id(last)] = len(numbers)
        parts.append(type(last))
        pending.extend(reversed(last.operands))
        if (is_dataclass(last) or not last.operands) and not _describe(last, parts, values, tables):
            return None
    return tuple(parts), values


def _describe(leaf: object, parts: list[object], values: list[Value], tables: dict[tuple[int, bool], int]) -> bool:
    """Appends the fields of a mask but its operands, of values only their kind; whether all are known kinds."""
    if not is_dataclass(leaf):
        return False
    operands = {id(operand) for operand in getattr(leaf, "operands", ())}
    for field in fields(leaf):
        content = getattr(leaf, field.name)
        for item in content if is_tuple(content) else (content,):
            if isinstance(item, Value):
                values.append(item)
                place = item.identity
                parts.append(tables.setdefault(place, len(tables)) if item.is_table else "i32")
            elif item is None or isinstance(item, int | str):
                parts.append((field.name, item))
            elif id(item) not in operands and not _describe(item, parts, values, tables):
                return False
    return True


def known_template(key: tuple[object, ...]) -> Template | None:
    """The IR of a structure that was met before."""
    if (template := _templates.get(key)) is not None:
        _templates.move_to_end(key)
    return template


def keep_template(key: tuple[object, ...], template: Template) -> None:
    """Keeps the IR of a structure; the one that was not used for longest goes."""
    _templates[key] = template
    while len(_templates) > _LARGEST:
        _templates.popitem(last=False)


__all__ = ["Template", "keep_template", "known_template", "structure_of"]
