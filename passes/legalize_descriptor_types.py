"""`legalize-descriptor-types`: `!tt.tensordesc<tensor<64xbf16, #layout>>` becomes `!tt.tensordesc<64xbf16, #layout>`.

Triton 3.8 made the box's shape, element type and layout parameters of the descriptor type itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import BoolAttr, ModuleOp
from xdsl.ir import Attribute
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from compilemask.dialects.triton import tt
from compilemask.dialects.triton.ttg_types import TensorDescType


@dataclass(frozen=True)
class LegalizeDescriptorTypesPass(ModulePass):
    """Rewrite the descriptor type of every value and function."""

    name = "legalize-descriptor-types"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for nested in op.walk():
            arguments = [argument for region in nested.regions for block in region.blocks for argument in block.args]
            for value in (*nested.results, *arguments):
                if isinstance(value.type, TensorDescType):
                    Rewriter.replace_value_with_new_type(value, _bare(value.type))
            if isinstance(nested, tt.FuncOp):
                types = nested.function_type
                inputs, outputs = [_bare(t) for t in types.inputs], [_bare(t) for t in types.outputs]
                nested.function_type = type(types).from_lists(inputs, outputs)


def _bare(type_: Attribute) -> Attribute:
    return TensorDescType(type_.block, BoolAttr.from_bool(False)) if isinstance(type_, TensorDescType) else type_
