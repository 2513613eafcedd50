"""`compilemask inspect`: what the kernels of a mask need of the hardware, and their PTX and SASS."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from compilemask.errors import DTypeError, TargetError
from compilemask.tools.arguments import add_mask, length, mask_of

if TYPE_CHECKING:
    from compilemask.language.mask import Mask
    from compilemask.runtime.machine_code import MachineCode

KERNELS = ("count", "fill", "patterns", "attention")
DTYPES = ("float16", "bfloat16", "float32")


def add_inspect(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_mask(parser)
    parser.add_argument("--target", default="cuda:90", help="GPU (default: cuda:90); none needs to be there")
    parser.add_argument("--head-dim", type=length, default=128, metavar="D", help="of the attention (default: 128)")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES, help="of the attention (default: bfloat16)")
    parser.add_argument(
        "--kernel", action="append", choices=KERNELS, default=[], help="only this one (default: all that run)"
    )
    code = parser.add_mutually_exclusive_group()
    code.add_argument("--ptx", action="store_true", help="print the PTX instead")
    code.add_argument("--sass", action="store_true", help="print the machine code instead; needs cuobjdump")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """The command."""
    from compilemask.runtime.kernel_text import readable

    codes = machine_codes(
        mask_of(options), options.target, options.head_dim, options.dtype, options.kernel or list(KERNELS)
    )
    if options.ptx:
        print("\n".join(f"// {name}\n{readable(code.ptx, 'ptx')}" for name, code in codes.items()))
    elif options.sass:
        if any(code.sass is None for code in codes.values()):
            raise TargetError("SASS needs cuobjdump, of the CUDA toolkit or of Triton; none was found")
        print("\n".join(f"// {name}\n{code.sass}" for name, code in codes.items()))
    else:
        print(table(codes), end="")
    return 0


def machine_codes(
    mask: Mask, target: str, head_dim: int, dtype: str, names: list[str] | tuple[str, ...] = KERNELS
) -> dict[str, MachineCode]:
    """The kernels that build a mask's descriptor and the portable one that follows it, by name.

    Raises:
        TargetError: the target is unknown or no cuda target.
        ShapeError, DTypeError: there is no attention kernel for this head_dim or dtype.
    """
    import torch

    import compilemask as cm
    from compilemask.runtime.attention_cuda import attention_kernel
    from compilemask.runtime.compile_kernel import DEFAULT
    from compilemask.runtime.kernel_text import check_kernel_request
    from compilemask.runtime.machine_code import machine_code

    element = getattr(torch, dtype, None)
    if not isinstance(element, torch.dtype):
        raise DTypeError(f"dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")
    check_kernel_request("ptx", target, head_dim, element)
    program = cm.compile(mask).program
    found: dict[str, MachineCode] = {}
    for name in names:
        if name == "attention":
            kernel = attention_kernel(head_dim, element, target)
            found[name] = machine_code(kernel.text, target, kernel.options)
        else:
            found[name] = machine_code(program.kernels[name], target, DEFAULT)
    return found


def table(codes: Mapping[str, MachineCode]) -> str:
    """One line per kernel."""
    titles = ("kernel", "warps", "registers", "stack B", "spills", "shared B", "PTX lines", "SASS instructions")
    rows: list[tuple[object, ...]] = [titles]
    for name, code in codes.items():
        numbers = (code.warps, code.registers, code.stack_bytes, code.spills, code.shared_bytes)
        rows.append((name, *numbers, code.ptx.count("\n"), code.instructions))
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(titles))]
    return "".join(
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]) + "\n"
        for row in cells
    )


__all__ = ["add_inspect", "machine_codes", "run"]
