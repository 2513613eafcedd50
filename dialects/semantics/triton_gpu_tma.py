"""TMA in the executable meaning of Triton-GPU IR: tensor maps, boxes of them, and copies under way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import BFloat16Type
from xdsl.ir import Attribute

from compilemask.dialects.semantics.triton_gpu_barriers import MBarrier
from compilemask.dialects.semantics.triton_gpu_shared import Buffer
from compilemask.dialects.semantics.triton_memory import (
    Array,
    array_dtype,
    bf16_to_bits,
    bits_to_bf16,
    round_bf16,
    storage_dtype,
)
from compilemask.dialects.triton.layouts import NvmmaSharedLayout
from compilemask.dialects.triton.ttg_types import TensorDescType
from compilemask.errors import LoweringError

STRIDE_BYTES = 16
"""Strides of a tensor map are multiples of it, but for the last dimension's, which is contiguous."""

_REDUCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


class TensorMap:
    """A tensor in global memory of 1 to 5 dimensions, of which TMA copies boxes: a kernel argument.

    `array` is any numpy view whose last dimension is contiguous and whose other strides are multiples of 16 bytes; its
    content changes in place. bf16 is two-byte patterns or float32 values. `box`, if given, is checked against that of
    the descriptor that the kernel makes; its last dimension may be the width of the swizzle, of which one copy takes
    several. What lies outside of the tensor reads as zero and is not written.
    """

    def __init__(self, array: Array, box: Sequence[int] | None = None) -> None:
        if not 1 <= array.ndim <= 5:
            raise ValueError(f"a tensor map has 1 to 5 dimensions, not {array.ndim}")
        if box is not None and (len(box) != array.ndim or not all(0 < size <= 256 for size in box)):
            raise ValueError(f"a box of {tuple(box)} of a tensor of {array.ndim} dimensions")
        self.array, self.box = array, None if box is None else tuple(box)

    def check(self, name: str, type_: TensorDescType) -> None:
        """Raise TypeError or ValueError unless this map is one for a type of descriptors."""
        element = type_.block.element_type
        storage, dtype = storage_dtype(element), self.array.dtype
        as_values = isinstance(element, BFloat16Type) and dtype == np.float32
        if not as_values and dtype.itemsize != storage.itemsize:
            raise TypeError(f"{name}: {dtype} does not hold {element}")
        if self.array.ndim != len(type_.shape):
            raise ValueError(f"{name}: {self.array.ndim} dimensions, the descriptor has {len(type_.shape)}")
        strides = [stride // dtype.itemsize * storage.itemsize for stride in self.array.strides]
        if self.array.shape[-1] > 1 and strides[-1] != storage.itemsize:
            raise ValueError(f"{name}: the last dimension is not contiguous")
        for size, stride in zip(self.array.shape[:-1], strides[:-1], strict=True):
            if size > 1 and (stride % STRIDE_BYTES or stride < 0):
                raise ValueError(f"{name}: a stride of {stride} bytes, multiples of {STRIDE_BYTES} are possible")
        layout = type_.block.encoding
        assert isinstance(layout, NvmmaSharedLayout)
        panel = (*type_.shape[:-1], layout.swizzle.data // storage.itemsize)
        if self.box is not None and self.box not in (type_.shape, panel):
            raise ValueError(f"{name}: boxes of {self.box}, the descriptor's are {type_.shape}")

    def load(self, coordinates: Sequence[int], type_: TensorDescType) -> Array:
        """A box; zero outside of the tensor."""
        element = type_.block.element_type
        inside, within = self._overlap(coordinates, type_.shape)
        values = np.zeros(type_.shape, dtype=array_dtype(element))
        values[within] = self._values(self.array[inside], element)
        return values

    def store(self, coordinates: Sequence[int], values: Array, element: Attribute, kind: str | None = None) -> None:
        """Write a box, or combine it elementwise with what is there."""
        inside, within = self._overlap(coordinates, values.shape)
        target, new = self.array[inside], values[within]
        if kind is not None:
            if kind not in _REDUCTIONS:
                raise LoweringError(f"TMA reduction '{kind}' has no semantics here")
            new = _REDUCTIONS[kind](self._values(target, element), new)
        if isinstance(element, BFloat16Type):
            target[...] = round_bf16(new) if target.dtype == np.float32 else bf16_to_bits(new).view(target.dtype)
        else:
            target[...] = np.ascontiguousarray(new, dtype=array_dtype(element)).view(target.dtype)

    def _values(self, part: Array, element: Attribute) -> Array:
        if not isinstance(element, BFloat16Type):
            return np.ascontiguousarray(part).view(array_dtype(element)).reshape(part.shape)
        if part.dtype == np.float32:
            return round_bf16(part)
        return bits_to_bf16(np.ascontiguousarray(part).view(np.uint16).reshape(part.shape))

    def _overlap(self, start: Sequence[int], box: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """The part of the tensor that a box covers, and where it lies in the box."""
        inside, within = list[slice](), list[slice]()
        for first, size, extent in zip(start, box, self.array.shape, strict=True):
            low, high = min(max(first, 0), extent), max(min(first + size, extent), 0)
            high = max(low, high)
            inside.append(slice(low, high))
            within.append(slice(low - first, high - first) if high > low else slice(0, 0))
        return tuple(inside), tuple(within)


@dataclass(frozen=True)
class Descriptor:
    """The value of a `!tt.tensordesc`."""

    map: TensorMap
    type: TensorDescType


@dataclass(frozen=True, eq=False)
class Load:
    """A load under way: its bytes come to the buffer and to the barrier together, some time."""

    descriptor: Descriptor
    coordinates: tuple[int, ...]
    buffer: Buffer
    barrier: MBarrier
    label: str

    def land(self) -> None:
        """The bytes come."""
        values = self.descriptor.map.load(self.coordinates, self.descriptor.type)
        self.buffer.finish_write(values, self.barrier.agent, self.barrier.next_event)
        self.barrier.deliver(self.buffer.size)


@dataclass(frozen=True, eq=False)
class Store:
    """A store under way: it reads its buffer until it is waited for."""

    descriptor: Descriptor
    coordinates: tuple[int, ...]
    buffer: Buffer
    kind: str | None
    label: str

    def finish(self) -> None:
        """The tensor is written."""
        self.descriptor.map.store(
            self.coordinates, self.buffer.get(), self.descriptor.type.block.element_type, self.kind
        )
