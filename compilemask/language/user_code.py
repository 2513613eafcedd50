"""Where in a user's function something went wrong, and what the function changes outside itself."""

from __future__ import annotations

import dis
import linecache
import random
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from inspect import getattr_static
from types import CellType, CodeType, FunctionType, ModuleType, TracebackType
from typing import Any, cast
from zlib import crc32

from compilemask.errors import MaskError
from compilemask.language.narrowing import is_listed

_NOT_THE_USERS = ("compilemask", "torch", "numpy")
"""Packages through which a call passes on its way from the user's function."""
_LIBRARIES = (*_NOT_THE_USERS, "builtins", *sys.stdlib_module_names)
"""Packages whose objects are not looked into."""
_LARGEST_ARRAY = 2**20
"""Bytes of an array that is compared; data sets are not."""
_CONTAINERS = (list, tuple, set, frozenset, deque)


def located(error: Exception, function: Callable[..., Any], what: str) -> MaskError:
    """The error with the line of the user's code that it comes from: file, line and text.

    `what` names the function in the message; it stands in front of errors that are not ours.
    """
    place = _line_of(error.__traceback__) or _definition_of(function)
    text = str(error) if isinstance(error, MaskError) else f"{what} cannot be traced: {type(error).__name__}: {error}"
    return MaskError(f"{text} (at {place})" if place else text)


def _line_of(traceback: TracebackType | None) -> str | None:
    """The innermost line that is the user's."""
    found: str | None = None
    while traceback is not None:
        package = str(traceback.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _NOT_THE_USERS:
            found = _place(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def _definition_of(function: Callable[..., Any]) -> str | None:
    code = code_of(function)
    return None if code is None else _place(code.co_filename, code.co_firstlineno)


def _place(file: str, line: int) -> str:
    text = linecache.getline(file, line).strip()
    return f"{file}:{line}: {text}" if text else f"{file}:{line}"


# ---- what a function captures and changes ----


def function_of(value: Any) -> FunctionType | None:
    """The Python function of a callable: itself, or that of a partial, a method or an object with `__call__`."""
    if not isinstance(value, FunctionType | type):
        value = getattr(value, "func", getattr(value, "__func__", None)) or _call_of(cast("Any", type(value)))
    return value if isinstance(value, FunctionType) else None


def _call_of(kind: type) -> Any:
    """What calls an object of the user's; operators of libraries are not looked into."""
    return None if kind.__module__.partition(".")[0] in _NOT_THE_USERS else getattr_static(kind, "__call__", None)


def code_of(value: Any) -> CodeType | None:
    """The code of a callable, if it is Python's."""
    function = function_of(value)
    return None if function is None else function.__code__


def captured(value: Any) -> list[tuple[str, Any]]:
    """Names and contents of what a callable holds or mentions: closure, globals, defaults, bound arguments, fields."""
    if is_listed(value):
        return [("table", item) for item in value]
    function = function_of(value)
    found: list[tuple[str, Any]] = []
    if function is not None:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        found += [(name, cell.cell_contents) for name, cell in cells if _is_filled(cell)]
        mentioned = [name for code in _codes(function.__code__) for name in code.co_names]
        found += [(name, function.__globals__.get(name)) for name in mentioned]
        found += [("table", item) for item in function.__defaults__ or ()]
    if hasattr(value, "func"):
        found += [("table", item) for item in value.args] + list(value.keywords.items())
    owner = getattr(value, "__self__", value)
    if not isinstance(owner, FunctionType | type) and isinstance(getattr(owner, "__dict__", None), dict):
        found += list(owner.__dict__.items())
    return found


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


class SideEffects:
    """What a function and the functions that it captures change: outer variables, containers, arrays, tensors, fields
    of objects, and the state of random number generators.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._callables = list(_reachable(function))
        self._before = [(owner, name, item, _contents(item)) for owner, name, item in self._changeable()]
        self._generators = _generators()

    def _changeable(self) -> Iterator[tuple[Any, str, Any]]:
        """Everything that can be changed among what is captured, and among the parts of that."""
        for owner in self._callables:
            for name, item in captured(owner):
                for part in (item, *_parts(item)):
                    if _contents(part) is not None:
                        yield owner, name, part
            if _fields(own := getattr(owner, "__self__", owner)) is not None:
                yield owner, "self", own

    def check(self, what: str) -> None:
        """Raises `MaskError` if there was one since this object was made, or the code says that there will be."""
        for owner in self._callables:
            for name, line in _outer_assignments(owner):
                _refuse(what, f"assigns to {name}, a variable outside of it", owner, line)
        for owner, name, item, before in self._before:
            if _contents(item) != before:
                _refuse(what, f"changes {name}, which lies outside of it", owner, _mention(owner, name))
        if _generators() != self._generators:
            owner = self._callables[0] if self._callables else None
            line = _mention(owner, "random")
            _refuse(what, "draws random numbers, which a captured tensor has to hold", owner, line)


def _generators() -> list[object]:
    """The states of the generators of Python and numpy."""
    states: list[object] = [random.getstate()]
    if (numpy := sys.modules.get("numpy")) is not None:
        _, words, *rest = numpy.random.get_state()
        states += [words.tobytes(), rest]
    return states


def _refuse(what: str, deed: str, owner: Any, line: int | None) -> None:
    code = code_of(owner)
    place = "" if code is None else f" (at {_place(code.co_filename, line or code.co_firstlineno)})"
    advice = "it is called once, on symbols, and may only compute and return a truth value; keep state outside of it"
    raise MaskError(f"{what} {deed}; {advice}{place}")


def _reachable(function: Any) -> Iterator[Any]:
    """The function and the Python functions that it captures."""
    seen: set[int] = set()
    pending: list[Any] = [function]
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if is_listed(value):
            pending += value
        elif code_of(value) is not None:
            yield value
            pending += [item for _, item in captured(value) if callable(item) or isinstance(item, tuple | list)]


def _fields(item: Any) -> dict[str, Any] | None:
    """The fields of an object or a class of the user's, but those that it computes once and keeps."""
    kind = cast("Any", item if isinstance(item, type) else type(item))
    fields = getattr(item, "__dict__", None)
    if fields is None or isinstance(item, FunctionType | ModuleType) or kind.__module__.partition(".")[0] in _LIBRARIES:
        return None
    return {
        name: value
        for name, value in fields.items()
        if not (name.startswith("__") or isinstance(getattr_static(kind, name, None), cached_property))
    }


def _parts(item: Any) -> list[Any]:
    """The elements of a container, or the fields of an object."""
    if isinstance(item, dict):
        return list(cast("dict[Any, Any]", item).values())
    if isinstance(item, _CONTAINERS):
        return list(cast("Collection[Any]", item))
    fields = _fields(item)
    return [] if fields is None else list(fields.values())


def _contents(item: Any) -> object:
    """What differs once a container, an array, a tensor or an object has changed; None for what is none of them."""
    if isinstance(item, dict):
        return [id(part) for pair in cast("dict[Any, Any]", item).items() for part in pair]
    if isinstance(item, _CONTAINERS):
        return [id(part) for part in cast("Collection[Any]", item)]
    if type(item).__module__ == "numpy" and hasattr(item, "tobytes"):
        return crc32(item.tobytes()) if item.nbytes <= _LARGEST_ARRAY else None
    try:
        version = getattr(item, "_version", None)
    except RuntimeError:  # tensors of inference mode count no versions
        return None
    if version is not None or (fields := _fields(item)) is None:
        return version
    return [id(part) for pair in fields.items() for part in pair]


def _codes(code: CodeType | None) -> Iterator[CodeType]:
    """A function's code and that of the functions, lambdas and comprehensions written in it."""
    if code is not None:
        yield code
        for part in code.co_consts:
            if isinstance(part, CodeType):
                yield from _codes(part)


def _outer_assignments(owner: Any) -> Iterator[tuple[str, int | None]]:
    outer = code_of(owner)
    for code in _codes(outer):
        line: int | None = None
        for step in dis.get_instructions(code):
            line = step.positions.lineno if step.positions is not None else line
            # A nested function may assign to variables of the functions around it, up to the outermost.
            is_outer = outer is not None and step.argval in code.co_freevars and step.argval in outer.co_freevars
            if step.opname == "STORE_GLOBAL" or (step.opname == "STORE_DEREF" and is_outer):
                yield step.argval, line


def _mention(owner: Any, name: str) -> int | None:
    for code in _codes(code_of(owner)):
        for step in dis.get_instructions(code):
            if step.argval == name and step.positions is not None:
                return step.positions.lineno
    return None


__all__ = ["SideEffects", "captured", "located"]
