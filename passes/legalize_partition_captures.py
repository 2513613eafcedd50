"""`legalize-partition-captures`: values that partitions use become operands of `ttg.warp_specialize.partitions`.

Triton 3.6 has them on `ttg.warp_specialize`, Triton 3.7 and later on the operation that holds the partitions.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from compilemask.dialects.triton import ttg


@dataclass(frozen=True)
class LegalizePartitionCapturesPass(ModulePass):
    """Move the captures of each warp specialization to its partitions."""

    name = "legalize-partition-captures"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for nested in op.walk():
            if isinstance(nested, ttg.WarpSpecializeOp) and nested.captures:
                nested.partitions_op.operands = list(nested.captures)
                nested.operands = []
