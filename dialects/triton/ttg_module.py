"""What a whole module in Triton-GPU IR must say before Triton may see it.

Triton ends its process, without an error that Python could catch, where a module attribute is missing or an
instruction does not exist on the target; `verify_gpu_module` finds those mistakes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, TensorType, i8, i32
from xdsl.ir import Attribute, Block, Operation
from xdsl.utils.exceptions import VerifyException

from compilemask.dialects.narrowing import is_integer
from compilemask.dialects.triton import ttng
from compilemask.dialects.triton.layouts import WARP_SIZE, RegisterLayout
from compilemask.dialects.triton.tt import FuncOp
from compilemask.dialects.triton.tt_compute import DotOp
from compilemask.dialects.triton.ttg_specialize import (
    MAX_WARPS,
    MIN_REGISTERS,
    WARPGROUP,
    WarpSpecializeOp,
    WarpSpecializePartitionsOp,
)
from compilemask.dialects.triton.ttg_types import TensorDescType
from compilemask.dialects.triton.types import PointerType, require

NUM_WARPS, NUM_CTAS, WARP_THREADS, TARGET, MAX_REGISTERS = (
    "ttg.num-warps",
    "ttg.num-ctas",
    "ttg.threads-per-warp",
    "ttg.target",
    "ttg.maxnreg",
)
TMA_ARGUMENT = "tt.nv_tma_desc"
"""Attribute of a kernel argument, `!tt.ptr<i8, 0>` or a descriptor, that holds a tensor map by value."""

HOPPER = 90
REGISTER_FILE = 65536
"""Registers of a multiprocessor."""

_WGMMA = (ttng.WarpGroupDotOp, ttng.WarpGroupDotWaitOp)


def module_attributes(num_warps: int, arch: int = HOPPER, max_registers: int | None = None) -> dict[str, Attribute]:
    """The attributes of a module for `cuda:<arch>` whose default partition has `num_warps` warps, in one CTA."""
    attributes: dict[str, Attribute] = {
        NUM_CTAS: IntegerAttr(1, i32),
        NUM_WARPS: IntegerAttr(num_warps, i32),
        TARGET: StringAttr(f"cuda:{arch}"),
        WARP_THREADS: IntegerAttr(WARP_SIZE, i32),
    }
    if max_registers is not None:
        attributes[MAX_REGISTERS] = IntegerAttr(max_registers, i32)
    return attributes


def verify_gpu_module(module: ModuleOp) -> None:
    """Raise VerifyException unless Triton can compile the module: its operations, attributes, kernel and layouts."""
    module.verify()
    num_warps = _integer(module, NUM_WARPS)
    power_of_two = 0 < num_warps <= MAX_WARPS and num_warps & (num_warps - 1) == 0
    require(power_of_two, module, f"{NUM_WARPS} = {num_warps} is no power of two up to {MAX_WARPS}")
    require(_integer(module, NUM_CTAS) == 1, module, f"{NUM_CTAS} must be 1")
    require(_integer(module, WARP_THREADS) == WARP_SIZE, module, f"{WARP_THREADS} must be {WARP_SIZE}")
    arch = _arch(module)
    _verify_functions(module)
    for op in module.body.walk():
        _verify_operation(op, arch)
        if isinstance(op, WarpSpecializeOp):
            large = sum(warps for warps in op.num_warps if warps >= WARPGROUP)
            total = num_warps + large + _rounded(op.num_warps)
            require(total <= MAX_WARPS, op, f"{total} warps in all; a program has at most {MAX_WARPS}")
            _verify_specialization(op, num_warps)
    _verify_layouts(module.body.blocks, num_warps)


def _rounded(warps: Iterable[int]) -> int:
    """Warps that the partitions of less than a warpgroup take together."""
    return -(-sum(number for number in warps if number < WARPGROUP) // WARPGROUP) * WARPGROUP


def _verify_specialization(op: WarpSpecializeOp, num_warps: int) -> None:
    """Not inside another one; the registers asked for, and the fewest for the default region, fit the multiprocessor.

    Otherwise `setmaxnreg` would wait for registers that never become free.
    """
    parent = op.parent_op()
    while parent is not None:
        require(not isinstance(parent, WarpSpecializeOp), op, "cannot be inside another ttg.warp_specialize")
        parent = parent.parent_op()
    if op.requestedRegisters is None:
        return
    asked = list(zip(op.num_warps, map(int, op.requestedRegisters.get_values()), strict=True))
    small = [registers for warps, registers in asked if warps < WARPGROUP]
    groups = [(num_warps, MIN_REGISTERS), *((warps, registers) for warps, registers in asked if warps >= WARPGROUP)]
    groups += [(_rounded(op.num_warps), max(small))] if small else []
    total = sum(warps * WARP_SIZE * registers for warps, registers in groups)
    require(total <= REGISTER_FILE, op, f"{total} registers are asked for; a multiprocessor has {REGISTER_FILE}")


def _integer(module: ModuleOp, name: str) -> int:
    value = module.attributes.get(name)
    if not is_integer(value) or value.type != i32:
        raise VerifyException(f"{module.name}: the attribute {name} : i32 is missing")
    return value.value.data


def _arch(module: ModuleOp) -> int:
    target = module.attributes.get(TARGET)
    found = re.fullmatch(r"cuda:(\d+)", target.data) if isinstance(target, StringAttr) else None
    if found is None:
        raise VerifyException(f'{module.name}: the attribute {TARGET} = "cuda:<arch>" is missing')
    return int(found[1])


def _verify_functions(module: ModuleOp) -> None:
    functions = [op for op in module.ops if isinstance(op, FuncOp)]
    public = [op for op in functions if op.sym_visibility is None or op.sym_visibility.data == "public"]
    require(len(public) == 1, module, f"{len(public)} public functions; a module has exactly one kernel")
    for function in functions:
        attributes = function.arg_attrs.data if function.arg_attrs is not None else ()
        for type_, entries in zip(function.function_type.inputs.data, attributes, strict=False):
            if TMA_ARGUMENT in entries.data:
                fits = type_ == PointerType(i8, 0) or isinstance(type_, TensorDescType)
                require(fits, function, f"an argument with {TMA_ARGUMENT} is {type_}, not !tt.ptr<i8, 0>")


def _verify_operation(op: Operation, arch: int) -> None:
    if isinstance(op, _WGMMA):
        require(arch == HOPPER, op, f"wgmma exists on cuda:{HOPPER} only, not on cuda:{arch}")
    elif op.name.startswith("ttng."):
        require(arch >= HOPPER, op, f"needs cuda:{HOPPER} or later, not cuda:{arch}")
    require(not isinstance(op, DotOp), op, "has not been lowered to ttng.warp_group_dot")


def _verify_layouts(blocks: Iterable[Block], num_warps: int) -> None:
    """All tensors have layouts of their rank over the warps of the partition that they are in."""
    for block in blocks:
        for argument in block.args:
            _verify_tensor(argument.type, num_warps, block.parent_op())
        for op in block.ops:
            for result in op.results:
                _verify_tensor(result.type, num_warps, op)
            counts = [num_warps] * len(op.regions)
            if isinstance(op, WarpSpecializePartitionsOp) and isinstance(parent := op.parent_op(), WarpSpecializeOp):
                counts = parent.num_warps
            for region, count in zip(op.regions, counts, strict=True):
                _verify_layouts(region.blocks, count)


def _verify_tensor(type_: Attribute, num_warps: int, op: Operation | None) -> None:
    if not isinstance(type_, TensorType):
        return
    assert op is not None
    layout, shape = type_.encoding, type_.get_shape()
    if not isinstance(layout, RegisterLayout):
        raise VerifyException(f"{op.name}: {type_} has no register layout")
    require(layout.rank == len(shape), op, f"{type_} has a layout of rank {layout.rank}")
    require(
        layout.num_warps == num_warps, op, f"{type_} lies in {layout.num_warps} warps, the code runs on {num_warps}"
    )
    require(all(size > 0 and size & (size - 1) == 0 for size in shape), op, f"{type_}: powers of two only")
