"""Launches compiled kernels on the device and the current stream of a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from compilemask.passes.instrument import observers_of_launches
from compilemask.runtime.compile_kernel import ir_of

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

Argument = int | float


def launch(kernel: CompiledKernel, grid: tuple[int, int, int], device: torch.device, arguments: list[Argument]) -> None:
    """Start a kernel on `device`'s current stream; pointers are integers. Does not wait; CUDA graphs can capture it.

    A grid with a zero in it launches nothing.
    """
    if 0 in grid:
        return
    # Triton loads and launches on the current device, whichever the tensors live on.
    with torch.cuda.device(device):
        stream = torch.cuda.current_stream(device).cuda_stream
        kernel[grid](*arguments, stream=stream)
    for observer in observers_of_launches():
        observer.launched(kernel.metadata.name, ir_of(kernel), grid)
