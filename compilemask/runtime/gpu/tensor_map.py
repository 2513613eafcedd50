"""Tensor maps, through which TMA reads and writes tensors. Source: CUDA Driver API, cuTensorMapEncodeTiled."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_uint32, c_uint64

import torch

from compilemask.runtime.gpu.driver import check, library

MAP_BYTES = 128
KEPT_MAPS = 64
"""Tensor maps that are kept for the next call with a tensor at the same address."""
SWIZZLE_BYTES = 128
"""Bytes of a row of a box, which TMA permutes in shared memory."""
STRIDE_BYTES = 16
LONGEST_STRIDE = 2**40
"""In bytes, and less for each stride."""
_ALIGNMENT = 64
"""Bytes to which the driver wants a map aligned."""
_TYPES = {torch.float16: 6, torch.float32: 7, torch.bfloat16: 9}
"""CU_TENSOR_MAP_DATA_TYPE_FLOAT16, _FLOAT32 and _BFLOAT16."""
_INTERLEAVE_NONE, _SWIZZLE_NONE, _SWIZZLE_128B, _L2_PROMOTION_128B, _OUTSIDE_IS_ZERO = 0, 0, 3, 2, 0


def is_aligned(*tensors: torch.Tensor) -> bool:
    """Whether tensors start where TMA can read them."""
    addresses = 0
    for x in tensors:
        addresses |= x.data_ptr()
    return addresses % STRIDE_BYTES == 0


def is_readable(shape: Sequence[int], stride: Sequence[int], size: int) -> bool:
    """Whether TMA can read aligned tensors of rank 4 or 5 with strides in elements of so many bytes.

    They are not empty, contiguous along the last dimension, and have no other stride of 0.
    """
    return (
        stride[-1] == 1
        and 0 not in shape
        and all(
            length == 1 or (0 < step * size < LONGEST_STRIDE and step * size % STRIDE_BYTES == 0)
            for length, step in zip(shape[:-1], stride[:-1], strict=True)
        )
    )


class TensorMaps(dict[int, bytes]):
    """The tensor maps of tensors [B, H, S, D] that differ in their address alone, by address, made when asked for.

    They are for boxes of so many rows, or of such a shape along the last axes before D; 128 bytes wide, permuted as
    wgmma reads them; if `columns` is given, as wide as that, and not permuted. Addresses are multiples of 16.
    """

    def __init__(
        self,
        shape: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
        rows: int | Sequence[int],
        columns: int | None = None,
    ) -> None:
        rank, size = len(shape), dtype.itemsize
        sides = (rows,) if isinstance(rows, int) else tuple(reversed(rows))
        # The stride of a dimension of length 1 may be anything; the driver wants a valid one.
        pairs = list(zip(shape, stride, strict=True))[:-1]
        strides = [size * (step if length > 1 else shape[-1]) for length, step in pairs]
        box = [SWIZZLE_BYTES // size if columns is None else columns, *sides, *[1] * (rank - 1 - len(sides))]
        self._dtype, self._rank = _TYPES[dtype], rank
        self._swizzle = _SWIZZLE_128B if columns is None else _SWIZZLE_NONE
        self._lengths = (c_uint64 * rank)(*reversed(shape))
        self._strides = (c_uint64 * (rank - 1))(*reversed(strides))
        self._box, self._steps = (c_uint32 * rank)(*box), (c_uint32 * rank)(*[1] * rank)

    def __missing__(self, address: int) -> bytes:
        if len(self) >= KEPT_MAPS:
            self.clear()
        found = self[address] = self._encoded(address)
        return found

    def _encoded(self, address: int) -> bytes:
        memory = ctypes.create_string_buffer(MAP_BYTES + _ALIGNMENT)
        start = -(-ctypes.addressof(memory) // _ALIGNMENT) * _ALIGNMENT
        encode: Callable[..., int] = library().cuTensorMapEncodeTiled
        status = encode(
            *(start, self._dtype, self._rank, address, self._lengths, self._strides, self._box, self._steps),
            *(_INTERLEAVE_NONE, self._swizzle, _L2_PROMOTION_128B, _OUTSIDE_IS_ZERO),
        )
        check(status, f"encode a tensor map of {tuple(reversed(self._lengths))} at {address:#x}")
        return ctypes.string_at(start, MAP_BYTES)
