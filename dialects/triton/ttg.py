"""The `ttg` dialect: Triton-GPU IR, where tensors have layouts, buffers lie in shared memory and warps specialize.

What CompileMask's kernels for one GPU use is defined, with Triton's property names, so that the generic form is text
that Triton parses. `tt.elementwise_inline_asm` and `!tt.tensordesc` are here: only kernels with layouts use them.
"""

from __future__ import annotations

from xdsl.ir import Dialect

from compilemask.dialects.triton.layouts import LAYOUTS
from compilemask.dialects.triton.ttg_compute import COMPUTE_OPS, ConvertLayoutOp, ElementwiseInlineAsmOp
from compilemask.dialects.triton.ttg_memory import (
    MEMORY_OPS,
    LocalAllocOp,
    LocalDeallocOp,
    LocalLoadOp,
    LocalStoreOp,
    MemDescIndexOp,
    MemDescReinterpretOp,
    MemDescReshapeOp,
    MemDescSubsliceOp,
    MemDescTransOp,
)
from compilemask.dialects.triton.ttg_specialize import (
    SPECIALIZE_OPS,
    WarpReturnOp,
    WarpSpecializeOp,
    WarpSpecializePartitionsOp,
    WarpYieldOp,
)
from compilemask.dialects.triton.ttg_types import TYPES, AsyncTokenType, MemDescType, TensorDescType

__all__ = [
    "TTG",
    "AsyncTokenType",
    "ConvertLayoutOp",
    "ElementwiseInlineAsmOp",
    "LocalAllocOp",
    "LocalDeallocOp",
    "LocalLoadOp",
    "LocalStoreOp",
    "MemDescIndexOp",
    "MemDescReinterpretOp",
    "MemDescReshapeOp",
    "MemDescSubsliceOp",
    "MemDescTransOp",
    "MemDescType",
    "TensorDescType",
    "WarpReturnOp",
    "WarpSpecializeOp",
    "WarpSpecializePartitionsOp",
    "WarpYieldOp",
]

TTG = Dialect("ttg", [*MEMORY_OPS, *COMPUTE_OPS, *SPECIALIZE_OPS], [*LAYOUTS, *TYPES])
