"""From Triton IR to Triton-GPU IR by the few of Triton's passes that kernels without matrix products need.

Triton's own pipeline takes up to ten times as long. The kernels that build a descriptor, for which somebody waits, come
out as the same machine code but for a few instructions.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

from compilemask.runtime.gpu.target import Target

_LOCATION = re.compile(r'loc\((?:#loc\d*|"[^"]*"\(#loc\d*\))\)')
_LOCATION_ALIAS = re.compile(r"^#loc.*\n", re.MULTILINE)


def assign_layouts(path: Path, target: Target, num_warps: int, *, coalesce: bool) -> str:
    """The module in Triton IR that a file holds, as Triton-GPU IR for a cuda target. `coalesce` looks for layouts in
    which a thread loads and stores several elements at once; that takes most of the time in a kernel of many accesses.

    Operations have no locations: they would name lines of a temporary file, and a tenth of the time to compile goes
    into carrying them along. Raises what Triton raises for a module that it cannot read or lower.
    """
    from triton._C import libtriton

    ir, passes = cast("Any", libtriton).ir, cast("Any", libtriton).passes
    context = ir.context()
    ir.load_dialects(context)
    module = ir.parse_mlir_module(str(path), context)
    pipeline = ir.pass_manager(context)
    passes.common.add_cse(pipeline)
    passes.ttir.add_triton_licm(pipeline)
    passes.common.add_canonicalizer(pipeline)
    passes.ttir.add_convert_to_ttgpuir(pipeline, str(target), num_warps, target.threads_of_warp, 1)
    if coalesce:
        passes.ttgpuir.add_coalesce(pipeline)
    passes.ttgpuir.add_remove_layout_conversions(pipeline)
    passes.common.add_cse(pipeline)
    pipeline.run(module, "assign_layouts")
    return _LOCATION_ALIAS.sub("", _LOCATION.sub("loc(unknown)", str(module)))
