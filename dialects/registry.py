"""The dialects that CompileMask knows, in one xDSL context.

Packages add theirs through the entry point group `compilemask.dialects`; each entry is a dialect's name and the object.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.dialects.func import Func
from xdsl.dialects.math import Math
from xdsl.dialects.memref import MemRef
from xdsl.dialects.scf import Scf
from xdsl.dialects.vector import Vector
from xdsl.ir import Dialect

from compilemask.dialects.arith import ARITH
from compilemask.dialects.interval import INTERVAL
from compilemask.dialects.mask import MASK
from compilemask.dialects.tiling import TILING
from compilemask.dialects.triton.tt import TT
from compilemask.dialects.triton.ttg import TTG
from compilemask.dialects.triton.ttng import TTNG
from compilemask.errors import DialectError

DIALECTS: tuple[Dialect, ...] = (Builtin, Func, ARITH, Math, Scf, MemRef, Vector, MASK, INTERVAL, TILING, TT, TTG, TTNG)
GROUP = "compilemask.dialects"


@cache
def all_dialects() -> tuple[Dialect, ...]:
    """`DIALECTS` and those of other packages.

    Raises DialectError if a package's dialect cannot be loaded, or has a name that is taken.
    """
    found = {dialect.name: dialect for dialect in DIALECTS}
    for entry in entry_points(group=GROUP):
        try:
            dialect = entry.load()
        except Exception as error:
            raise DialectError(f"the dialect {entry.name!r} cannot be loaded from {entry.value}: {error}") from error
        if not isinstance(dialect, Dialect) or dialect.name != entry.name:
            raise DialectError(f"{entry.value} is not a Dialect named {entry.name!r}")
        if entry.name in found:
            raise DialectError(f"there are two dialects {entry.name!r}; one is {entry.value}")
        found[entry.name] = dialect
    return tuple(found.values())


def make_context() -> Context:
    """A context that parses every level of CompileMask and the dialects that they use."""
    context = Context()
    for dialect in all_dialects():
        context.load_dialect(dialect)
    return context


__all__ = ["DIALECTS", "all_dialects", "make_context"]
