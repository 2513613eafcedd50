"""Attention on a GPU: the Hopper kernel where it can be had, else the portable one."""

from __future__ import annotations

import warnings
from functools import cache, lru_cache
from typing import NamedTuple

import torch

from compilemask.errors import TargetError
from compilemask.lowering.descriptor_layout import Layout
from compilemask.lowering.tiling_to_tt.attention import attention_module, attention_op
from compilemask.lowering.tiling_to_ttg.attention import HopperConfig, Schedule, emit
from compilemask.lowering.tiling_to_ttg.attention_config import HEAD_DIMS, ROWS, TILE
from compilemask.lowering.tiling_to_ttg.attention_frame import kernel_arguments
from compilemask.runtime.attention_cuda import ELEMENTS, WORD, attention_cuda
from compilemask.runtime.compile_kernel import target_of
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.hopper_compile import HOPPER, Binary, compile_gpu_text, gpu_text
from compilemask.runtime.hopper_driver import Kernel, bindings, tensor_map
from compilemask.runtime.scoring import UNMODIFIED, Scoring

CACHED_BYTES = 36 << 20
"""Keys and values of heads that are computed together, so that they stay in the L2 cache of 50 MB."""
DTYPES = (torch.float16, torch.bfloat16)


def attention_gpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    descriptor: Descriptor,
    scale: float,
    scoring: Scoring = UNMODIFIED,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [B, Hq, Sq, D] in the input type and lse [B, Hq, Sq] in float32. Does not wait. Takes checked arguments."""
    if not scoring.text and has_hopper_kernel(query, key, value) and (config := _chosen(query.shape[-1], query.dtype)):
        return attention_hopper(query, key, value, descriptor, scale, config)
    return attention_cuda(query, key, value, descriptor, scale, scoring)


def has_hopper_kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether these are inputs that the Hopper kernel takes, on a GPU that runs it, and cuda-bindings is installed.

    It takes float16 and bfloat16, D 64 or 128, and tensors that TMA can read: starts and strides are multiples of 16
    bytes, and the last dimension is contiguous.
    """
    if query.dtype not in DTYPES or query.shape[-1] not in HEAD_DIMS:
        return False
    if target_of(query.device) != HOPPER or bindings() is None:
        return False
    return all(tensor_map(x, rows) for x, rows in ((query, ROWS), (key, TILE), (value, TILE)))


def attention_hopper(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    descriptor: Descriptor,
    scale: float,
    config: HopperConfig,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of a variant of the Hopper kernel, for inputs of which `has_hopper_kernel` holds."""
    batch, heads, queries, head_dim = query.shape
    out = torch.empty((batch, heads, queries, head_dim), dtype=query.dtype, device=query.device)
    lse = torch.empty((batch, heads, queries), dtype=torch.float32, device=query.device)
    launch = prepare_launch(query, key, value, out, lse, descriptor, scale, config)
    launch()
    return out, lse


class Launch(NamedTuple):
    """A kernel with its arguments; calling it starts it on the current stream."""

    kernel: Kernel
    programs: int
    arguments: list[bytes | int | float]
    device: torch.device
    counter: torch.Tensor | None
    """Kept alive with the launch."""

    def __call__(self) -> None:
        index = self.device.index
        if torch.cuda.current_device() == index:
            self.kernel(self.programs, _stream(index), self.arguments)
        else:
            with torch.cuda.device(index):
                self.kernel(self.programs, _stream(index), self.arguments)


def prepare_launch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    descriptor: Descriptor,
    scale: float,
    config: HopperConfig,
) -> Launch:
    """The launch of a variant for these tensors."""
    device = query.device
    layout, heads = descriptor.layout, query.shape[1]
    all_heads = query.shape[0] * heads
    tiles = layout.query_tiles * all_heads
    base = descriptor.buffer.data_ptr()
    counter = _counter(device) if config.schedule is Schedule.ATOMIC else None
    maps = [tensor_map(x, rows) for x, rows in ((query, ROWS), (key, TILE), (value, TILE), (out, ROWS))]
    arguments: list[bytes | int | float] = [
        *(found for found in maps if found is not None),
        lse.data_ptr(),
        *(base + offset for offset in _section_bytes(layout)),
        *([] if counter is None else [counter.data_ptr()]),
        *(heads, heads // key.shape[1], layout.queries, layout.keys, layout.query_tiles),
        *(layout.heads if layout.batch > 1 else 0, 1 if layout.heads > 1 else 0),
        *(all_heads, heads_together(key, heads, all_heads)),
        scale,
    ]
    programs = min(tiles, _processors(device)) if config.is_persistent else tiles
    return Launch(_kernel(query.shape[-1], query.dtype, config, device.index), programs, arguments, device, counter)


@lru_cache(maxsize=256)
def _section_bytes(layout: Layout) -> tuple[int, ...]:
    """Where the sections that the kernel reads start."""
    return tuple(WORD * x for x in (layout.order, layout.visits, layout.patterns, layout.columns))


def heads_together(key: torch.Tensor, heads: int, all_heads: int) -> int:
    """Query heads whose keys and values fit the L2 cache: a power of two of key heads."""
    bytes_per_head = 2 * key.shape[2] * key.shape[3] * key.element_size()
    key_heads = max(CACHED_BYTES // bytes_per_head, 1)
    power = 1 << (key_heads.bit_length() - 1)
    return min(all_heads, power * (heads // key.shape[1]))


# ---------------------------------------------------------------- kernels


@lru_cache(maxsize=64)
def hopper_binary(head_dim: int, dtype: torch.dtype, config: HopperConfig) -> Binary:
    """A compiled variant of the kernel. Needs no GPU. Raises LoweringError or TargetError if there is none."""
    module = emit(attention_op(attention_module(head_dim, ELEMENTS[dtype])), config)
    return compile_gpu_text(gpu_text(module), len(kernel_arguments(config)))


@lru_cache(maxsize=64)
def _kernel(head_dim: int, dtype: torch.dtype, config: HopperConfig, device: int) -> Kernel:
    binary = hopper_binary(head_dim, dtype, config)
    with torch.cuda.device(device):
        return Kernel(binary)


@cache
def _chosen(head_dim: int, dtype: torch.dtype) -> HopperConfig | None:
    """The variant for these inputs; None, and a warning, if the installed Triton does not compile it."""
    config = HopperConfig.choose(head_dim, ELEMENTS[dtype])
    try:
        hopper_binary(head_dim, dtype, config)
    except TargetError as error:
        warnings.warn(f"attention uses the portable kernel: {error}", RuntimeWarning, stacklevel=2)
        return None
    return config


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _stream(index: int) -> int:
    """The current stream; without a Python object for it, which takes microseconds."""
    return torch._C._cuda_getCurrentRawStream(index)


# ---------------------------------------------------------------- counters of the atomic schedule

_counters: dict[tuple[int, int], torch.Tensor] = {}


def _counter(device: torch.device) -> torch.Tensor:
    """Two zeros that no other launch uses at the same time: one pair a stream, and one for each launch in a graph.

    Each launch leaves zeros.
    """
    if torch.cuda.is_current_stream_capturing():
        return torch.zeros(2, dtype=torch.int32, device=device)
    key = (device.index, _stream(device.index))
    if key not in _counters:
        _counters[key] = torch.zeros(2, dtype=torch.int32, device=device)
    return _counters[key]
