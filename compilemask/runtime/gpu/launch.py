"""Memory for results and launches of compiled kernels, on the device and the current stream of a tensor.

Both go past PyTorch's general ways, each of which takes microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch._C._dynamo

from compilemask.passes.instrument import observers_of_launches
from compilemask.runtime.gpu.driver import Argument, Grid, Kernel

_Sizes = tuple[int, ...]
_guards: Any = torch._C._dynamo.guards
"""Holds what TorchInductor's code allocates memory with."""


def launch(kernel: Kernel, grid: Grid, device: torch.device, arguments: Sequence[Argument]) -> None:
    """Start a kernel on `device`'s current stream; pointers are integers. Does not wait; CUDA graphs can capture it.

    A grid with a zero in it launches nothing.
    """
    launch_in_order(((kernel, grid),), device, arguments)


def launch_in_order(
    launches: Iterable[tuple[Kernel, Grid]], device: torch.device, arguments: Sequence[Argument]
) -> None:
    """As `launch`, of kernels that take the same arguments, one after the other."""
    # A launch goes to the current device, whichever the tensors live on.
    if not is_current(device):
        with torch.cuda.device(device):
            return launch_in_order(launches, device, arguments)
    for kernel, grid in launches:
        launch_here(kernel, grid, device.index, arguments)


def launch_here(kernel: Kernel, grid: Grid, index: int, arguments: Sequence[Argument]) -> None:
    """As `launch`, on the current device, which has this index."""
    if 0 in grid:
        return
    kernel(grid, current_stream(index), arguments)
    for observer in observers_of_launches():
        observer.launched(kernel.binary.name, kernel.text(), grid)


def empty(shape: _Sizes, stride: _Sizes, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor in new memory of a CUDA device."""
    if is_current(device):
        # It takes tuples alone, not even a torch.Size.
        return empty_here(tuple(shape), tuple(stride), dtype)
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


def empty_here(shape: _Sizes, stride: _Sizes, dtype: torch.dtype) -> torch.Tensor:
    """A tensor in new memory of the current CUDA device; shape and stride are tuples, and not a torch.Size."""
    return _guards._empty_strided_cuda(shape, stride, dtype)


def is_current(device: torch.device) -> bool:
    """Whether a CUDA device is the current one."""
    return torch._C._cuda_getDevice() == device.index


def current_stream(index: int) -> int:
    """The current stream of a device; without a Python object for it."""
    return torch._C._cuda_getCurrentRawStream(index)


def is_capturing() -> bool:
    """Whether a CUDA graph captures the current stream of the current device."""
    return torch._C._cuda_isCurrentStreamCapturing()
