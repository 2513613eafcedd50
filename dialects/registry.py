"""The dialects that CompileMask knows, in one xDSL context."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.dialects.func import Func
from xdsl.dialects.math import Math
from xdsl.dialects.memref import MemRef
from xdsl.dialects.scf import Scf
from xdsl.ir import Dialect

from compilemask.dialects.arith import ARITH
from compilemask.dialects.interval import INTERVAL
from compilemask.dialects.mask import MASK
from compilemask.dialects.tiling import TILING
from compilemask.dialects.triton.tt import TT
from compilemask.dialects.triton.ttg import TTG
from compilemask.dialects.triton.ttng import TTNG

DIALECTS: tuple[Dialect, ...] = (Builtin, Func, ARITH, Math, Scf, MemRef, MASK, INTERVAL, TILING, TT, TTG, TTNG)


def make_context() -> Context:
    """A context that parses every level of CompileMask and the dialects that they use."""
    context = Context()
    for dialect in DIALECTS:
        context.load_dialect(dialect)
    return context


__all__ = ["DIALECTS", "make_context"]
