"""Shared memory of a program of Triton-GPU IR: bytes where the layouts put them, and a record of who touched what.

Records are kept for pieces of 16 bytes, the unit that swizzles move. An access must come after those it conflicts with
(`triton_gpu_order.py`); a piece that an asynchronous copy is writing must not be touched and one that a copy or a
product is reading must not be written; what ordinary stores wrote needs a fence before TMA or wgmma touch it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import BFloat16Type

from compilemask.dialects.semantics.triton_gpu_order import Agents, History, KernelError
from compilemask.dialects.semantics.triton_memory import (
    Array,
    array_dtype,
    bf16_to_bits,
    bits_to_bf16,
    poison,
    storage_dtype,
)
from compilemask.dialects.triton.layouts import NvmmaSharedLayout, SwizzledSharedLayout
from compilemask.dialects.triton.ttg_types import AnySharedLayout, MemDescType

PIECE = 16
"""Bytes that records are kept for."""

_NOBODY, _NEVER = -1, np.iinfo(np.int32).max
_SWIZZLE_ROWS = 8
"""Rows after which the permutation of a swizzle repeats."""


# ---------------------------------------------------------------- layouts


def byte_offsets(shape: Sequence[int], layout: AnySharedLayout, itemsize: int) -> NDArray[np.int64]:
    """Where the elements of a buffer, or of an array of buffers, lie."""
    inner = tuple(shape[len(shape) - layout.rank :])
    one = _swizzled(inner, layout, itemsize) if isinstance(layout, NvmmaSharedLayout) else _plain(inner, layout)
    if isinstance(layout, SwizzledSharedLayout):
        one = one * itemsize
    count = prod(shape[: len(shape) - layout.rank])
    starts = np.arange(count, dtype=np.int64) * prod(inner) * itemsize
    return (starts.reshape(-1, *(1,) * len(inner)) + one).reshape(shape)


def _plain(shape: tuple[int, ...], layout: SwizzledSharedLayout) -> NDArray[np.int64]:
    """Element offsets with dimension order[0] contiguous; the permutation within rows is not modelled."""
    order = [dim.data for dim in layout.order]
    slowest_first = order[::-1]
    offsets = np.arange(prod(shape), dtype=np.int64).reshape([shape[dim] for dim in slowest_first])
    return offsets.transpose(np.argsort(slowest_first))


def _swizzled(shape: tuple[int, ...], layout: NvmmaSharedLayout, itemsize: int) -> NDArray[np.int64]:
    """Panels of `swizzle` bytes of every row, one after the other; pieces of 16 bytes permuted by row (PTX, TMA)."""
    if layout.is_transposed:
        stored = (*shape[:-2], shape[-1], shape[-2])
        return np.swapaxes(_panels(stored, layout.swizzle.data, itemsize), -1, -2)
    return _panels(shape, layout.swizzle.data, itemsize)


def _panels(shape: tuple[int, ...], swizzle: int, itemsize: int) -> NDArray[np.int64]:
    if not swizzle:
        return np.arange(prod(shape), dtype=np.int64).reshape(shape) * itemsize
    rows = prod(shape[:-1])
    row, byte = np.arange(rows, dtype=np.int64)[:, None], np.arange(shape[-1], dtype=np.int64)[None, :] * itemsize
    pieces = swizzle // PIECE
    phase = row % _SWIZZLE_ROWS // (_SWIZZLE_ROWS // pieces)
    within = ((byte % swizzle // PIECE) ^ phase) * PIECE + byte % PIECE
    return (byte // swizzle * rows * swizzle + row * swizzle + within).reshape(shape)


# ---------------------------------------------------------------- memory


class Storage:
    """One allocation: its bytes, and for each piece the last write, the last reads, and what is under way."""

    def __init__(self, agents: Agents, name: str, size: int) -> None:
        pieces = -(-size // PIECE)
        self.agents, self.name = agents, name
        self.data: NDArray[np.uint8] = np.zeros(pieces * PIECE, dtype=np.uint8)
        self.alive = True
        self.writer = np.full(pieces, _NOBODY, dtype=np.int32)
        self.written = np.zeros(pieces, dtype=np.int32)
        self.ordinary = np.zeros(pieces, dtype=np.bool_)
        """Whether the last write was an ordinary store."""
        self.fenced_by: dict[int, NDArray[np.int32]] = {}
        """When agents fenced the last write, if they did; each may do for those that wait for it."""
        self.arriving = np.zeros(pieces, dtype=np.bool_)
        self.read_by: dict[int, NDArray[np.int32]] = {}
        self.in_use: list[tuple[Buffer, str]] = []

    def fence(self, history: History) -> None:
        """What the partition has seen written by ordinary stores may be touched by TMA and wgmma after this."""
        if not self.ordinary.any():
            return
        fenced = self.fenced_by.get(history.agent)
        if fenced is None:
            fenced = self.fenced_by[history.agent] = np.full(len(self.writer), _NEVER, dtype=np.int32)
        seen = self.ordinary & (self.written <= history.clock[self.writer])
        fenced[seen & (fenced == _NEVER)] = history.now


class Buffer:
    """A view of an allocation: the value of a `!ttg.memdesc`."""

    def __init__(self, storage: Storage, offsets: NDArray[np.int64], type_: MemDescType, name: str) -> None:
        self.storage, self.offsets, self.type, self.name = storage, offsets, type_, name
        dtype = storage_dtype(type_.element_type)
        self._typed: Array = storage.data.view(dtype)
        self._index = offsets // dtype.itemsize
        touched = np.zeros(len(storage.writer), dtype=np.bool_)
        touched[np.reshape(offsets // PIECE, -1)] = True
        self.pieces: NDArray[np.int64] = np.flatnonzero(touched)
        self._views: dict[Any, Buffer] = {}

    def __str__(self) -> str:
        return self.name

    @property
    def start(self) -> int:
        """Byte offset of the first element in the allocation."""
        return int(self.offsets.min())

    @property
    def size(self) -> int:
        """Bytes of the content."""
        return self.offsets.size * storage_dtype(self.type.element_type).itemsize

    def view(self, key: Any, make: Callable[[], Buffer]) -> Buffer:
        """The view named by a key, made once."""
        if key not in self._views:
            self._views[key] = make()
        return self._views[key]

    # ------------------------------------------------------------ content

    def get(self) -> Array:
        """The content, without any check."""
        raw = self._typed[self._index]
        return bits_to_bf16(raw) if isinstance(self.type.element_type, BFloat16Type) else raw

    def put(self, values: Array) -> None:
        """Set the content, without any check."""
        self._typed[self._index] = bf16_to_bits(values) if isinstance(self.type.element_type, BFloat16Type) else values

    def spoil(self) -> None:
        """Set the content to what stands for undefined."""
        self.put(np.full(self.offsets.shape, poison(self.type.element_type), array_dtype(self.type.element_type)))

    # ------------------------------------------------------------ checked accesses

    def read(self, history: History, *, asynchronous: bool = False) -> None:
        """Check a read; an asynchronous one is recorded with `finish_read` when it ends."""
        self._check_written(history)
        if asynchronous:
            self._check_fenced(history)
        else:
            self.finish_read(history)

    def finish_read(self, history: History) -> None:
        """Record that a read has ended."""
        reads = self.storage.read_by.get(history.agent)
        if reads is None:
            reads = self.storage.read_by[history.agent] = np.zeros(len(self.storage.writer), dtype=np.int32)
        reads[self.pieces] = history.now

    def write(self, history: History) -> None:
        """Check and record an ordinary write."""
        self._check_free(history)
        storage, pieces = self.storage, self.pieces
        storage.writer[pieces], storage.written[pieces] = history.agent, history.now
        storage.ordinary[pieces] = True
        for fenced in storage.fenced_by.values():
            fenced[pieces] = _NEVER

    def start_write(self, history: History) -> None:
        """Check an asynchronous write; until it ends the content is undefined."""
        self._check_free(history)
        self._check_fenced(history)
        self.storage.arriving[self.pieces] = True
        self.spoil()

    def finish_write(self, values: Array, agent: int, number: int) -> None:
        """The end of an asynchronous write, as event `number` of an agent."""
        storage, pieces = self.storage, self.pieces
        storage.arriving[pieces] = False
        storage.writer[pieces], storage.written[pieces] = agent, number
        storage.ordinary[pieces] = False
        self.put(values)

    def hold(self, user: str) -> None:
        """Nobody may write from now on: `user` reads."""
        self.storage.in_use.append((self, user))

    def let_go(self, user: str) -> None:
        """The end of a `hold`."""
        self.storage.in_use.remove((self, user))

    # ------------------------------------------------------------ checks

    def _check_alive(self) -> None:
        if not self.storage.alive:
            raise KernelError(f"{self} is used after its local_dealloc")

    def _check_written(self, history: History) -> None:
        self._check_alive()
        storage, pieces = self.storage, self.pieces
        if storage.arriving[pieces].any():
            raise KernelError(f"{self} is read while a TMA load is still writing it; wait for its barrier")
        writers = storage.writer[pieces]
        if (writers == _NOBODY).any():
            raise KernelError(f"{self} is read and was never written")
        late = storage.written[pieces] > history.clock[writers]
        if late.any():
            writer = self._name(int(writers[late][0]))
            raise KernelError(f"{self} is read without having waited for {writer}, which wrote it")

    def _check_fenced(self, history: History) -> None:
        missing = self.storage.ordinary[self.pieces]
        for agent, fenced in self.storage.fenced_by.items():
            missing = missing & (fenced[self.pieces] > history.clock[agent])
        if missing.any():
            raise KernelError(
                f"ordinary stores wrote {self}, and no ttng.fence_async_shared came before TMA or wgmma touch it"
            )

    def check_barrier(self, history: History, *, asynchronous: bool) -> None:
        """Check that the initialization of the mbarrier in this buffer is visible."""
        self._check_written(history)
        if asynchronous:
            self._check_fenced(history)

    def _check_free(self, history: History) -> None:
        self._check_alive()
        storage, pieces = self.storage, self.pieces
        if storage.arriving[pieces].any():
            raise KernelError(f"{self} is written while a TMA load is still writing it")
        for buffer, user in storage.in_use:
            if np.intersect1d(buffer.pieces, pieces, assume_unique=True).size:
                raise KernelError(f"{self} is written while {user} still reads {buffer}")
        for agent, reads in storage.read_by.items():
            if (reads[pieces] > history.clock[agent]).any():
                raise KernelError(f"{self} is written without having waited for {self._name(agent)}, which read it")
        writers = storage.writer[pieces]
        late = (writers != _NOBODY) & (storage.written[pieces] > history.clock[writers])
        if late.any():
            writer = self._name(int(writers[late][0]))
            raise KernelError(f"{self} is written without having waited for {writer}, which wrote it")

    def _name(self, agent: int) -> str:
        return self.storage.agents.names[agent]


def allocate(agents: Agents, type_: MemDescType, name: str) -> Buffer:
    """A new buffer with undefined content."""
    dtype = storage_dtype(type_.element_type)
    offsets = byte_offsets(type_.shape, type_.layout, dtype.itemsize)
    storage = Storage(agents, name, offsets.size * dtype.itemsize)
    return Buffer(storage, offsets, type_, name)


def reinterpret(source: Buffer, type_: MemDescType) -> Buffer:
    """The same bytes under another type."""
    itemsize = storage_dtype(type_.element_type).itemsize
    offsets = byte_offsets(type_.shape, type_.layout, itemsize) + source.start
    return Buffer(source.storage, offsets, type_, source.name)
