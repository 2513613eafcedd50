"""The dialects and passes of CompileMask for xDSL's own tools, by the entry point `xdsl.universe`.

`xdsl-opt` keeps its own `arith`, whose comparisons and casts take no tensors: it reads masks, intervals and tilings,
and Triton IR as far as that holds.
"""

from __future__ import annotations

from xdsl.universe import Universe

from compilemask.dialects.interval import INTERVAL
from compilemask.dialects.mask import MASK
from compilemask.dialects.tiling import TILING
from compilemask.dialects.triton.tt import TT
from compilemask.dialects.triton.ttg import TTG
from compilemask.dialects.triton.ttng import TTNG
from compilemask.lowering.registry import BUILT_IN, built_in_passes

COMPILEMASK = Universe(
    all_dialects={
        dialect.name: (lambda dialect=dialect: dialect) for dialect in (MASK, INTERVAL, TILING, TT, TTG, TTNG)
    },
    all_passes={name: get for name, get in built_in_passes().items() if BUILT_IN[name].startswith("compilemask.")},
)

__all__ = ["COMPILEMASK"]
