"""Running masks: descriptors, attention on the CPU and on GPUs, compiling and launching kernels."""

from __future__ import annotations

from compilemask.lowering.patch_grid import Patches
from compilemask.runtime.calls.operator import attention
from compilemask.runtime.compiled import Compiled, compile
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.explanation import Explanation, explain
from compilemask.runtime.gpu.compile_kernel import compile_for, compile_in_child, compiled_kernels

__all__ = [
    "Compiled",
    "Descriptor",
    "Explanation",
    "Patches",
    "attention",
    "compile",
    "compile_for",
    "compile_in_child",
    "compiled_kernels",
    "explain",
]
