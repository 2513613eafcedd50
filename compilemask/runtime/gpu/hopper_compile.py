"""From a kernel in Triton-GPU IR to a binary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp

from compilemask.dialects.triton.printing import print_generic
from compilemask.passes.legalize_triton import legalize
from compilemask.runtime.gpu.binary import Binary, binary_of
from compilemask.runtime.gpu.compile_kernel import compile_text
from compilemask.runtime.gpu.disk_cache import triton_version
from compilemask.runtime.gpu.target import Target

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

HOPPER = Target("cuda", 90)
OPTIONS = {"enable_fp_fusion": True}
"""The softmax counts on one fused operation per score; Triton is about to change its default."""


def gpu_text(module: ModuleOp) -> str:
    """A kernel in Triton-GPU IR as text for the installed Triton."""
    return print_generic(legalize(module, triton_version()))


def compile_gpu_kernel(text: str) -> CompiledKernel:
    """Triton's kernel of one in Triton-GPU IR. Needs no GPU.

    Triton ends the process on some invalid IR: the text must be of a verified module. Raises TargetError if Triton
    cannot compile it.
    """
    return compile_text(text, HOPPER, OPTIONS, "ttgir")


def compile_gpu_text(text: str) -> Binary:
    """As `compile_gpu_kernel`: the binary."""
    return binary_of(compile_gpu_kernel(text))
