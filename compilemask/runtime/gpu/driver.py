"""The CUDA driver, called through ctypes: loads kernels and launches them with arguments by value.

A launch takes a third of the time that it takes through a general binding, and needs none of the code that Triton
compiles for the arguments of each kernel. Functions and constants: CUDA Driver API, cuda.h.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_uint, c_void_p
from functools import cache, lru_cache, partial
from typing import Any

from compilemask.errors import DeviceError
from compilemask.runtime.gpu.binary import Binary

Argument = bytes | int | float
"""Of a kernel: a tensor map, an integer or address, or a number."""
Grid = tuple[int, int, int]

MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
"""The function attribute of that name."""
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuCtxGetCurrent": (POINTER(c_void_p),),
    "cuCtxSetCurrent": (c_void_p,),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuTensorMapEncodeTiled": (c_void_p, c_int, c_uint, *[c_void_p] * 5, *[c_int] * 4),
}
"""Not of cuLaunchKernel: converting eleven arguments to declared types takes ctypes longer than the call. Its integers
have 32 bits, as ctypes takes them to have, and its pointers are given as such.
"""


@cache
def library() -> Any:
    """The driver's functions. Raises DeviceError where there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        for name, types in _PROTOTYPES.items():
            function = getattr(driver, name)
            function.argtypes, function.restype = types, c_int
    except (OSError, AttributeError) as error:
        raise DeviceError(f"the CUDA driver cannot be used: {error}") from None
    return driver


def check(status: int, what: str) -> None:
    """Raise DeviceError if a function of the driver failed to do `what`."""
    if status:
        name = c_char_p()
        library().cuGetErrorName(status, byref(name))
        raise DeviceError(f"the CUDA driver fails to {what}: {(name.value or b'unknown error').decode()} ({status})")


_pointer = lru_cache(maxsize=256)(c_void_p)
"""A stream as ctypes takes it."""


class Kernel:
    """A kernel loaded on a device, the current one. `text` gives its IR, which observers of launches may ask for."""

    def __init__(self, binary: Binary, text: Callable[[], str], device: int) -> None:
        cu = library()
        self.binary, self.text = binary, text
        self._context, module, self._function = c_void_p(), c_void_p(), c_void_p()
        check(cu.cuDevicePrimaryCtxRetain(byref(self._context), device), f"give the context of device {device}")
        self._ensure_context()
        check(cu.cuModuleLoadData(byref(module), binary.cubin), f"load the kernel {binary.name}")
        check(cu.cuModuleGetFunction(byref(self._function), module, binary.name.encode()), f"find {binary.name}")
        shared = cu.cuFuncSetAttribute(self._function, MAX_DYNAMIC_SHARED_SIZE_BYTES, binary.shared_bytes)
        check(shared, f"reserve {binary.shared_bytes} bytes of shared memory")
        self._launch = cu.cuLaunchKernel
        self._threads, self._shared, self._scratch = binary.threads, binary.shared_bytes, binary.scratch
        self._packed = struct.Struct(binary.format)
        self._local = threading.local()

    def __call__(self, grid: Grid, stream: int, arguments: Sequence[Argument]) -> None:
        """Start the programs of a grid on a stream of the current device. Does not wait."""
        try:
            pack, pointers = self._local.memory
        except AttributeError:
            pack, pointers = self._local.memory = self._memory_of_thread()
        # The driver copies the arguments before it returns.
        pack(*arguments, *self._scratch)
        (x, y, z), threads, shared = grid, self._threads, self._shared
        if status := self._launch(self._function, x, y, z, threads, 1, 1, shared, _pointer(stream), pointers, None):
            check(status, f"launch {self.binary.name}")

    def _memory_of_thread(self) -> tuple[Callable[..., None], Any]:
        """What writes arguments into memory for them, and pointers into it."""
        self._ensure_context()
        buffer = ctypes.create_string_buffer(self._packed.size)
        start, offsets = ctypes.addressof(buffer), self.binary.offsets
        pointers = (c_void_p * len(offsets))(*(start + offset for offset in offsets))
        return partial(self._packed.pack_into, buffer, 0), pointers

    def _ensure_context(self) -> None:
        """Makes the device's context that of a thread which has none, as those that compute gradients may."""
        context = c_void_p()
        check(library().cuCtxGetCurrent(byref(context)), "tell its context")
        if not context:
            check(library().cuCtxSetCurrent(self._context), "set its context")
