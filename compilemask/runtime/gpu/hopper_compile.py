"""From a kernel in Triton-GPU IR to a binary."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp

from compilemask.dialects.triton.printing import print_generic
from compilemask.passes.legalize_triton import legalize
from compilemask.runtime.gpu import disk_cache
from compilemask.runtime.gpu.binary import Binary, binary_of
from compilemask.runtime.gpu.compile_kernel import compile_text
from compilemask.runtime.gpu.target import Target

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

HOPPER = Target("cuda", 90)
OPTIONS = {"enable_fp_fusion": True}
"""The softmax counts on one fused operation per score; Triton is about to change its default."""


def gpu_text(module: ModuleOp) -> str:
    """A kernel in Triton-GPU IR as text for the installed Triton."""
    return print_generic(legalize(module, disk_cache.triton_version()))


def compile_gpu_kernel(text: str) -> CompiledKernel:
    """Triton's kernel of one in Triton-GPU IR. Needs no GPU.

    Triton ends the process on some invalid IR: the text must be of a verified module. Raises TargetError if Triton
    cannot compile it.
    """
    return compile_text(text, HOPPER, OPTIONS, "ttgir")


def kept_binary(name: str, text: Callable[[], str]) -> Binary:
    """The binary of the kernel of this name, from disk, or compiled and kept there. Raises as `compile_gpu_kernel`."""
    found = disk_cache.find(name, HOPPER)
    if found is None:
        found = binary_of(compile_gpu_kernel(text()))
        disk_cache.keep(name, HOPPER, found)
    return found
