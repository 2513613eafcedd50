"""`legalize-copy-segments`: TMA loads say how many operands each group has, offsets, of which there are none, too.

Triton 3.7 gave `ttng.async_tma_copy_global_to_local` a second list of operands, and thereby `operandSegmentSizes`.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, i32
from xdsl.passes import ModulePass

from compilemask.dialects.triton import ttng


@dataclass(frozen=True)
class LegalizeCopySegmentsPass(ModulePass):
    """Write the sizes of the operand groups: descriptor, coordinates, offsets, barrier, buffer, predicate."""

    name = "legalize-copy-segments"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for nested in op.walk():
            if isinstance(nested, ttng.AsyncTMACopyGlobalToLocalOp):
                nested.segments = DenseArrayBase.from_list(i32, [1, len(nested.coord), 0, 1, 1, 1])
