"""Names of compilation targets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from compilemask.errors import TargetError

if TYPE_CHECKING:
    from triton.backends.compiler import GPUTarget

CUDA = (80, 86, 89, 90, 100, 103, 120, 121)
"""Compute capabilities, ten times the version, that kernels are compiled for."""
HIP = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1200", "gfx1201")
_WAVE_OF_64 = re.compile(r"gfx9\w+")


class Target(NamedTuple):
    """What code is compiled for: `backend` cuda or hip, `arch` a compute capability (90) or a name (gfx942)."""

    backend: str
    arch: int | str

    def __str__(self) -> str:
        return f"{self.backend}:{self.arch}"

    @property
    def threads_of_warp(self) -> int:
        """Threads that run in step."""
        return 64 if self.backend == "hip" and _WAVE_OF_64.fullmatch(str(self.arch)) else 32

    def for_triton(self) -> GPUTarget:
        """The same target as Triton's class."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget(self.backend, self.arch, self.threads_of_warp)


def parse_target(text: str) -> Target:
    """The target of a string such as 'cuda:90' or 'hip:gfx942'. Raises TargetError for any other."""
    backend, _, arch = text.partition(":") if isinstance(text, str) else ("", "", "")
    if backend == "cuda" and arch.isdecimal() and int(arch) in CUDA:
        return Target("cuda", int(arch))
    if backend == "hip" and arch in HIP:
        return Target("hip", arch)
    known = [f"cuda:{arch}" for arch in CUDA] + [f"hip:{arch}" for arch in HIP]
    raise TargetError(f"unknown target {text!r}, expected one of {', '.join(known)}")
