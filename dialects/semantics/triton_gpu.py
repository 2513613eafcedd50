"""What a kernel in Triton-GPU IR computes, on numpy, with everything that runs at once: `run_kernel`.

    out = np.zeros((64, 64), np.float32)
    run_kernel(module, (1, 1), {"a": TensorMap(a), "b": TensorMap(b), "d": TensorMap(out), "steps": 4}, seed=7)

Partitions of warps run in an order that the seed decides, and TMA loads end at any time before their barrier's wait.
Found in every order, with the operation, partition and program: memory touched without having waited for who used it
last, operands of products or copies overwritten while they are read, results used before they are there, missing
fences, too many arrivals, bytes, copies and products that nobody waits for. A `DeadlockError` says who waits for what.

Not modelled: register layouts (tensors are whole arrays; the verifier checks layouts), registers, time, clusters,
races in global memory, and buffers that share an address because their lives do not overlap. A partition is one
thread, as Triton puts barriers between its warps where they share memory. Portable operations: see `triton.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects import gpu, scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.traits import Pure

from compilemask.dialects.narrowing import is_integer
from compilemask.dialects.semantics import triton as portable
from compilemask.dialects.semantics.triton_gpu_ops import (
    HANDLERS,
    MAY_TAKE_PRODUCTS,
    WAITING_HANDLERS,
    Handler,
    Program,
    WaitingHandler,
    is_named_barrier,
    named_barrier,
)
from compilemask.dialects.semantics.triton_gpu_order import DeadlockError, History, KernelError
from compilemask.dialects.semantics.triton_gpu_product import Product
from compilemask.dialects.semantics.triton_gpu_schedule import Scheduler, Steps, Wait
from compilemask.dialects.semantics.triton_gpu_tma import Descriptor, Store, TensorMap
from compilemask.dialects.semantics.triton_memory import Array, Memory, MemoryFault
from compilemask.dialects.triton import tt, ttg
from compilemask.dialects.triton.ttg_module import NUM_WARPS, TMA_ARGUMENT
from compilemask.dialects.triton.ttg_types import TensorDescType
from compilemask.dialects.triton.types import PointerType
from compilemask.errors import LoweringError

__all__ = ["DeadlockError", "KernelError", "MemoryFault", "TensorMap", "run_kernel"]

ProgramId: TypeAlias = tuple[int, int, int]
_TERMINATORS = (
    tt.ReturnOp,
    tt.ReduceReturnOp,
    scf.YieldOp,
    scf.ConditionOp,
    ttg.WarpYieldOp,
    ttg.WarpReturnOp,
)
_Ends: TypeAlias = Generator[Wait | None, None, tuple[Operation, list[Any]]]
_Flow: TypeAlias = Generator[Wait | None, None, Sequence[Any]]
_LONGEST_TEXT = 160
"""Characters of an operation in an error."""


def run_kernel(
    kernel: ModuleOp,
    grid: int | Sequence[int],
    args: Sequence[Any] | Mapping[str, Any],
    *,
    seed: int = 0,
) -> None:
    """Run every program of `grid`, one after the other in random order; arrays change in place.

    Arguments are those of `triton.run_kernel`, and a `TensorMap` for each tensor map or descriptor. Raises KernelError,
    DeadlockError and MemoryFault, and TypeError or ValueError for arguments that do not fit.
    """
    func, num_warps = _kernel_of(kernel), kernel.attributes.get(NUM_WARPS)
    if not isinstance(num_warps, IntegerAttr):
        raise ValueError(f"the module has no attribute {NUM_WARPS}")
    sizes = (grid,) if isinstance(grid, int) else tuple(grid)
    sizes = (*sizes, *(1,) * (3 - len(sizes)))
    memory = Memory()
    values = _bind(func, args, memory)
    programs = [(x, y, z) for z in range(sizes[2]) for y in range(sizes[1]) for x in range(sizes[0])]
    rng = random.Random(seed)
    rng.shuffle(programs)
    code = _Code()
    with np.errstate(all="ignore"):
        for program_id in programs:
            program = Program(Scheduler(rng))
            machine = _Machine(memory, sizes, program_id, code)
            _run_program(program, machine, func.body.block, values, num_warps.value.data)
    memory.write_back()


def _kernel_of(module: ModuleOp) -> tt.FuncOp:
    kernels = [op for op in module.ops if isinstance(op, tt.FuncOp)]
    if len(kernels) != 1:
        raise ValueError(f"the module has {len(kernels)} kernels, one is needed")
    return kernels[0]


def _bind(func: tt.FuncOp, args: Sequence[Any] | Mapping[str, Any], memory: Memory) -> list[Any]:
    block_args = func.body.block.args
    names = [argument.name_hint or f"arg{index}" for index, argument in enumerate(block_args)]
    given = [args[name] for name in names] if isinstance(args, Mapping) else list(args)
    if len(args) != len(names) or len(given) != len(names):
        raise ValueError(f"@{func.sym_name.data} takes {', '.join(names)}; {len(args)} arguments given")
    values: list[Any] = []
    for index, (name, value, argument) in enumerate(zip(names, given, block_args, strict=True)):
        attributes: Mapping[str, Attribute] = func.arg_attrs.data[index].data if func.arg_attrs is not None else {}
        divisor = attributes.get("tt.divisibility")
        if isinstance(argument.type, TensorDescType) or TMA_ARGUMENT in attributes:
            if not isinstance(value, TensorMap):
                raise TypeError(f"argument {name}: {type(value).__name__} is no TensorMap")
            values.append(_descriptor_argument(name, value, argument.type))
        elif isinstance(argument.type, PointerType):
            values.append(np.asarray(memory.add(name, value, argument.type.pointee_type)))
        else:
            values.append(portable.scalar_argument(name, value, argument.type))
            if is_integer(divisor) and int(value) % divisor.value.data:
                raise ValueError(f"argument {name} = {value} is not a multiple of {divisor.value.data}")
    return values


def _descriptor_argument(name: str, value: TensorMap, type_: Any) -> TensorMap | Descriptor:
    if not isinstance(type_, TensorDescType):
        return value
    value.check(f"argument {name}", type_)
    return Descriptor(value, type_)


def _run_program(program: Program, machine: _Machine, block: Block, values: Sequence[Any], num_warps: int) -> None:
    history = History(program.agents, "default")
    main = _Partition(program, machine, history, "default", num_warps)
    where = f"program {machine.program}"
    program.scheduler.spawn(main.name, main.run(block, values))
    try:
        under_way = program.scheduler.run()
        for load in under_way:
            raise KernelError(f"{load.label} is under way at the end; nobody waits for it")
        for barrier in program.barriers.values():
            barrier.check_finished(history)
    except KernelError as error:
        if getattr(error, "located", False):
            raise
        raise type(error)(f"{where}: {error}") from error


class _Code:
    """What is kept of the kernel between programs: decoded blocks and constants."""

    def __init__(self) -> None:
        self.blocks: dict[Block, list[tuple[str, Any, Operation]]] = {}
        self.constants: dict[Operation, Array] = {}
        self.portable: dict[Block, Any] = {}


class _Machine(portable.Machine):
    """Runs the portable operations of one partition."""

    def __init__(self, memory: Memory, grid: tuple[int, ...], program: ProgramId, code: _Code) -> None:
        super().__init__(memory, grid)
        self.program, self.code = program, code
        self._steps = code.portable

    def of_partition(self) -> _Machine:
        """The same for another partition."""
        return _Machine(self.memory, self.grid, self.program, self.code)

    def bind(self, env: dict[SSAValue, Any]) -> None:
        """Regions of reductions see these values."""
        self._env = env


class _Partition:
    """Runs blocks on some warps, as a coroutine that yields before each operation that others can notice."""

    def __init__(self, program: Program, machine: _Machine, history: History, name: str, num_warps: int) -> None:
        self.program, self.machine, self.history = program, machine, history
        self.memory = machine.memory
        self.name, self.num_warps = name, num_warps
        self.products: list[Product] = []
        self.stores: list[Store] = []
        self.env: dict[SSAValue, Any] = {}
        machine.bind(self.env)

    def run(self, block: Block, args: Sequence[Any]) -> Steps:
        """Run to the end, where nothing may be left under way."""
        last, _ = yield from self.run_block(block, args)
        left = [*(product.label for product in self.products), *(store.label for store in self.stores)]
        if left:
            error = KernelError(f"{left[0]} is under way at the end; nobody waits for it")
            raise self._located(error, last)

    def run_block(self, block: Block, args: Sequence[Any]) -> _Ends:
        """Run a block; gives its terminator and the terminator's operands."""
        env = self.env
        env.update(zip(block.args, args, strict=True))
        for kind, handler, op in self._decode(block):
            operands = [env[operand] for operand in op.operands]
            results: Sequence[Any]
            try:
                if kind == "portable":
                    _check_products(operands)
                    results = handler(self.machine, op, operands)
                elif kind == "quiet":
                    results = handler(self, op, operands)
                elif kind == "step":
                    yield None
                    results = handler(self, op, operands)
                else:
                    flow: _Flow = handler(self, op, operands)
                    results = yield from flow
            except (KernelError, MemoryFault, ZeroDivisionError) as error:
                raise self._located(error, op) from error
            for result, value in zip(op.results, results, strict=True):
                env[result] = value
        last = block.last_op
        assert last is not None
        return last, [env[operand] for operand in last.operands]

    def _decode(self, block: Block) -> list[tuple[str, Any, Operation]]:
        blocks = self.machine.code.blocks
        if block not in blocks:
            blocks[block] = [_step(op) for op in block.ops if not isinstance(op, _TERMINATORS)]
        return blocks[block]

    def _located(self, error: Exception, op: Operation) -> Exception:
        if getattr(error, "located", False):
            return error
        text = str(op).split("\n")[0]
        text = text if len(text) < _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
        located = type(error)(f"{op.name} in {self.name} of program {self.machine.program}: {error} ({text})")
        located.located = True  # pyright: ignore[reportAttributeAccessIssue]
        return located


# ---------------------------------------------------------------- operations


def _step(op: Operation) -> tuple[str, Any, Operation]:
    """How an operation runs: at once, after others had a turn, or as a coroutine."""
    kind = type(op)
    if kind in _CONTROL_FLOW:
        return "flow", _CONTROL_FLOW[kind], op
    if kind in WAITING_HANDLERS:
        return "flow", _waiting(WAITING_HANDLERS[kind]), op
    if isinstance(op, ttg.ElementwiseInlineAsmOp) and is_named_barrier(op):
        return "flow", _waiting(named_barrier), op
    if isinstance(op, gpu.BarrierOp):
        return "quiet", _nothing, op
    if kind in HANDLERS:
        handler = HANDLERS[kind] if kind in MAY_TAKE_PRODUCTS else _without_products(HANDLERS[kind])
        return "quiet" if op.has_trait(Pure) else "step", handler, op
    if isinstance(op, xdsl_arith.ConstantOp):
        return "portable", _constant, op
    if kind in portable.HANDLERS:
        return "portable", portable.HANDLERS[kind], op
    raise LoweringError(f"{op.name} has no semantics here")


def _nothing(*_: Any) -> Sequence[Any]:
    return ()


def _check_products(operands: Sequence[Any]) -> None:
    for operand in operands:
        if isinstance(operand, Product):
            state = "it is in flight" if operand.value is None else "its value is the result of the wait"
            raise KernelError(f"a product is used before its ttng.warp_group_dot_wait; {state}")


def _without_products(handler: Handler) -> Handler:
    def checked(partition: Any, op: Any, operands: list[Any]) -> Sequence[Any]:
        _check_products(operands)
        return handler(partition, op, operands)

    return checked


def _constant(machine: _Machine, op: Operation, operands: list[Any]) -> Sequence[Any]:
    constants = machine.code.constants
    if op not in constants:
        (constants[op],) = portable.HANDLERS[xdsl_arith.ConstantOp](machine, op, operands)
    return (constants[op],)


def _waiting(handler: WaitingHandler) -> Callable[[_Partition, Operation, list[Any]], _Flow]:
    def run(partition: _Partition, op: Operation, operands: list[Any]) -> _Flow:
        yield None
        yield from handler(partition, op, operands)
        return operands[: len(op.results)]

    return run


def _for(partition: _Partition, op: scf.ForOp, operands: list[Any]) -> _Flow:
    lower, upper, step, *carried = operands
    if step <= 0:
        raise KernelError(f"scf.for with step {step}")
    for index in range(int(lower), int(upper), int(step)):
        _, carried = yield from partition.run_block(op.body.block, [np.asarray(index, dtype=lower.dtype), *carried])
    return carried


def _if(partition: _Partition, op: scf.IfOp, operands: list[Any]) -> _Flow:
    region = op.true_region if operands[0] else op.false_region
    if not region.blocks:
        return ()
    _, results = yield from partition.run_block(region.block, [])
    return results


def _while(partition: _Partition, op: scf.WhileOp, operands: list[Any]) -> _Flow:
    carried = operands
    while True:
        yield None
        _, (go_on, *passed) = yield from partition.run_block(op.before_region.block, carried)
        if not go_on:
            return passed
        _, carried = yield from partition.run_block(op.after_region.block, passed)


def _warp_specialize(main: _Partition, op: ttg.WarpSpecializeOp, operands: list[Any]) -> _Flow:
    program, inner = main.program, op.partitions_op
    captures = [*operands, *(main.env[capture] for capture in inner.captures)]
    others: list[tuple[_Partition, Wait]] = []
    for number, (region, num_warps) in enumerate(zip(inner.partitions, op.num_warps, strict=True)):
        name = f"partition {number}"
        history = History(program.agents, name, main.history)
        partition = _Partition(program, main.machine.of_partition(), history, name, num_warps)
        others.append((partition, program.scheduler.spawn(name, partition.run(region.block, captures))))
    yield None
    _, results = yield from main.run_block(op.default.block, [])
    for partition, end in others:
        yield end
        main.history.acquire(partition.history.clock)
    return results


_CONTROL_FLOW: dict[type[Operation], Callable[[_Partition, Any, list[Any]], _Flow]] = {
    scf.ForOp: _for,
    scf.IfOp: _if,
    scf.WhileOp: _while,
    ttg.WarpSpecializeOp: _warp_specialize,
}
