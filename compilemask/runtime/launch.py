"""Launches compiled kernels on the device and the current stream of a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compilemask.passes.instrument import observers_of_launches
from compilemask.runtime.driver import Argument, Grid, Kernel


def launch(kernel: Kernel, grid: Grid, device: torch.device, arguments: Sequence[Argument]) -> None:
    """Start a kernel on `device`'s current stream; pointers are integers. Does not wait; CUDA graphs can capture it.

    A grid with a zero in it launches nothing.
    """
    if 0 in grid:
        return
    index = device.index
    # A launch goes to the current device, whichever the tensors live on.
    if torch.cuda.current_device() == index:
        kernel(grid, current_stream(index), arguments)
    else:
        with torch.cuda.device(index):
            kernel(grid, current_stream(index), arguments)
    for observer in observers_of_launches():
        observer.launched(kernel.binary.name, kernel.text(), grid)


def current_stream(index: int) -> int:
    """The current stream of a device; without a Python object for it, which takes microseconds."""
    return torch._C._cuda_getCurrentRawStream(index)
