"""What a kernel holds besides values: buffers in shared memory, barriers, TMA descriptors, products in flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from xdsl.dialects.builtin import i32
from xdsl.ir import Attribute, Operation, SSAValue

from compilemask.dialects.triton import ttg, ttng
from compilemask.dialects.triton.layouts import RegisterLayout
from compilemask.dialects.triton.ttg_types import MemDescType, TensorDescType, bytes_of
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt.control_flow import RegionEmitter
from compilemask.lowering.tiling_to_tt.value import Number, Value


class GpuEmitter(RegionEmitter, Protocol):
    """What a buffer or barrier needs of the kernel that it belongs to."""

    def constant(self, value: Number, dtype: Attribute | None = None) -> Value:
        """A scalar literal."""
        ...


def _integer(kernel: GpuEmitter, x: Value | int) -> SSAValue:
    value = x if isinstance(x, Value) else kernel.constant(x, i32)
    if value.type != i32:
        raise LoweringError(f"{value.type} where i32 is needed; cast() it")
    return value.ssa


def _predicate(kernel: GpuEmitter, x: Value | bool) -> SSAValue:
    return (x if isinstance(x, Value) else kernel.constant(bool(x))).ssa


class Buffer:
    """A buffer in shared memory or a view of one; `buffer[i]` is one of an array of buffers."""

    def __init__(self, kernel: GpuEmitter, ssa: SSAValue) -> None:
        if not isinstance(ssa.type, MemDescType):
            raise LoweringError(f"{ssa.type} is not a buffer")
        self.kernel, self.ssa, self.type = kernel, ssa, ssa.type

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions, the number of an array's buffers first."""
        return self.type.shape

    @property
    def dtype(self) -> Attribute:
        """The element type."""
        return self.type.element_type

    def named(self, name: str) -> Buffer:
        """This buffer, with a name in printed IR."""
        self.ssa.name_hint = name
        return self

    def __getitem__(self, index: Value | int) -> Buffer:
        if isinstance(index, int) and not 0 <= index < self.shape[0]:
            raise LoweringError(f"no buffer {index} among {self.shape[0]}")
        return self._view(ttg.MemDescIndexOp(self.ssa, _integer(self.kernel, index)))

    def reshape(self, *shape: int) -> Buffer:
        """The same elements in row-major order under another shape; rows stay whole."""
        return self._view(ttg.MemDescReshapeOp(self.ssa, shape))

    def transpose(self, *order: int) -> Buffer:
        """Dimensions permuted, the last two exchanged if no order is given; nothing moves."""
        rank = len(self.shape)
        return self._view(ttg.MemDescTransOp(self.ssa, order or (*range(rank - 2), rank - 1, rank - 2)))

    def part(self, offsets: Sequence[int], shape: Sequence[int]) -> Buffer:
        """The part of a shape at constant offsets, which are multiples of it."""
        return self._view(ttg.MemDescSubsliceOp(self.ssa, offsets, shape))

    def reinterpret(self, type_: MemDescType) -> Buffer:
        """The same memory as another type of buffer of as many bytes."""
        return self._view(ttg.MemDescReinterpretOp(self.ssa, type_))

    def load(self, layout: RegisterLayout) -> Value:
        """The content as a tensor in a layout."""
        return self.kernel.emit(ttg.LocalLoadOp(self.ssa, layout))

    def store(self, value: Value) -> None:
        """Write a tensor; `fence_async_shared` before TMA or wgmma reads it."""
        self.kernel.emit_op(ttg.LocalStoreOp(value.ssa, self.ssa))

    def dealloc(self) -> None:
        """End the buffer's life."""
        self.kernel.emit_op(ttg.LocalDeallocOp(self.ssa))

    def _view(self, op: Operation) -> Buffer:
        return Buffer(self.kernel, self.kernel.emit_op(op).results[0])


class Barrier:
    """An mbarrier: phases 0, 1, 0, ... each of which ends after some arrivals and expected bytes."""

    def __init__(self, kernel: GpuEmitter, ssa: SSAValue) -> None:
        self.kernel, self.ssa = kernel, ssa

    def init(self, arrivals: int = 1) -> None:
        """Start at phase 0, each phase ending after so many arrivals."""
        self.kernel.emit_op(ttng.InitBarrierOp(self.ssa, arrivals))

    def invalidate(self) -> None:
        """End the barrier's life."""
        self.kernel.emit_op(ttng.InvalBarrierOp(self.ssa))

    def expect(self, size: int, predicate: Value | bool = True) -> None:
        """One arrival, and `size` bytes of copies to come in this phase."""
        self.kernel.emit_op(ttng.BarrierExpectOp(self.ssa, size, _predicate(self.kernel, predicate)))

    def arrive(self, count: int = 1, predicate: Value | bool = True) -> None:
        """One thread's `count` arrivals, after all warps of the partition have come."""
        self.kernel.emit_op(ttng.ArriveBarrierOp(self.ssa, count, _predicate(self.kernel, predicate)))

    def wait(self, phase: Value | int, predicate: Value | bool = True) -> None:
        """Wait until the phase of this parity (0 or 1) has ended. `phase ^ 1` of a new barrier has: nothing waits."""
        phase_ssa = _integer(self.kernel, phase)
        self.kernel.emit_op(ttng.WaitBarrierOp(self.ssa, phase_ssa, _predicate(self.kernel, predicate)))


class Barriers:
    """An array of mbarriers; `barriers[i]` is one of them."""

    def __init__(self, kernel: GpuEmitter, array: Buffer) -> None:
        self.kernel, self.array = kernel, array

    def __len__(self) -> int:
        return self.array.shape[0]

    def __getitem__(self, index: Value | int) -> Barrier:
        return Barrier(self.kernel, self.array[index].ssa)


class Descriptor:
    """A TMA descriptor: a tensor in global memory of which boxes are copied."""

    def __init__(self, kernel: GpuEmitter, ssa: SSAValue) -> None:
        if not isinstance(ssa.type, TensorDescType):
            raise LoweringError(f"{ssa.type} is not a descriptor")
        self.kernel, self.ssa, self.type = kernel, ssa, ssa.type

    @property
    def layout(self) -> Attribute:
        """The layout of a box in shared memory."""
        return self.type.block.encoding

    @property
    def bytes(self) -> int:
        """Bytes of a box, which a barrier expects of one load."""
        return bytes_of(self.type.shape, self.type.block.element_type)

    def load(
        self, coordinates: Sequence[Value | int], buffer: Buffer, barrier: Barrier, predicate: Value | bool = True
    ) -> None:
        """Start to copy the box at these coordinates to a buffer; its bytes arrive at the barrier."""
        self.kernel.emit_op(
            ttng.AsyncTMACopyGlobalToLocalOp(
                self.ssa, self._coordinates(coordinates), barrier.ssa, buffer.ssa, _predicate(self.kernel, predicate)
            )
        )

    def store(self, coordinates: Sequence[Value | int], buffer: Buffer) -> None:
        """Start to copy a buffer to the box at these coordinates."""
        self.kernel.emit_op(ttng.AsyncTMACopyLocalToGlobalOp(self.ssa, self._coordinates(coordinates), buffer.ssa))

    def reduce(self, kind: str, coordinates: Sequence[Value | int], buffer: Buffer) -> None:
        """Start to combine a buffer into the box at these coordinates: add, min, max, ..."""
        self.kernel.emit_op(ttng.AsyncTMAReduceOp(kind, self.ssa, self._coordinates(coordinates), buffer.ssa))

    def _coordinates(self, coordinates: Sequence[Value | int]) -> list[SSAValue]:
        return [_integer(self.kernel, coordinate) for coordinate in coordinates]


class Product:
    """A matrix product in flight: an accumulator of another product, or `kb.warp_group_dot_wait` gives its value."""

    def __init__(self, ssa: SSAValue) -> None:
        self.ssa = ssa
