"""What a `tt` kernel computes, on numpy: `run_kernel` runs every program of a grid, one after the other.

Integers wrap at their width, bf16 values are float32 values rounded after each operation, products accumulate in
float32. Lanes with a false mask touch no memory. Undefined values (a masked load without `other`, a float out of an
integer's range, an oversized shift) are NaN or the byte 0xCD repeated, so that a use of one shows. An access outside of
an array raises `MemoryFault`, which names the operation and the program.

The products of tiles are small: on a busy machine OPENBLAS_NUM_THREADS=1 makes them up to a hundred times faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects import math as xdsl_math
from xdsl.dialects import scf
from xdsl.dialects.builtin import (
    BFloat16Type,
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    i1,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue

from compilemask.dialects import arith
from compilemask.dialects.narrowing import is_integer
from compilemask.dialects.semantics.triton_memory import (
    Array,
    Memory,
    MemoryFault,
    array_dtype,
    bf16_to_bits,
    bits_to_bf16,
    poison,
    round_bf16,
    storage_dtype,
)
from compilemask.dialects.semantics.triton_ptx import ptx
from compilemask.dialects.triton import tt
from compilemask.dialects.triton.enums import RMW_OPS, enum_name
from compilemask.dialects.triton.ttg_compute import ElementwiseInlineAsmOp
from compilemask.dialects.triton.types import PointerType, element_of, shape_of
from compilemask.errors import LoweringError

__all__ = ["MemoryFault", "run_kernel"]

Results: TypeAlias = Sequence[Array]


def run_kernel(
    kernel: ModuleOp | tt.FuncOp,
    grid: int | Sequence[int],
    args: Sequence[Any] | Mapping[str, Any],
    *,
    seed: int | None = None,
) -> None:
    """Run every program of `grid`; array arguments are flat memory and change in place.

    Pointers take C-contiguous numpy arrays of the pointee's size (bf16: two-byte patterns, or float32 values), scalars
    take Python numbers. `args` is a sequence, or a mapping from argument names. With `seed` the programs run in random
    order. Raises MemoryFault, and TypeError or ValueError for arguments that do not fit, `tt.divisibility` included.
    """
    func = kernel if isinstance(kernel, tt.FuncOp) else _only_kernel(kernel)
    sizes = (grid,) if isinstance(grid, int) else tuple(grid)
    sizes = (*sizes, *(1,) * (3 - len(sizes)))
    memory = Memory()
    values = _bind(func, args, memory)
    programs = [(x, y, z) for z in range(sizes[2]) for y in range(sizes[1]) for x in range(sizes[0])]
    if seed is not None:
        np.random.default_rng(seed).shuffle(programs)
    machine = Machine(memory, sizes)
    with np.errstate(all="ignore"):
        for program in programs:
            machine.run(func.body.block, values, (int(program[0]), int(program[1]), int(program[2])))
    memory.write_back()


def _only_kernel(module: ModuleOp) -> tt.FuncOp:
    kernels = [op for op in module.ops if isinstance(op, tt.FuncOp)]
    if len(kernels) != 1:
        raise ValueError(f"the module has {len(kernels)} kernels, one is needed")
    return kernels[0]


def _bind(func: tt.FuncOp, args: Sequence[Any] | Mapping[str, Any], memory: Memory) -> list[Array]:
    block_args = func.body.block.args
    names = [argument.name_hint or f"arg{index}" for index, argument in enumerate(block_args)]
    given = [args[name] for name in names] if isinstance(args, Mapping) else list(args)
    if len(args) != len(names) or len(given) != len(names):
        raise ValueError(f"@{func.sym_name.data} takes {', '.join(names)}; {len(args)} arguments given")
    values: list[Array] = []
    for index, (name, value, argument) in enumerate(zip(names, given, block_args, strict=True)):
        if isinstance(argument.type, PointerType):
            values.append(np.asarray(memory.add(name, value, argument.type.pointee_type)))
            continue
        scalar = scalar_argument(name, value, argument.type)
        values.append(scalar)
        attributes: Mapping[str, Attribute] = func.arg_attrs.data[index].data if func.arg_attrs is not None else {}
        divisor = attributes.get("tt.divisibility")
        if is_integer(divisor) and int(scalar) % divisor.value.data:
            raise ValueError(f"argument {name} = {value} is not a multiple of {divisor.value.data}")
    return values


def scalar_argument(name: str, value: Any, type_: Attribute) -> Array:
    """A scalar of a kernel's argument. Raises TypeError if it is no value of the type."""
    dtype = array_dtype(type_)
    if dtype.kind == "i":
        if int(value) != value or not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
            raise TypeError(f"argument {name}: {value} is no {type_}")
        return np.asarray(int(value), dtype=dtype)
    return _as_element(np.asarray(value, dtype=dtype), type_)


class Machine:
    """Runs blocks: one environment of SSA values a program, one decoded list of steps a block."""

    def __init__(self, memory: Memory, grid: tuple[int, ...]) -> None:
        self.memory, self.grid = memory, grid
        self.program: tuple[int, int, int] = (0, 0, 0)
        self._env: dict[SSAValue, Array] = {}
        self._steps: dict[Block, list[tuple[_Handler, Operation]]] = {}

    def run(self, block: Block, args: Sequence[Array], program: tuple[int, int, int]) -> None:
        """Run one program."""
        self._env, self.program = {}, program
        self.run_block(block, args)

    def run_block(self, block: Block, args: Sequence[Array]) -> tuple[Operation, list[Array]]:
        """Run a block; gives its terminator and the terminator's operands."""
        env = self._env
        env.update(zip(block.args, args, strict=True))
        for handler, op in self._decode(block):
            operands = [env[operand] for operand in op.operands]
            try:
                results = handler(self, op, operands)
            except (MemoryFault, ZeroDivisionError) as error:
                raise self._located(error, op) from error
            for result, value in zip(op.results, results, strict=True):
                env[result] = value
        last = block.last_op
        assert last is not None
        return last, [env[operand] for operand in last.operands]

    def _decode(self, block: Block) -> list[tuple[_Handler, Operation]]:
        if block not in self._steps:
            steps: list[tuple[_Handler, Operation]] = []
            for op in block.ops:
                if isinstance(op, _TERMINATORS):
                    break
                if type(op) not in HANDLERS:
                    raise LoweringError(f"{op.name} has no semantics here")
                steps.append((HANDLERS[type(op)], op))
            self._steps[block] = steps
        return self._steps[block]

    def _located(self, error: Exception, op: Operation) -> Exception:
        if getattr(error, "located", False):
            return error
        text = str(op).split("\n")[0]
        located = type(error)(f"{op.name} in program {self.program}: {error} ({text})")
        located.located = True  # pyright: ignore[reportAttributeAccessIssue]
        return located


_Handler: TypeAlias = Callable[[Machine, Operation, list[Array]], Results]
_TERMINATORS = (tt.ReturnOp, tt.ReduceReturnOp, tt.ScanReturnOp, scf.YieldOp, scf.ConditionOp)


def _as_element(values: Array, element: Attribute) -> Array:
    """Values rounded or wrapped to an element type."""
    if isinstance(element, BFloat16Type):
        return round_bf16(values)
    return np.asarray(values, dtype=array_dtype(element))


# ---------------------------------------------------------------- arith and math


def _constant(_: Machine, op: Operation, __: list[Array]) -> Results:
    assert isinstance(op, xdsl_arith.ConstantOp)
    element = element_of(op.result.type)
    if isinstance(op.value, IntegerAttr | FloatAttr):
        return (_as_element(np.asarray(op.value.value.data), element),)
    assert isinstance(op.value, DenseIntOrFPElementsAttr)
    values = np.asarray(list(op.value.get_values())).reshape(shape_of(op.result.type))  # pyright: ignore[reportAttributeAccessIssue]
    return (_as_element(values, element),)


def _unsigned(values: Array) -> Array:
    return values.view(f"u{values.dtype.itemsize}") if values.dtype.kind == "i" else values


def _on_unsigned(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: np.asarray(function(_unsigned(a), _unsigned(b))).astype(a.dtype)


def _truncated_quotient(a: Array, b: Array) -> Array:
    return np.asarray((a - np.fmod(a, _nonzero(b))) // b)


def _nonzero(divisor: Array) -> Array:
    if not np.all(divisor):
        raise ZeroDivisionError("integer division by zero")
    return divisor


def _shift(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def shifted(a: Array, b: Array) -> Array:
        width = a.dtype.itemsize * 8
        fits = (b >= 0) & (b < width)
        result = function(a, np.where(fits, b, 0).astype(a.dtype))
        return result if np.all(fits) else np.where(fits, result, poison(IntegerType(width)))

    return shifted


_BINARY: dict[type[Operation], Callable[[Array, Array], Array]] = {
    xdsl_arith.AddiOp: np.add,
    xdsl_arith.SubiOp: np.subtract,
    xdsl_arith.MuliOp: np.multiply,
    xdsl_arith.DivSIOp: _truncated_quotient,
    xdsl_arith.RemSIOp: lambda a, b: np.fmod(a, _nonzero(b)),
    xdsl_arith.DivUIOp: _on_unsigned(lambda a, b: a // _nonzero(b)),
    xdsl_arith.RemUIOp: _on_unsigned(lambda a, b: a % _nonzero(b)),
    xdsl_arith.MinSIOp: np.minimum,
    xdsl_arith.MaxSIOp: np.maximum,
    xdsl_arith.MinUIOp: _on_unsigned(np.minimum),
    xdsl_arith.MaxUIOp: _on_unsigned(np.maximum),
    xdsl_arith.AndIOp: np.bitwise_and,
    xdsl_arith.OrIOp: np.bitwise_or,
    xdsl_arith.XOrIOp: np.bitwise_xor,
    xdsl_arith.ShLIOp: _shift(np.left_shift),
    xdsl_arith.ShRSIOp: _shift(np.right_shift),
    xdsl_arith.ShRUIOp: _shift(_on_unsigned(np.right_shift)),
    xdsl_arith.AddfOp: np.add,
    xdsl_arith.SubfOp: np.subtract,
    xdsl_arith.MulfOp: np.multiply,
    xdsl_arith.DivfOp: np.divide,
    xdsl_arith.MaxnumfOp: np.fmax,
    xdsl_arith.MinnumfOp: np.fmin,
    xdsl_arith.MaximumfOp: np.maximum,
    xdsl_arith.MinimumfOp: np.minimum,
}
_UNARY: dict[type[Operation], Callable[[Array], Array]] = {
    xdsl_arith.NegfOp: np.negative,
    xdsl_math.AbsFOp: np.abs,
    xdsl_math.AbsIOp: np.abs,
    xdsl_math.ExpOp: np.exp,
    xdsl_math.Exp2Op: np.exp2,
    xdsl_math.LogOp: np.log,
    xdsl_math.Log2Op: np.log2,
    xdsl_math.SqrtOp: np.sqrt,
    xdsl_math.RsqrtOp: lambda x: 1 / np.sqrt(x),
    xdsl_math.TanhOp: np.tanh,
    xdsl_math.SinOp: np.sin,
    xdsl_math.CosOp: np.cos,
    xdsl_math.FloorOp: np.floor,
    xdsl_math.CeilOp: np.ceil,
}
_RELATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _elementwise(function: Callable[..., Array]) -> _Handler:
    def handler(_: Machine, op: Operation, operands: list[Array]) -> Results:
        return (_as_element(function(*operands), element_of(op.results[0].type)),)

    return handler


def _compare_integers(_: Machine, op: Operation, operands: list[Array]) -> Results:
    assert isinstance(op, arith.CmpiOp)
    a, b, name = *operands, op.predicate_name
    if name in ("eq", "ne"):
        return (_RELATIONS[name](a, b),)
    return (_RELATIONS[name[1:]](_unsigned(a), _unsigned(b)) if name[0] == "u" else _RELATIONS[name[1:]](a, b),)


def _compare_floats(_: Machine, op: Operation, operands: list[Array]) -> Results:
    assert isinstance(op, arith.CmpfOp)
    a, b, name = *operands, op.predicate_name
    unordered = np.isnan(a) | np.isnan(b)
    if name in ("ord", "uno"):
        return (unordered == (name == "uno"),)
    if name in ("true", "false"):
        return (np.full_like(unordered, name == "true"),)
    ordered = _RELATIONS[name[1:]](a, b) & ~unordered
    return (ordered | unordered if name[0] == "u" else ordered,)


def _cast(_: Machine, op: Operation, operands: list[Array]) -> Results:
    (value,) = operands
    source, target = element_of(op.operands[0].type), element_of(op.results[0].type)
    if isinstance(op, arith.ExtUIOp | arith.UIToFPOp):
        value = _unsigned(value)
    elif isinstance(op, arith.ExtSIOp | arith.SIToFPOp) and source == i1:
        value = -value.astype(np.int8)
    elif isinstance(op, arith.TruncIOp) and target == i1:
        value = value & 1
    elif isinstance(op, arith.FPToSIOp | arith.FPToUIOp):
        return (_float_to_integer(value, target, unsigned=isinstance(op, arith.FPToUIOp)),)
    return (_as_element(value, target),)


def _float_to_integer(value: Array, target: Attribute, *, unsigned: bool) -> Array:
    dtype = array_dtype(target)
    limits = np.iinfo(f"u{dtype.itemsize}" if unsigned else dtype)
    whole = np.trunc(value.astype(np.float64))
    fits = (whole >= limits.min) & (whole < float(limits.max) + 1)
    converted = np.where(fits, whole, 0).astype(limits.dtype).astype(dtype)
    return np.where(fits, converted, poison(target))


def _bitcast(_: Machine, op: Operation, operands: list[Array]) -> Results:
    source, target = element_of(op.operands[0].type), element_of(op.results[0].type)
    (value,) = operands
    if isinstance(source, PointerType):
        return (value,)
    raw = bf16_to_bits(value) if isinstance(source, BFloat16Type) else np.ascontiguousarray(value).reshape(value.shape)
    if isinstance(target, BFloat16Type):
        return (bits_to_bf16(raw.view(np.uint16)),)
    return (raw.view(storage_dtype(target)),)


def _inline_asm(machine: Machine, op: Operation, operands: list[Array]) -> Results:
    assert isinstance(op, ElementwiseInlineAsmOp)
    return (ptx(op.asm_string.data, operands, machine.memory),)


def _select(_: Machine, __: Operation, operands: list[Array]) -> Results:
    return (np.where(operands[0], operands[1], operands[2]),)


# ---------------------------------------------------------------- tensors


def _program_id(machine: Machine, op: Operation, _: list[Array]) -> Results:
    assert isinstance(op, tt.GetProgramIdOp)
    return (np.asarray(machine.program[op.axis.value.data], dtype=np.int32),)


def _num_programs(machine: Machine, op: Operation, _: list[Array]) -> Results:
    assert isinstance(op, tt.GetNumProgramsOp)
    return (np.asarray(machine.grid[op.axis.value.data], dtype=np.int32),)


def _make_range(_: Machine, op: Operation, __: list[Array]) -> Results:
    assert isinstance(op, tt.MakeRangeOp)
    return (np.arange(op.start.value.data, op.end.value.data, dtype=np.int32),)


def _broadcast(_: Machine, op: Operation, operands: list[Array]) -> Results:
    return (np.broadcast_to(operands[0], shape_of(op.results[0].type)),)


def _reshape(_: Machine, op: Operation, operands: list[Array]) -> Results:
    return (operands[0].reshape(shape_of(op.results[0].type)),)


def _trans(_: Machine, op: Operation, operands: list[Array]) -> Results:
    assert isinstance(op, tt.TransOp)
    return (operands[0].transpose([int(i) for i in op.order.get_values()]),)


def _join(_: Machine, __: Operation, operands: list[Array]) -> Results:
    return (np.stack(operands, axis=-1),)


def _split(_: Machine, __: Operation, operands: list[Array]) -> Results:
    return operands[0][..., 0], operands[0][..., 1]


def _dot(_: Machine, op: Operation, operands: list[Array]) -> Results:
    assert isinstance(op, tt.DotOp)
    a, b, c = operands
    inner = np.float64 if a.dtype == np.float64 else np.float32 if a.dtype.kind == "f" else np.int32
    product = np.matmul(a.astype(inner, copy=False), b.astype(inner, copy=False))
    return (_as_element(product + c, element_of(op.result.type)),)


def _reduce(machine: Machine, op: Operation, operands: list[Array]) -> Results:
    """Neighbours combined until one element is left: needs the combination to be associative, not commutative."""
    assert isinstance(op, tt.ReduceOp)
    axis = op.axis.value.data
    current = [np.moveaxis(value, axis, 0) for value in operands]
    while (count := len(current[0])) > 1:
        even = count - count % 2
        pairs = [value[0:even:2] for value in current] + [value[1:even:2] for value in current]
        combined = machine.run_block(op.combine.block, pairs)[1]
        rest = [value[even:] for value in current]
        current = [np.concatenate([c, r]) if len(r) else c for c, r in zip(combined, rest, strict=True)]
    return [value[0] for value in current]


def _scan(machine: Machine, op: Operation, operands: list[Array]) -> Results:
    assert isinstance(op, tt.ScanOp)
    axis, reverse = op.axis.value.data, bool(op.reverse.value.data)
    current = [np.flip(value, axis) if reverse else value for value in operands]
    current = [np.moveaxis(value, axis, 0) for value in current]
    distance = 1
    while distance < len(current[0]):
        pairs = [value[:-distance] for value in current] + [value[distance:] for value in current]
        combined = machine.run_block(op.combine.block, pairs)[1]
        current = [np.concatenate([v[:distance], c]) for v, c in zip(current, combined, strict=True)]
        distance *= 2
    current = [np.moveaxis(value, 0, axis) for value in current]
    return [np.flip(value, axis) if reverse else value for value in current]


# ---------------------------------------------------------------- memory


def _addptr(_: Machine, op: Operation, operands: list[Array]) -> Results:
    pointer = element_of(op.operands[0].type)
    assert isinstance(pointer, PointerType)
    return (operands[0] + operands[1].astype(np.int64) * storage_dtype(pointer.pointee_type).itemsize,)


def _same(_: Machine, __: Operation, operands: list[Array]) -> Results:
    return operands


def _active(addresses: Array, mask: Array | None) -> Array:
    return np.reshape(addresses, -1) if mask is None else np.asarray(addresses)[mask].reshape(-1)


def _load(machine: Machine, op: Operation, operands: list[Array]) -> Results:
    assert isinstance(op, tt.LoadOp)
    addresses, element = operands[0], element_of(op.result.type)
    mask = operands[1] if op.mask is not None else None
    loaded = machine.memory.load(_active(addresses, mask), element)
    if mask is None:
        return (loaded.reshape(addresses.shape),)
    fill = operands[2] if op.other is not None else poison(element)
    result = np.array(np.broadcast_to(fill, addresses.shape), dtype=array_dtype(element))
    result[mask] = loaded
    return (result,)


def _store(machine: Machine, op: Operation, operands: list[Array]) -> Results:
    assert isinstance(op, tt.StoreOp)
    mask = operands[2] if op.mask is not None else None
    values = np.broadcast_to(operands[1], operands[0].shape)
    element = element_of(op.value.type)
    machine.memory.store(_active(operands[0], mask), _active(values, mask), element)
    return ()


_RMW: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "fadd": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "max": np.maximum,
    "min": np.minimum,
    "umax": _on_unsigned(np.maximum),
    "umin": _on_unsigned(np.minimum),
    "exch": lambda _, new: new,
}


def _atomic_rmw(machine: Machine, op: Operation, operands: list[Array]) -> Results:
    assert isinstance(op, tt.AtomicRMWOp)
    element, combine = element_of(op.val.type), _RMW[enum_name(RMW_OPS, op.atomic_rmw_op)]
    mask = operands[2] if op.mask is not None else None
    addresses, values = _active(operands[0], mask), _active(operands[1], mask)
    if len(np.unique(addresses)) == len(addresses):
        old = machine.memory.load(addresses, element)
        machine.memory.store(addresses, _as_element(combine(old, values), element), element)
    else:
        old = values.copy()
        for lane in range(len(addresses)):
            one = slice(lane, lane + 1)
            old[one] = machine.memory.load(addresses[one], element)
            machine.memory.store(addresses[one], _as_element(combine(old[one], values[one]), element), element)
    if mask is None:
        return (old.reshape(operands[0].shape),)
    result = np.full(operands[0].shape, poison(element), dtype=array_dtype(element))
    result[mask] = old
    return (result,)


# ---------------------------------------------------------------- control flow


def _for(machine: Machine, op: Operation, operands: list[Array]) -> Results:
    assert isinstance(op, scf.ForOp)
    lower, upper, step, *carried = operands
    if step <= 0:
        raise ValueError(f"scf.for with step {step}")
    for index in range(int(lower), int(upper), int(step)):
        carried = machine.run_block(op.body.block, [np.asarray(index, dtype=lower.dtype), *carried])[1]
    return carried


def _if(machine: Machine, op: Operation, operands: list[Array]) -> Results:
    assert isinstance(op, scf.IfOp)
    region = op.true_region if operands[0] else op.false_region
    return machine.run_block(region.block, [])[1] if region.blocks else ()


def _while(machine: Machine, op: Operation, operands: list[Array]) -> Results:
    assert isinstance(op, scf.WhileOp)
    carried = operands
    while True:
        go_on, *passed = machine.run_block(op.before_region.block, carried)[1]
        if not go_on:
            return passed
        carried = machine.run_block(op.after_region.block, passed)[1]


HANDLERS: dict[type[Operation], _Handler] = {
    **{op: _elementwise(function) for op, function in _BINARY.items()},
    **{op: _elementwise(function) for op, function in _UNARY.items()},
    **dict.fromkeys((arith.ExtSIOp, arith.ExtUIOp, arith.TruncIOp, arith.ExtFOp, arith.TruncFOp), _cast),
    **dict.fromkeys((arith.SIToFPOp, arith.UIToFPOp, arith.FPToSIOp, arith.FPToUIOp), _cast),
    xdsl_arith.ConstantOp: _constant,
    arith.CmpiOp: _compare_integers,
    arith.CmpfOp: _compare_floats,
    arith.SelectOp: _select,
    arith.BitcastOp: _bitcast,
    ElementwiseInlineAsmOp: _inline_asm,
    tt.BitcastOp: _bitcast,
    tt.GetProgramIdOp: _program_id,
    tt.GetNumProgramsOp: _num_programs,
    tt.MakeRangeOp: _make_range,
    tt.SplatOp: _broadcast,
    tt.BroadcastOp: _broadcast,
    tt.ExpandDimsOp: _reshape,
    tt.ReshapeOp: _reshape,
    tt.UnsplatOp: _reshape,
    tt.TransOp: _trans,
    tt.JoinOp: _join,
    tt.SplitOp: _split,
    tt.DotOp: _dot,
    tt.ReduceOp: _reduce,
    tt.ScanOp: _scan,
    tt.AddPtrOp: _addptr,
    tt.PtrToIntOp: _same,
    tt.IntToPtrOp: _same,
    tt.LoadOp: _load,
    tt.StoreOp: _store,
    tt.AtomicRMWOp: _atomic_rmw,
    scf.ForOp: _for,
    scf.IfOp: _if,
    scf.WhileOp: _while,
}
