"""The dialects that CompileMask knows, in one xDSL context.

Packages add theirs through the entry point group `compilemask.dialects`; each entry is a dialect's name and the object.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from xdsl.context import Context
from xdsl.ir import Dialect

from compilemask.errors import DialectError

GROUP = "compilemask.dialects"
_OWN = "compilemask.dialects"

BUILT_IN: dict[str, str] = {
    "builtin": "xdsl.dialects.builtin:Builtin",
    "func": "xdsl.dialects.func:Func",
    "arith": f"{_OWN}.arith:ARITH",
    "math": "xdsl.dialects.math:Math",
    "scf": "xdsl.dialects.scf:Scf",
    "memref": "xdsl.dialects.memref:MemRef",
    "vector": "xdsl.dialects.vector:Vector",
    "mask": f"{_OWN}.mask:MASK",
    "interval": f"{_OWN}.interval:INTERVAL",
    "tiling": f"{_OWN}.tiling:TILING",
    "tt": f"{_OWN}.triton.tt:TT",
    "ttg": f"{_OWN}.triton.ttg:TTG",
    "ttng": f"{_OWN}.triton.ttng:TTNG",
}
"""Where the dialects are that come with CompileMask: each is imported when some IR holds a part of it."""


@cache
def known_dialects() -> dict[str, Callable[[], Dialect]]:
    """How to get each dialect by its name, those of other packages included.

    Raises DialectError if a package's dialect cannot be loaded, or has a name that is taken.
    """
    found: dict[str, Callable[[], Dialect]] = {
        name: (lambda place=place: _built_in(place)) for name, place in BUILT_IN.items()
    }
    for entry in entry_points(group=GROUP):
        try:
            dialect = entry.load()
        except Exception as error:
            raise DialectError(f"the dialect {entry.name!r} cannot be loaded from {entry.value}: {error}") from error
        if not isinstance(dialect, Dialect) or dialect.name != entry.name:
            raise DialectError(f"{entry.value} is not a Dialect named {entry.name!r}")
        if entry.name in found:
            raise DialectError(f"there are two dialects {entry.name!r}; one is {entry.value}")
        found[entry.name] = lambda dialect=dialect: dialect
    return found


def _built_in(place: str) -> Dialect:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def all_dialects() -> tuple[Dialect, ...]:
    """The known dialects. Raises DialectError as `known_dialects`."""
    return tuple(get() for get in known_dialects().values())


class _Context(Context):
    """Knows that `ttg` defines an operation of `tt`, the inline PTX, since it needs layouts."""

    def load_registered_dialect(self, name: str) -> None:
        super().load_registered_dialect(name)
        if name == "tt" and all(dialect.name != "ttg" for dialect in self.loaded_dialects):
            super().load_registered_dialect("ttg")


def make_context() -> Context:
    """A context that parses every level of CompileMask and the dialects that they use."""
    context = _Context()
    for name, get in known_dialects().items():
        context.register_dialect(name, get)
    return context


__all__ = ["BUILT_IN", "all_dialects", "known_dialects", "make_context"]
