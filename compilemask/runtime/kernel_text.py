"""The kernels of a mask as text for people, the same from run to run.

Locations and debug information, which name temporary files, are left out; Triton IR is in custom instead of generic
syntax.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from compilemask.errors import DTypeError, ShapeError, TargetError
from compilemask.lowering.tiling_to_scf import descriptor
from compilemask.lowering.tiling_to_scf.attention import SIGNATURE, attention
from compilemask.lowering.tiling_to_scf.attention_frame import Blocks
from compilemask.passes.observers import printed
from compilemask.runtime.gpu.compile_kernel import Options, compile_for
from compilemask.runtime.gpu.target import parse_target
from compilemask.runtime.validate import MAX_HEAD_DIM

if TYPE_CHECKING:
    from compilemask.runtime.program import Program

DEFAULT_TARGET = "cuda:90"
"""Decides how the attention kernel is cut into blocks where no target is given."""

_MLIR = re.compile(r'^#loc.*\n|[ \t]*\bloc\((?:#loc\d*|unknown|"[^"]*":\d+:\d+|"[^"]*")\)', re.MULTILINE)
_LLVM = re.compile(
    r",? !dbg !\d+|^!llvm\.dbg\.cu = .*\n|^!\d+ = (?:distinct )?!DI\w+\(.*\n|^!\d+ = !\{null\b.*\n", re.MULTILINE
)
_PTX = re.compile(
    r"^[ \t]*\.(?:loc|file)[ \t].*\n|^[ \t]*\.section[ \t]+\.debug_\w+\s*\{[^}]*\}[ \t]*\n?", re.MULTILINE
)
_GENERIC = '"builtin.module"'


@lru_cache(maxsize=32)
def readable(text: str, level: str) -> str:
    """A kernel at a level (ttir, ttgir, llir or ptx) as text that people read."""
    if level in ("llir", "ptx"):
        return (_LLVM if level == "llir" else _PTX).sub("", text).strip() + "\n"
    if text.startswith(_GENERIC):
        from compilemask.language.text import parse_module

        return printed(parse_module(text))
    return _MLIR.sub("", text).strip() + "\n"


def check_kernel_request(level: str, target: str | None, head_dim: int, dtype: torch.dtype) -> None:
    """Raises TargetError, ShapeError or DTypeError if kernels cannot be had like this."""
    from compilemask.runtime.gpu.attention_cuda import ELEMENTS

    if target is None:
        if level not in ("scf", "ttir"):
            raise TargetError(f"{level} depends on a target; give one such as target={DEFAULT_TARGET!r}")
    elif parse_target(target).backend != "cuda" and level == "ptx":
        raise TargetError(f"ptx is code for a cuda target, got {target!r}; llir is the last level for others")
    if isinstance(head_dim, bool) or not isinstance(head_dim, int) or not 1 <= head_dim <= MAX_HEAD_DIM:
        raise ShapeError(f"head_dim is {head_dim!r}, expected an int from 1 to {MAX_HEAD_DIM}")
    if dtype not in ELEMENTS:
        raise DTypeError(f"dtype is {dtype}, expected one of {', '.join(map(str, ELEMENTS))}")


def descriptor_kernels(program: Program, level: str, target: str | None) -> dict[str, str]:
    """The kernels that build a mask's descriptor, by name, at a level."""
    from compilemask.runtime.program import OPTIONS

    return {name: _at(text, level, target, OPTIONS[name]) for name, text in program.kernels.items()}


def attention_kernel_text(level: str, target: str | None, head_dim: int, dtype: torch.dtype) -> str:
    """The kernel that follows a descriptor, which is the same for all masks, at a level."""
    from compilemask.runtime.gpu.attention_cuda import attention_kernel

    kernel = attention_kernel(head_dim, dtype, target or DEFAULT_TARGET)
    return _at(kernel.text, level, target, kernel.options)


def host_functions(program: Program, head_dim: int) -> dict[str, str]:
    """The functions that build a mask's descriptor on the CPU and follow it, by name.

    Raises LoweringError if the mask's arithmetic has no form there.
    """
    source = descriptor.Source(program.intervals, program.tiles.shape.rows.data, program.room.shared)
    return {
        descriptor.NAME: descriptor.descriptor(source),
        SIGNATURE.name: attention(head_dim, Blocks.choose(vector_bits=512)),
    }


def _at(text: str, level: str, target: str | None, options: Options) -> str:
    return readable(text if level == "ttir" else compile_for(text, str(target), options)[level], level)
