"""The CUDA driver, through the package cuda-bindings: tensor maps, and kernels that take them by value.

Triton's own launcher passes no tensor maps to kernels that were compiled from IR.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, TypeAlias

import torch

from compilemask.errors import DeviceError
from compilemask.runtime.hopper_compile import MAP_BYTES, Binary

KEPT_MAPS = 1024
"""Tensor maps that are kept for the next call with the same tensor."""
SWIZZLE_BYTES = 128
"""Bytes of a row of a box, which TMA permutes in shared memory."""
STRIDE_BYTES = 16
LONGEST_STRIDE = 2**40
"""In bytes, and less for each stride."""


@cache
def bindings() -> Any:
    """The driver's functions, or None if the package or the driver is missing."""
    try:
        driver = import_module("cuda.bindings.driver")
        driver.cuDriverGetVersion()
    except (ImportError, RuntimeError):
        return None
    return driver


def _checked(result: tuple[Any, ...], what: str) -> Any:
    status, *values = result
    if int(status):
        raise DeviceError(f"the CUDA driver fails to {what}: {status!r}")
    return values[0] if values else None


# ---------------------------------------------------------------- tensor maps


def has_tensor_map(x: torch.Tensor) -> bool:
    """Whether TMA can read a tensor of rank 4: aligned, contiguous along the last dimension, no other stride of 0."""
    if x.data_ptr() % STRIDE_BYTES or x.stride(-1) != 1 or not x.numel():
        return False
    size = x.element_size()
    return all(
        length == 1 or (0 < stride * size < LONGEST_STRIDE and stride * size % STRIDE_BYTES == 0)
        for length, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True)
    )


MapKey: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype, int]
"""What a tensor map depends on: address, shape, strides in elements, element type, and rows of a box."""

_maps: OrderedDict[MapKey, bytes | None] = OrderedDict()
_lock = threading.Lock()


def tensor_map(x: torch.Tensor, rows: int) -> bytes | None:
    """The tensor map of [B, H, S, D] for boxes of so many rows, 128 bytes wide, permuted as wgmma reads them.

    None if TMA cannot read the tensor.
    """
    key = (x.data_ptr(), x.shape, x.stride(), x.dtype, rows)
    try:
        return _maps[key]
    except KeyError:
        found = _encoded(key) if has_tensor_map(x) else None
    with _lock:
        _maps[key] = found
        while len(_maps) > KEPT_MAPS:
            _maps.popitem(last=False)
    return found


def _encoded(key: MapKey) -> bytes:
    cu = bindings()
    address, shape, stride, element, rows = key
    types = cu.CUtensorMapDataType
    half = element == torch.float16
    dtype = types.CU_TENSOR_MAP_DATA_TYPE_FLOAT16 if half else types.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
    size = element.itemsize
    # The stride of a dimension of length 1 may be anything; the driver wants a valid one.
    lengths_and_strides = list(zip(shape, stride, strict=True))[:-1]
    strides = [size * (step if length > 1 else shape[-1]) for length, step in lengths_and_strides]
    box = [SWIZZLE_BYTES // size, rows, *[1] * (len(shape) - 2)]
    result = cu.cuTensorMapEncodeTiled(
        dtype,
        cu.cuuint32_t(len(shape)),
        address,
        [cu.cuuint64_t(length) for length in reversed(shape)],
        [cu.cuuint64_t(step) for step in reversed(strides)],
        [cu.cuuint32_t(length) for length in box],
        [cu.cuuint32_t(1)] * len(shape),
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    encoded = _checked(result, f"encode a tensor map of {key}")
    return ctypes.string_at(encoded.getPtr(), MAP_BYTES)


# ---------------------------------------------------------------- kernels


class Kernel:
    """A kernel loaded on the current device."""

    def __init__(self, binary: Binary) -> None:
        cu = bindings()
        self.binary = binary
        self._module = _checked(cu.cuModuleLoadData(binary.cubin), "load a kernel")
        self._function = _checked(
            cu.cuModuleGetFunction(self._module, binary.name.encode()), f"find the kernel {binary.name}"
        )
        attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _checked(cu.cuFuncSetAttribute(self._function, attribute, binary.shared_bytes), "reserve shared memory")
        self._launch: Callable[..., Any] = cu.cuLaunchKernelEx
        self._packed = struct.Struct(binary.format)
        self._local = threading.local()

    def __call__(self, programs: int, stream: int, arguments: Sequence[bytes | int | float]) -> None:
        """Start so many programs on a stream of the current device. Does not wait."""
        config, buffer, pointers = self._of_thread()
        self._packed.pack_into(buffer, 0, *arguments, *self.binary.scratch)
        config.gridDimX, config.hStream = programs, stream
        # The driver copies the arguments before it returns.
        (status,) = self._launch(config, self._function, pointers, 0)
        if int(status):
            raise DeviceError(f"the CUDA driver fails to launch {self.binary.name}: {status!r}")

    def _of_thread(self) -> tuple[Any, Any, int]:
        """This thread's launch configuration, memory for arguments, and the address of pointers into it."""
        if not hasattr(self._local, "launch"):
            config = bindings().CUlaunchConfig()
            config.gridDimX = config.gridDimY = config.gridDimZ = 1
            config.blockDimX, config.blockDimY, config.blockDimZ = self.binary.threads, 1, 1
            config.sharedMemBytes, config.numAttrs = self.binary.shared_bytes, 0
            buffer = ctypes.create_string_buffer(self._packed.size)
            start = ctypes.addressof(buffer)
            pointers = (ctypes.c_void_p * len(self.binary.offsets))(*(start + offset for offset in self.binary.offsets))
            self._local.launch = config, buffer, ctypes.addressof(pointers)
            self._local.keep = pointers
        return self._local.launch
