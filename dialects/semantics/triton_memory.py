"""Memory for the executable meaning of Triton IR: arrays at made-up addresses, every access checked.

Each array argument owns a range of byte addresses far from all others. A pointer is an int64 address, so pointers can
be compared, selected and converted like integers, and an access outside the array it came from is found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    i1,
)
from xdsl.ir import Attribute

from compilemask.dialects.narrowing import is_integer_type
from compilemask.dialects.triton.types import PointerType
from compilemask.errors import LoweringError

Array = NDArray[Any]

_SPACING_BITS = 40
_MIDDLE = 1 << (_SPACING_BITS - 1)
_POISON_BYTE = 0xCD


class MemoryFault(IndexError):
    """A load, store or atomic touches memory outside of the array that its pointer belongs to, or not aligned."""


def round_bf16(values: Array) -> Array:
    """float32 values rounded to the nearest bfloat16 (ties to even), still as float32."""
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(values), np.float32(np.nan), rounded.view(np.float32))


def bf16_to_bits(values: Array) -> Array:
    """float32 values as uint16 bfloat16 patterns, rounded to nearest even."""
    return (np.ascontiguousarray(round_bf16(values)).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def bits_to_bf16(bits: Array) -> Array:
    """uint16 bfloat16 patterns as float32 values."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def array_dtype(element: Attribute) -> np.dtype[Any]:
    """The numpy type that stands for an element type in execution; bf16 is float32, pointers are int64 addresses."""
    if isinstance(element, PointerType):
        return np.dtype(np.int64)
    if element == i1:
        return np.dtype(np.bool_)
    if is_integer_type(element):
        return np.dtype(f"i{element.width.data // 8}")
    if isinstance(element, BFloat16Type | Float32Type):
        return np.dtype(np.float32)
    if isinstance(element, Float16Type):
        return np.dtype(np.float16)
    if isinstance(element, Float64Type):
        return np.dtype(np.float64)
    raise LoweringError(f"no values of type {element}")


def storage_dtype(element: Attribute) -> np.dtype[Any]:
    """The numpy type of an element in memory; bf16 is uint16, i1 one byte, pointers int64."""
    if isinstance(element, BFloat16Type):
        return np.dtype(np.uint16)
    return np.dtype(np.uint8) if element == i1 else array_dtype(element)


def poison(element: Attribute) -> Any:
    """The value that stands for undefined: NaN, or the byte 0xCD repeated."""
    dtype = array_dtype(element)
    if dtype.kind == "f":
        return dtype.type(np.nan)
    return np.frombuffer(bytes([_POISON_BYTE]) * dtype.itemsize, dtype=dtype)[0]


@dataclass(frozen=True)
class _Region:
    """One array: its name, the caller's array, and the bytes that the kernel sees."""

    name: str
    caller: Array
    data: Array
    converted: bool


class Memory:
    """All arrays of one launch."""

    def __init__(self) -> None:
        self._regions: list[_Region] = []

    def add(self, name: str, array: Array, pointee: Attribute) -> np.int64:
        """Place an array; gives the address of its first element. A bf16 array may be float32 or any two-byte type."""
        if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
            raise ValueError(f"argument {name}: a C-contiguous numpy array is needed")
        storage = storage_dtype(pointee)
        converted = isinstance(pointee, BFloat16Type) and array.dtype == np.float32
        if converted:
            data = bf16_to_bits(array)
        elif array.dtype.itemsize == storage.itemsize:
            data = array
        else:
            raise TypeError(f"argument {name}: {array.dtype} does not hold {pointee}")
        self._regions.append(_Region(name, array, data.reshape(-1).view(np.uint8), converted))
        return np.int64((len(self._regions) << _SPACING_BITS) + _MIDDLE)

    def write_back(self) -> None:
        """Copy what was converted on entry back to the caller's arrays."""
        for region in self._regions:
            if region.converted:
                region.caller[...] = bits_to_bf16(region.data.view(np.uint16)).reshape(region.caller.shape)

    def load(self, addresses: Array, element: Attribute) -> Array:
        """The values at a flat array of addresses."""
        if not addresses.size:
            return np.empty(0, dtype=array_dtype(element))
        view, index = self._locate(addresses, element)
        raw = view[index]
        if isinstance(element, BFloat16Type):
            return bits_to_bf16(raw)
        return raw.astype(np.bool_) if element == i1 else raw

    def store(self, addresses: Array, values: Array, element: Attribute) -> None:
        """Writes values to a flat array of addresses, in order."""
        if not addresses.size:
            return
        view, index = self._locate(addresses, element)
        view[index] = bf16_to_bits(values) if isinstance(element, BFloat16Type) else values

    def _locate(self, addresses: Array, element: Attribute) -> tuple[Array, Array]:
        """The array, as its elements, that all addresses point into, and the element indices."""
        lowest, highest = int(addresses.min()), int(addresses.max())
        number = lowest >> _SPACING_BITS
        if number != highest >> _SPACING_BITS:
            raise MemoryFault("one access spans several arrays")
        if not 0 < number <= len(self._regions):
            raise MemoryFault(f"address {lowest:#x} belongs to no array")
        region, base = self._regions[number - 1], (number << _SPACING_BITS) + _MIDDLE
        dtype = storage_dtype(element)
        first, last, count = lowest - base, highest - base, region.data.size // dtype.itemsize
        if first < 0 or last > (count - 1) * dtype.itemsize:
            bad = first if first < 0 else last
            raise MemoryFault(f"element {bad // dtype.itemsize} of {region.name}, which has {count} elements")
        offsets = addresses - base
        if dtype.itemsize > 1 and np.any(offsets % dtype.itemsize):
            raise MemoryFault(f"unaligned {element} in {region.name}")
        return region.data.view(dtype), offsets // dtype.itemsize
