"""`compilemask inspect`: what the kernels of a mask need of the hardware, and their IR, PTX and SASS."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from compilemask.errors import DTypeError, LoweringError, TargetError
from compilemask.tools.arguments import add_mask, length, mask_of

if TYPE_CHECKING:
    import torch
    from triton.compiler import CompiledKernel

    from compilemask.language.mask import Mask
    from compilemask.runtime.gpu.compile_kernel import Options
    from compilemask.runtime.gpu.machine_code import MachineCode

SPLIT = ("attention-split", "attention-combine")
PORTABLE = ("count", "fill", "patterns", "attention", *SPLIT)
HOPPER = ("hopper-attention", "hopper-gradients")
KERNELS = (*PORTABLE, *HOPPER)
DTYPES = ("float16", "bfloat16", "float32")


def add_inspect(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_mask(parser)
    parser.add_argument("--target", default="cuda:90", help="GPU (default: cuda:90); none needs to be there")
    parser.add_argument("--head-dim", type=length, default=128, metavar="D", help="of the attention (default: 128)")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES, help="of the attention (default: bfloat16)")
    parser.add_argument(
        "--kernel", action="append", choices=KERNELS, default=[], help="only this one (default: all that there are)"
    )
    code = parser.add_mutually_exclusive_group()
    code.add_argument("--ir", action="store_true", help="print the IR that Triton is given instead")
    code.add_argument("--ptx", action="store_true", help="print the PTX instead")
    code.add_argument("--sass", action="store_true", help="print the machine code instead; needs cuobjdump")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """The command."""
    from compilemask.passes.observers import digest
    from compilemask.runtime.kernel_text import readable

    kernels = kernels_of(mask_of(options), options.target, options.head_dim, options.dtype, options.kernel)
    if options.ir:
        print("\n".join(f"// {name}\n{readable(kernel.text(), 'ttir')}" for name, kernel in kernels.items()), end="")
        return 0
    codes = {name: kernel.code() for name, kernel in kernels.items()}
    if options.ptx:
        print("\n".join(f"// {name}\n{readable(code.ptx, 'ptx')}" for name, code in codes.items()))
    elif options.sass:
        if any(code.sass is None for code in codes.values()):
            raise TargetError("SASS needs cuobjdump, of the CUDA toolkit or of Triton; none was found")
        print("\n".join(f"// {name}\n{code.sass}" for name, code in codes.items()))
    else:
        print(table(codes, {name: digest(kernel.text()) for name, kernel in kernels.items()}), end="")
    return 0


class Kernel(NamedTuple):
    """A kernel as it is given to Triton."""

    text: Callable[[], str]
    """In Triton IR, those of Hopper in Triton-GPU IR."""
    compiled: Callable[[], CompiledKernel]

    def code(self) -> MachineCode:
        """What becomes of it."""
        from compilemask.runtime.gpu.machine_code import machine_code

        return machine_code(self.compiled())


def kernels_of(mask: Mask, target: str, head_dim: int, dtype: str, names: Sequence[str] = ()) -> dict[str, Kernel]:
    """The kernels of these names: those that build a mask's descriptor and those that follow it; all that there are,
    if no names are given.

    Raises:
        TargetError: the target is unknown or no cuda target.
        ShapeError, DTypeError: there is no attention kernel for this head_dim or dtype.
        LoweringError: there is no Hopper kernel for it, and one was asked for.
    """
    import torch

    import compilemask as cm
    from compilemask.runtime.gpu.attention_cuda import attention_kernel
    from compilemask.runtime.gpu.compile_kernel import compile_kernel
    from compilemask.runtime.kernel_text import check_kernel_request
    from compilemask.runtime.program import OPTIONS

    element = getattr(torch, dtype, None)
    if not isinstance(element, torch.dtype):
        raise DTypeError(f"dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")
    check_kernel_request("ptx", target, head_dim, element)
    program = cm.compile(mask).program

    def portable(text: str, options: Options) -> Kernel:
        return Kernel(lambda: text, partial(compile_kernel, text, target, options))

    found: dict[str, Kernel] = {}
    for name in names or (PORTABLE if _hopper_fault(target, head_dim, dtype) else (*PORTABLE, *HOPPER)):
        if name in HOPPER:
            if fault := _hopper_fault(target, head_dim, dtype):
                raise LoweringError(f"there is no {name} {fault}")
            found[name] = _hopper_kernel(name, head_dim, element)
        elif name == "attention":
            kernel = attention_kernel(head_dim, element, target)
            found[name] = portable(kernel.text, kernel.options)
        elif name in SPLIT:
            found[name] = portable(*_split_kernel(name, head_dim, element, target))
        else:
            found[name] = portable(program.kernel_text(name), OPTIONS[name])
    return found


def _split_kernel(name: str, head_dim: int, dtype: torch.dtype, target: str) -> tuple[str, Options]:
    """The variant for one row of up to 16 heads that share keys, in Triton IR."""
    from compilemask.runtime.gpu.attention_split_cuda import COMBINE_OPTIONS, combine_text, split_kernel

    if name == "attention-combine":
        return combine_text(head_dim, dtype), COMBINE_OPTIONS
    kernel = split_kernel(head_dim, dtype, target, 1)
    return kernel.text, kernel.options


def _hopper_fault(target: str, head_dim: int, dtype: str) -> str | None:
    """Why there are no Hopper kernels for this; None if there are."""
    from compilemask.lowering.tiling_to_ttg.attention_config import COLUMNS, HEAD_DIMS, kernel_head_dim

    if target != "cuda:90":
        return f"for {target}, only for cuda:90"
    if dtype == "float32":
        return f"in {dtype}, only in float16 and bfloat16"
    if kernel_head_dim(head_dim) is None:
        return f"for head_dim {head_dim}, only for multiples of {COLUMNS} up to {HEAD_DIMS[-1]}"
    return None


def _hopper_kernel(name: str, head_dim: int, dtype: torch.dtype) -> Kernel:
    """The variant of large launches: attention has many keys and tiles, gradients are summed in any order."""
    from compilemask.lowering.tiling_to_ttg.attention import HopperConfig, Schedule
    from compilemask.lowering.tiling_to_ttg.attention_backward import HopperBackwardConfig
    from compilemask.lowering.tiling_to_ttg.attention_config import kernel_head_dim
    from compilemask.runtime.gpu.attention_cuda import ELEMENTS
    from compilemask.runtime.gpu.hopper import hopper_text
    from compilemask.runtime.gpu.hopper_backward import backward_text
    from compilemask.runtime.gpu.hopper_compile import compile_gpu_kernel

    dim = kernel_head_dim(head_dim) or head_dim
    if name == "hopper-attention":
        config = replace(HopperConfig.choose(dim, ELEMENTS[dtype]), schedule=Schedule.ATOMIC)
        text = cache(partial(hopper_text, dim, dtype, config))
    else:
        text = cache(partial(backward_text, dim, dtype, HopperBackwardConfig.choose(dim, ELEMENTS[dtype])))
    return Kernel(text, lambda: compile_gpu_kernel(text()))


def table(codes: Mapping[str, MachineCode], digests: Mapping[str, str]) -> str:
    """One line per kernel."""
    titles = ("kernel", "warps", "registers", "stack B", "spills", "shared B", "PTX lines", "SASS instructions", "IR")
    rows: list[tuple[object, ...]] = [titles]
    for name, code in codes.items():
        numbers = (code.warps, code.registers, code.stack_bytes, code.spills, code.shared_bytes)
        rows.append((name, *numbers, code.ptx.count("\n"), code.instructions, digests[name]))
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(titles))]
    return "".join(
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]) + "\n"
        for row in cells
    )


__all__ = ["add_inspect", "kernels_of", "run"]
