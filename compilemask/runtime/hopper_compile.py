"""From a kernel in Triton-GPU IR to a binary."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from compilemask.dialects.triton.printing import print_generic
from compilemask.errors import TargetError
from compilemask.passes.legalize_triton import legalize
from compilemask.runtime.binary import Binary, binary_of
from compilemask.runtime.disk_cache import triton_version
from compilemask.runtime.target import Target

HOPPER = Target("cuda", 90)
OPTIONS = {"enable_fp_fusion": True}
"""The softmax counts on one fused operation per score; Triton is about to change its default."""


def gpu_text(module: ModuleOp) -> str:
    """A kernel in Triton-GPU IR as text for the installed Triton."""
    return print_generic(legalize(module, triton_version()))


@lru_cache(maxsize=64)
def compile_gpu_text(text: str) -> Binary:
    """The binary of a kernel in Triton-GPU IR. Needs no GPU.

    Triton ends the process on some invalid IR: the text must be of a verified module. Raises TargetError if Triton
    cannot compile it.
    """
    version = triton_version()
    import triton

    with tempfile.TemporaryDirectory(prefix="compilemask-") as folder:
        path = Path(folder) / "kernel.ttgir"
        path.write_text(text)
        try:
            kernel = triton.compile(str(path), target=HOPPER.for_triton(), options=OPTIONS)
        except Exception as error:
            raise TargetError(f"Triton {version} cannot compile this kernel for {HOPPER}: {error}") from error
    return binary_of(kernel)
