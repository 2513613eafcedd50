"""`legalize-descriptor-arguments`: a kernel argument that holds a tensor map has the type of a descriptor.

Up to Triton 3.8 such an argument is a pointer, `!tt.ptr<i8, 0>` with the attribute `tt.nv_tma_desc`, which
`ttng.reinterpret_tensor_descriptor` makes a descriptor. Triton 3.9 has no pointers in address space 0. In machine code
both are 128 bytes passed by value. Fetches of the tensor map ahead of its use are left out: PTX takes addresses alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import VerifyException

from compilemask.dialects.triton import tt, ttg, ttng
from compilemask.dialects.triton.inline_ptx import PREFETCH_TENSOR_MAP
from compilemask.dialects.triton.ttg_module import TMA_ARGUMENT


@dataclass(frozen=True)
class LegalizeDescriptorArgumentsPass(ModulePass):
    """Give arguments with tensor maps the descriptor type that they are reinterpreted as."""

    name = "legalize-descriptor-arguments"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for nested in list(op.walk()):
            if isinstance(nested, tt.FuncOp) and nested.arg_attrs is not None:
                for argument, attributes in zip(nested.body.block.args, nested.arg_attrs, strict=True):
                    if TMA_ARGUMENT in attributes.data and isinstance(argument.type, tt.PointerType):
                        _reinterpret(argument)
                types = nested.function_type
                nested.function_type = type(types).from_lists(nested.body.block.arg_types, types.outputs.data)


def _is_prefetch(op: Operation) -> bool:
    return isinstance(op, ttg.ElementwiseInlineAsmOp) and op.asm_string.data == PREFETCH_TENSOR_MAP


def _reinterpret(argument: SSAValue) -> None:
    for use in list(argument.uses):
        if _is_prefetch(use.operation):
            Rewriter.erase_op(use.operation)
    casts = [use.operation for use in argument.uses]
    wanted = {cast.results[0].type for cast in casts if isinstance(cast, ttng.ReinterpretTensorDescriptorOp)}
    if len(wanted) != 1 or not all(isinstance(cast, ttng.ReinterpretTensorDescriptorOp) for cast in casts):
        name = argument.name_hint or "?"
        raise VerifyException(
            f"the tensor map %{name} must be reinterpreted as one descriptor type, and used in no other way"
        )
    argument = Rewriter.replace_value_with_new_type(argument, wanted.pop())
    for cast in casts:
        cast.results[0].replace_all_uses_with(argument)
        Rewriter.erase_op(cast)
