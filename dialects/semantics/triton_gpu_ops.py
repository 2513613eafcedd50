"""What each operation of the `ttg` and `ttng` dialects does to a partition and to its program."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from xdsl.ir import Operation

from compilemask.dialects.semantics.triton_gpu_barriers import MBarrier, NamedBarrier
from compilemask.dialects.semantics.triton_gpu_order import Agents, History, KernelError
from compilemask.dialects.semantics.triton_gpu_product import Product
from compilemask.dialects.semantics.triton_gpu_schedule import Scheduler, Wait
from compilemask.dialects.semantics.triton_gpu_shared import Buffer, Storage, allocate, reinterpret
from compilemask.dialects.semantics.triton_gpu_tma import Descriptor, Load, Store, TensorMap
from compilemask.dialects.semantics.triton_memory import Memory
from compilemask.dialects.semantics.triton_ptx import ptx
from compilemask.dialects.triton import ttg, ttng
from compilemask.dialects.triton.enums import enum_name
from compilemask.dialects.triton.ttg_types import MemDescType, TensorDescType
from compilemask.dialects.triton.ttng_tma import REDUCE_KINDS
from compilemask.dialects.triton.types import element_of


class Program:
    """What the partitions of one program share."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.agents = Agents()
        self.storages: list[Storage] = []
        self.barriers: dict[tuple[int, int], MBarrier] = {}
        self.named_barriers: dict[int, NamedBarrier] = {}

    def barrier(self, buffer: Buffer, history: History, *, asynchronous: bool = False) -> MBarrier:
        """The mbarrier in a buffer, whose initialization the partition must have seen."""
        barrier = self.barriers.get(_place(buffer))
        if barrier is None:
            raise KernelError(f"{buffer} holds no mbarrier; ttng.init_barrier is missing")
        buffer.check_barrier(history, asynchronous=asynchronous)
        return barrier


class Partition(Protocol):
    """What an operation needs to know of the partition that runs it."""

    program: Program
    memory: Memory
    history: History
    name: str
    num_warps: int
    products: list[Product]
    stores: list[Store]


Results: TypeAlias = Sequence[Any]
Handler: TypeAlias = Callable[[Partition, Any, list[Any]], Results]
WaitingHandler: TypeAlias = Callable[[Partition, Any, list[Any]], Iterator[Wait]]
"""Yields what it waits for; such an operation has as many results as operands that it passes on, or none."""


def _place(buffer: Buffer) -> tuple[int, int]:
    return id(buffer.storage), buffer.start


def _type(op: Any) -> MemDescType:
    type_ = op.result.type
    assert isinstance(type_, MemDescType)
    return type_


# ---------------------------------------------------------------- shared memory


def _local_alloc(partition: Partition, op: ttg.LocalAllocOp, operands: list[Any]) -> Results:
    program = partition.program
    name = op.result.name_hint or f"buffer {len(program.storages)}"
    buffer = allocate(program.agents, _type(op), name)
    program.storages.append(buffer.storage)
    if operands:
        buffer.write(partition.history)
        buffer.put(operands[0])
    return (buffer,)


def _local_dealloc(partition: Partition, _: ttg.LocalDeallocOp, operands: list[Any]) -> Results:
    (buffer,) = operands
    buffer.write(partition.history)
    buffer.storage.alive = False
    return ()


def _local_load(partition: Partition, _: ttg.LocalLoadOp, operands: list[Any]) -> Results:
    buffer = operands[0]
    buffer.read(partition.history)
    return (buffer.get(),)


def _local_store(partition: Partition, _: ttg.LocalStoreOp, operands: list[Any]) -> Results:
    value, buffer = operands
    buffer.write(partition.history)
    buffer.put(value)
    return ()


def _index(_: Partition, op: ttg.MemDescIndexOp, operands: list[Any]) -> Results:
    array, index = operands[0], int(operands[1])
    if not 0 <= index < len(array.offsets):
        raise KernelError(f"no buffer {index} among the {len(array.offsets)} of {array}")
    name, type_ = f"{array.name}[{index}]", _type(op)
    return (array.view(index, lambda: Buffer(array.storage, array.offsets[index], type_, name)),)


def _subslice(_: Partition, op: ttg.MemDescSubsliceOp, operands: list[Any]) -> Results:
    whole, type_ = operands[0], _type(op)
    starts = [int(offset) for offset in op.offsets.get_values()]
    part = tuple(slice(start, start + size) for start, size in zip(starts, type_.shape, strict=True))
    name = f"{whole.name}[{', '.join(f'{s.start}:{s.stop}' for s in part)}]"
    return (whole.view(op, lambda: Buffer(whole.storage, whole.offsets[part], type_, name)),)


def _trans(_: Partition, op: ttg.MemDescTransOp, operands: list[Any]) -> Results:
    source, type_ = operands[0], _type(op)
    order = [int(dim) for dim in op.order.get_values()]
    return (source.view(op, lambda: Buffer(source.storage, source.offsets.transpose(order), type_, source.name)),)


def _reshape(_: Partition, op: ttg.MemDescReshapeOp, operands: list[Any]) -> Results:
    source, type_ = operands[0], _type(op)
    return (source.view(op, lambda: Buffer(source.storage, source.offsets.reshape(type_.shape), type_, source.name)),)


def _reinterpret(_: Partition, op: ttg.MemDescReinterpretOp, operands: list[Any]) -> Results:
    return (operands[0].view(op, lambda: reinterpret(operands[0], _type(op))),)


# ---------------------------------------------------------------- registers


def _convert_layout(_: Partition, __: ttg.ConvertLayoutOp, operands: list[Any]) -> Results:
    return operands


_NAMED_BARRIER = re.compile(r"bar\.(sync|arrive) (\d+|\$1), (\d+);( mov\.b32 \$0, \$1;)?")


def is_named_barrier(op: ttg.ElementwiseInlineAsmOp) -> bool:
    """Whether inline PTX is `bar.sync` or `bar.arrive`."""
    return _NAMED_BARRIER.fullmatch(op.asm_string.data.strip()) is not None


def _inline_asm(partition: Partition, op: ttg.ElementwiseInlineAsmOp, operands: list[Any]) -> Results:
    return (ptx(op.asm_string.data, operands, partition.memory),)


def named_barrier(partition: Partition, op: ttg.ElementwiseInlineAsmOp, operands: list[Any]) -> Iterator[Wait]:
    """Come to a named barrier, and wait for the others if it is `bar.sync`."""
    found = _NAMED_BARRIER.fullmatch(op.asm_string.data.strip())
    assert found is not None
    kind, number, threads = found[1], int(operands[0] if found[2] == "$1" else found[2]), int(found[3])
    if any(np.ndim(operand) for operand in operands):
        raise KernelError("a named barrier on a tensor runs once for each of its registers")
    program = partition.program
    barrier = program.named_barriers.setdefault(number, NamedBarrier(program.agents, number))
    generation = barrier.come_with(partition.history, partition.num_warps, threads, partition.name)
    if kind == "sync":
        yield Wait(lambda: barrier.generation > generation, lambda: str(barrier))
        partition.history.acquire(barrier.opened)


# ---------------------------------------------------------------- mbarriers and fences


def _init_barrier(partition: Partition, op: ttng.InitBarrierOp, operands: list[Any]) -> Results:
    (buffer,), program = operands, partition.program
    if _place(buffer) in program.barriers:
        raise KernelError(f"{buffer} already holds an mbarrier")
    buffer.write(partition.history)
    buffer.put(np.zeros(1, dtype=np.int64))
    program.barriers[_place(buffer)] = MBarrier(program.agents, buffer.name, op.count.value.data)
    return ()


def _inval_barrier(partition: Partition, _: ttng.InvalBarrierOp, operands: list[Any]) -> Results:
    (buffer,) = operands
    partition.program.barrier(buffer, partition.history).check_finished(partition.history)
    del partition.program.barriers[_place(buffer)]
    return ()


def _barrier_expect(partition: Partition, op: ttng.BarrierExpectOp, operands: list[Any]) -> Results:
    buffer, predicate = operands
    if predicate:
        partition.program.barrier(buffer, partition.history).arrive(partition.history, size=op.size.value.data)
    return ()


def _arrive_barrier(partition: Partition, op: ttng.ArriveBarrierOp, operands: list[Any]) -> Results:
    buffer, *predicate = operands
    if all(predicate):
        partition.program.barrier(buffer, partition.history).arrive(partition.history, op.count.value.data)
    return ()


def _wait_barrier(partition: Partition, op: ttng.WaitBarrierOp, operands: list[Any]) -> Iterator[Wait]:
    buffer, parity = operands[0], int(operands[1])
    if parity not in (0, 1):
        raise KernelError(f"phase {parity} of {buffer}; 0 and 1 are possible")
    if op.pred is not None and not operands[2]:
        return
    barrier = partition.program.barrier(buffer, partition.history)
    yield Wait(lambda: barrier.has_ended(parity), lambda: f"the end of phase {parity} of {barrier}")
    partition.history.acquire(barrier.ended)


def _fence(partition: Partition, _: ttng.FenceAsyncSharedOp, __: list[Any]) -> Results:
    for storage in partition.program.storages:
        storage.fence(partition.history)
    return ()


# ---------------------------------------------------------------- TMA


def _descriptor(_: Partition, op: ttng.ReinterpretTensorDescriptorOp, operands: list[Any]) -> Results:
    (tensor_map,), type_ = operands, op.result.type
    if not isinstance(tensor_map, TensorMap):
        raise KernelError("the pointer is not that of a tensor map")
    assert isinstance(type_, TensorDescType)
    tensor_map.check(op.rawDesc.name_hint or "the tensor map", type_)
    return (Descriptor(tensor_map, type_),)


def _tma_load(partition: Partition, op: ttng.AsyncTMACopyGlobalToLocalOp, operands: list[Any]) -> Results:
    descriptor, *coordinates, place, buffer, predicate = operands
    if not predicate:
        return ()
    barrier = partition.program.barrier(place, partition.history, asynchronous=True)
    buffer.start_write(partition.history)
    label = f"{op.name} of {partition.name} to {buffer}"
    load = Load(descriptor, tuple(map(int, coordinates)), buffer, barrier, label)
    partition.program.scheduler.start(load)
    return ()


def _tma_store(partition: Partition, op: Any, operands: list[Any]) -> Results:
    descriptor, *coordinates, buffer = operands
    buffer.read(partition.history, asynchronous=True)
    kind = enum_name(REDUCE_KINDS, op.kind) if isinstance(op, ttng.AsyncTMAReduceOp) else None
    store = Store(descriptor, tuple(map(int, coordinates)), buffer, kind, f"{op.name} of {partition.name}")
    buffer.hold(store.label)
    partition.stores.append(store)
    return ()


def _store_wait(partition: Partition, op: ttng.AsyncTMAStoreWaitOp, _: list[Any]) -> Results:
    while len(partition.stores) > op.pendings.value.data:
        store = partition.stores.pop(0)
        store.finish()
        store.buffer.finish_read(partition.history)
        store.buffer.let_go(store.label)
    return ()


# ---------------------------------------------------------------- matrix products


def _retire(partition: Partition, pending: int) -> None:
    while len(partition.products) > pending:
        partition.products.pop(0).finish(partition.history)


def _dot(partition: Partition, op: ttng.WarpGroupDotOp, operands: list[Any]) -> Results:
    a, b, c, *use_c = operands
    label = f"{op.name} of {partition.name}"
    product = Product(a, b, c if all(use_c) else None, element_of(op.d.type), label)
    product.start(partition.history)
    partition.products.append(product)
    if op.isAsync.value.data:
        return (product,)
    _retire(partition, 0)
    return (product.value,)


def _dot_wait(partition: Partition, op: ttng.WarpGroupDotWaitOp, operands: list[Any]) -> Results:
    _retire(partition, op.pendings.value.data)
    return [x.value if isinstance(x, Product) and x.value is not None else x for x in operands]


HANDLERS: dict[type[Operation], Handler] = {
    ttg.LocalAllocOp: _local_alloc,
    ttg.LocalDeallocOp: _local_dealloc,
    ttg.LocalLoadOp: _local_load,
    ttg.LocalStoreOp: _local_store,
    ttg.MemDescIndexOp: _index,
    ttg.MemDescSubsliceOp: _subslice,
    ttg.MemDescTransOp: _trans,
    ttg.MemDescReshapeOp: _reshape,
    ttg.MemDescReinterpretOp: _reinterpret,
    ttg.ConvertLayoutOp: _convert_layout,
    ttg.ElementwiseInlineAsmOp: _inline_asm,
    ttng.InitBarrierOp: _init_barrier,
    ttng.InvalBarrierOp: _inval_barrier,
    ttng.BarrierExpectOp: _barrier_expect,
    ttng.ArriveBarrierOp: _arrive_barrier,
    ttng.FenceAsyncSharedOp: _fence,
    ttng.ReinterpretTensorDescriptorOp: _descriptor,
    ttng.AsyncTMACopyGlobalToLocalOp: _tma_load,
    ttng.AsyncTMACopyLocalToGlobalOp: _tma_store,
    ttng.AsyncTMAReduceOp: _tma_store,
    ttng.AsyncTMAStoreWaitOp: _store_wait,
    ttng.WarpGroupDotOp: _dot,
    ttng.WarpGroupDotWaitOp: _dot_wait,
}
WAITING_HANDLERS: dict[type[Operation], WaitingHandler] = {ttng.WaitBarrierOp: _wait_barrier}

MAY_TAKE_PRODUCTS = (ttng.WarpGroupDotOp, ttng.WarpGroupDotWaitOp)
"""Operations that take an accumulator in flight; as operand c only, which the types ensure."""
