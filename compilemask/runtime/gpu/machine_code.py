"""What a kernel's machine code needs of the hardware: registers, spills, shared memory, instructions."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from compilemask.errors import MissingDependencyError, TargetError

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?);", re.MULTILINE)
_SPILL = re.compile(r"(?:@!?U?P\d+\s+)?(?:STL|LDL)\b")


@dataclass(frozen=True)
class MachineCode:
    """A kernel for one target. Numbers are None where no `cuobjdump` was found that could tell them."""

    ptx: str
    shared_bytes: int
    """Shared memory of a program, in bytes."""
    warps: int
    sass: str | None = None
    registers: int | None = None
    """Of a thread."""
    stack_bytes: int | None = None
    """Of a thread: local memory for spilled registers and arrays."""

    @property
    def instructions(self) -> int | None:
        """Number of machine instructions."""
        return None if self.sass is None else len(_INSTRUCTION.findall(self.sass))

    @property
    def spills(self) -> int | None:
        """Number of instructions that store registers to local memory or load them from there."""
        if self.sass is None:
            return None
        return sum(_SPILL.match(text) is not None for text in _INSTRUCTION.findall(self.sass))


def machine_code(kernel: CompiledKernel) -> MachineCode:
    """The machine code of a kernel that Triton has compiled. Needs no GPU.

    Raises TargetError if it was not compiled for a cuda target.
    """
    metadata: Any = kernel.metadata
    forms = cast("dict[str, Any]", kernel.asm)
    if "cubin" not in forms:
        raise TargetError(f"registers and machine code are known for cuda targets, not for {metadata.target.backend}")
    ptx, shared, warps = forms["ptx"], metadata.shared, metadata.num_warps
    tool = cuobjdump()
    if tool is None:
        return MachineCode(ptx, shared, warps)
    with tempfile.TemporaryDirectory(prefix="compilemask-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(forms["cubin"])
        usage, sass = (_run(tool, option, path) for option in ("-res-usage", "-sass"))
    return MachineCode(ptx, shared, warps, sass, _number("REG", usage), _number("STACK", usage))


@cache
def cuobjdump() -> Path | None:
    """The tool that reads machine code: that of the CUDA toolkit, or the one that Triton brings."""
    if found := shutil.which("cuobjdump"):
        return Path(found)
    try:
        import triton
    except ImportError as error:
        raise MissingDependencyError("compiling kernels needs the package triton") from error
    own = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return own if own.is_file() else None


def _run(tool: Path, option: str, path: Path) -> str:
    result = subprocess.run([tool, option, path], capture_output=True, text=True, check=False)
    if result.returncode:
        raise TargetError(f"{tool} {option} fails: {result.stderr.strip()[:200]}")
    return result.stdout


def _number(name: str, usage: str) -> int:
    found = re.search(rf"\b{name}:(\d+)", usage)
    if found is None:
        raise TargetError(f"cuobjdump does not say {name}: {usage.strip()[:200]}")
    return int(found[1])


__all__ = ["MachineCode", "cuobjdump", "machine_code"]
