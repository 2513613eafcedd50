"""`tiling-to-scf`: attention that follows a descriptor becomes a function for the CPU, the same for all masks."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp, StringAttr, f32
from xdsl.parser import Parser
from xdsl.passes import ModulePass

from compilemask.dialects import tiling
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_scf.attention import attention
from compilemask.lowering.tiling_to_scf.attention_frame import Blocks
from compilemask.lowering.tiling_to_tt.attention import replace_attention


@dataclass(frozen=True)
class TilingToScfPass(ModulePass):
    """Replaces each function that holds a `tiling.attention` of f32 by one of scf, vector, memref, math and arith, in
    blocks that suit vectors of so many bits."""

    name = "tiling-to-scf"

    vector_bits: int = 512

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        replace_attention(op, lambda attention, name: [self._lowered(ctx, attention, name)])

    def _lowered(self, ctx: Context, op: tiling.AttentionOp, name: str) -> ModuleOp:
        if op.element_type != f32:
            raise LoweringError(f"attention on the CPU is computed in f32, got {op.element_type}")
        if op.score.blocks or op.sink is not None:
            raise LoweringError("attention on the CPU does not modify scores")
        module = Parser(ctx, attention(op.head_dim, Blocks.choose(self.vector_bits))).parse_module()
        lowered = module.body.block.first_op
        assert isinstance(lowered, func.FuncOp)
        lowered.sym_name = StringAttr(name)
        return module
