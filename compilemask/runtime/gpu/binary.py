"""A compiled kernel, and what its launch needs to know."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from compilemask.errors import TargetError

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

WARP = 32
_PARAMETERS = re.compile(r"\.visible \.entry (\w+)\((.*?)\)", re.DOTALL)
_PARAMETER = re.compile(r"\.param (?:\.align \d+ )?\.(\w+) [^,]*?(?:\[(\d+)\])?\s*(?:,|$)")
_FORMATS = {"u64": "Q", "b64": "Q", "u32": "i", "b32": "i", "f32": "f"}


class Binary(NamedTuple):
    """A kernel for one CUDA target."""

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


def binary_of(kernel: CompiledKernel) -> Binary:
    """The binary of a kernel that Triton has compiled from IR.

    Raises TargetError for kernels that cannot be launched like this.
    """
    metadata: Any = kernel.metadata
    source: Any = kernel.src
    if metadata.global_scratch_size:
        raise TargetError(f"the kernel wants {metadata.global_scratch_size} bytes of scratch memory; none is given")
    found = _PARAMETERS.search(cast("str", kernel.asm["ptx"]))
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
        scratch=(0,) * (len(formats) - len(source.signature)),
    )
