"""Builds descriptors on the CPU by functions that MLIR compiled, word for word what `build_cpu` builds."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch

from compilemask.dialects import interval
from compilemask.errors import LoweringError
from compilemask.lowering.descriptor_layout import HEADER_WORDS, KEYS, MAGIC, VERSION, Layout
from compilemask.lowering.tiling_to_scf.descriptor import NAME, SIZES, STATE, Source, descriptor
from compilemask.runtime.cpu import upstream_mlir
from compilemask.runtime.cpu.host_code import Arguments, HostFunction, compile_host_function
from compilemask.runtime.descriptor import Descriptor

MOST_TILES = 4096
"""Query tiles of a mask; launch order takes time with their square."""


def function_for(func: interval.FuncOp, rows: int, shared: bool) -> HostFunction | None:
    """The function that builds the descriptors of a mask; None without MLIR, or if the mask has no form for it."""
    if upstream_mlir.find() is None:
        return None
    try:
        return compile_host_function(descriptor(Source(func, rows, shared)), NAME)
    except LoweringError:
        return None


def build(function: HostFunction, layout: Layout, arguments: Sequence[Sequence[Any]]) -> Descriptor | None:
    """The descriptor of masks with these arguments, tables as int32 [L]; None if a number of theirs leaves 32 bits, or
    there is too little room, or too many tiles: `build_cpu` builds all of those, or says what is wrong."""
    if layout.query_tiles > MOST_TILES or layout.patches is not None:
        return None
    # PyTorch would wake threads to fill it.
    buffer = torch.from_numpy(np.zeros(layout.words, dtype=np.int32))
    of_key_tiles = torch.empty(4 * (layout.key_tiles + 1), dtype=torch.int64)
    costs = torch.empty(layout.query_tiles, dtype=torch.int64)
    state = torch.zeros(len(STATE), dtype=torch.int64)
    for mask, given in enumerate(arguments):
        sizes = array("q", [mask if name == "mask" else getattr(layout, name) for name in SIZES])
        integers = array("q", [int(value) for value in given if not isinstance(value, np.ndarray)])
        tables = [torch.from_numpy(np.ascontiguousarray(cast("Any", x))) for x in given if isinstance(x, np.ndarray)]
        function(Arguments([buffer, sizes, state, of_key_tiles, costs, integers, *tables]))
    pairs, patterns, fault = cast("list[int]", state.tolist())
    if fault:
        return None
    buffer[:HEADER_WORDS] = _header(layout, pairs, layout.pattern_capacity if layout.shared else patterns)
    return Descriptor(buffer, layout)


def _header(layout: Layout, pairs: int, patterns: int) -> torch.Tensor:
    shape = (layout.batch, layout.heads, layout.queries, layout.keys, layout.rows, KEYS)
    counts = (layout.query_tiles, layout.key_tiles, layout.pair_capacity, layout.pattern_capacity)
    known = (MAGIC, VERSION, *shape, *counts, pairs, patterns, 0, int(layout.shared))
    return torch.tensor(known + (0,) * (HEADER_WORDS - len(known)), dtype=torch.int32)
