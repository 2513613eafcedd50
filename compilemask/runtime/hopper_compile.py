"""From a kernel in Triton-GPU IR to a binary and what its launch needs to know."""

from __future__ import annotations

import re
import struct
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from xdsl.dialects.builtin import ModuleOp

from compilemask.dialects.triton.printing import print_generic
from compilemask.errors import MissingDependencyError, TargetError
from compilemask.passes.legalize_triton import legalize
from compilemask.runtime.target import Target

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

HOPPER = Target("cuda", 90)
MAP_BYTES = 128
"""Of a tensor map."""
WARP = 32
OPTIONS = {"enable_fp_fusion": True}
"""The softmax counts on one fused operation per score; Triton is about to change its default."""

_PARAMETERS = re.compile(r"\.visible \.entry (\w+)\((.*?)\)", re.DOTALL)
_PARAMETER = re.compile(r"\.param (?:\.align \d+ )?\.(\w+) [^,]*?(?:\[(\d+)\])?\s*(?:,|$)")
_FORMATS = {"u64": "Q", "b64": "Q", "u32": "i", "b32": "i", "f32": "f"}


class Binary(NamedTuple):
    """A kernel for sm_90a."""

    cubin: bytes
    name: str
    threads: int
    shared_bytes: int
    format: str
    """Of all parameters in a row, as `struct` takes it."""
    offsets: tuple[int, ...]
    """Where each parameter starts in that row."""
    scratch: tuple[int, ...]
    """Values of the last parameters, pointers to scratch memory that Triton adds: nothing uses them."""


def triton_version() -> str:
    """The version of the installed Triton. Raises MissingDependencyError without it."""
    try:
        import triton
    except ImportError as error:
        raise MissingDependencyError("compiling kernels needs the package triton") from error
    return triton.__version__


def gpu_text(module: ModuleOp) -> str:
    """A kernel in Triton-GPU IR as text for the installed Triton."""
    return print_generic(legalize(module, triton_version()))


@lru_cache(maxsize=64)
def compile_gpu_text(text: str, arguments: int) -> Binary:
    """The binary of a kernel in Triton-GPU IR with so many arguments; Triton keeps it on disk too. Needs no GPU.

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
    return _binary(kernel, arguments)


def _binary(kernel: CompiledKernel, arguments: int) -> Binary:
    metadata: Any = kernel.metadata
    if metadata.global_scratch_size:
        raise TargetError(f"the kernel wants {metadata.global_scratch_size} bytes of scratch memory; none is given")
    found = _PARAMETERS.search(kernel.asm["ptx"])
    if found is None:
        raise TargetError("Triton's PTX has no entry")
    formats = [f"{size}s" if size else _FORMATS[kind] for kind, size in _PARAMETER.findall(found[2])]
    sizes = [struct.calcsize("=" + part) for part in formats]
    offsets = tuple(sum(sizes[:index]) for index in range(len(sizes)))
    return Binary(
        cubin=kernel.asm["cubin"],
        name=found[1],
        threads=metadata.num_warps * WARP,
        shared_bytes=metadata.shared,
        format="=" + "".join(formats),
        offsets=offsets,
        scratch=(0,) * (len(formats) - arguments),
    )
