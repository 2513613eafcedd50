"""The kernels that build a mask's descriptor on the device (docs/descriptor.md), from its interval function.

Three launches in order on one stream: `count`, `fill`, `patterns`. They are specialised to the mask's interval function
and to nothing else: lengths, capacities and the mask's parameters are arguments (`descriptor_kernel.DescriptorKernel`).
"""

from __future__ import annotations

from typing import TypeVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from compilemask.dialects import interval, tiling
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt.descriptor_count import count_kernel
from compilemask.lowering.tiling_to_tt.descriptor_fill import fill_kernel
from compilemask.lowering.tiling_to_tt.descriptor_kernel import MaskFunctions
from compilemask.lowering.tiling_to_tt.descriptor_patterns import patterns_kernel

Function = TypeVar("Function", bound=Operation)

KERNELS = {"count": count_kernel, "fill": fill_kernel, "patterns": patterns_kernel}
"""The kernels by name, in launch order. Grids: (NQ, G, 1) twice, then any number of programs."""


def emit(module: ModuleOp) -> dict[str, ModuleOp]:
    """The kernels of the one mask in a module at the tiling level, each in a module of its own.

    Raises LoweringError if the module has not one interval function in normal form and its tiling function.
    """
    return {name: emit_kernel(module, name) for name in KERNELS}


def emit_kernel(module: ModuleOp, name: str) -> ModuleOp:
    """One of the kernels."""
    mask = MaskFunctions(_only(module, interval.FuncOp), _only(module, tiling.FuncOp))
    return KERNELS[name](mask).kb.finish()


def _only(module: ModuleOp, kind: type[Function]) -> Function:
    found = [op for op in module.body.block.ops if isinstance(op, kind)]
    if len(found) != 1:
        raise LoweringError(f"expected one {kind.name} in the module, found {len(found)}")
    return found[0]
