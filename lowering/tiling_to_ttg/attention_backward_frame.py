"""What all warps of the Hopper backward kernel share: arguments, buffers and barriers.

A ring of buffers runs ahead of the steps: queries and gradients of the output, with their `shift` and `delta`
(`tiling_to_tt/attention_backward_rows.py`). `count` numbers the steps of a program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xdsl.dialects.builtin import AnyFloat, f32, i32

from compilemask.dialects.triton.layouts import BlockedLayout, NvidiaMmaLayout, NvmmaSharedLayout, SliceLayout
from compilemask.lowering.tiling_to_tt.builder import Arg, Value, ptr
from compilemask.lowering.tiling_to_ttg.attention_backward_config import SUM_COLUMNS, HopperBackwardConfig
from compilemask.lowering.tiling_to_ttg.attention_config import CONSUMERS, ROWS, TILE
from compilemask.lowering.tiling_to_ttg.attention_frame import POINTER_ALIGNMENT
from compilemask.lowering.tiling_to_ttg.builder import GpuKernelBuilder, slice_of, tensor_map, tma_layout, wgmma
from compilemask.lowering.tiling_to_ttg.builder_memory import Barrier, Barriers, Buffer, Descriptor

SECTIONS = ("tiles", "order", "visits", "patterns")
SIZES = ("heads", "group", "queries", "keys", "key_tiles", "mask_batch_stride", "mask_head_stride")


def kernel_arguments(config: HopperBackwardConfig) -> list[Arg]:
    """The kernel's arguments in order.

    Maps of tensors [B, H, S, D] have boxes of `config.queries` rows of q and grad, 128 of k and v, 64 of the outputs
    grad_k and grad_v; `sum_q` is f32, with boxes of 64 rows and 64 columns. Those of `shift` and `delta`, f32
    [B * Hq, NQ * 128], have boxes of `config.queries` numbers. Sections are those of the transposed descriptor.
    """
    sums = ("sum_q",) if config.sums_queries else ()
    return [
        *map(tensor_map, ("q", "k", "v", "grad", "shift", "delta", *sums, "grad_k", "grad_v")),
        *(Arg(name, ptr(i32), POINTER_ALIGNMENT) for name in SECTIONS),
        *(Arg(name, i32) for name in SIZES),
        Arg("scale", f32),
    ]


@dataclass(frozen=True)
class Layouts:
    """Where the threads of a warpgroup hold what: `scores` are [64 keys, queries of a step], `sums` [64, D]."""

    scores: NvidiaMmaLayout
    sums: NvidiaMmaLayout
    rows: BlockedLayout
    """Rows [n, D] of a buffer, 16 bytes a thread."""

    @property
    def columns(self) -> SliceLayout:
        """A number per query of the scores."""
        return slice_of(self.scores, 0)


class Source(NamedTuple):
    """What is loaded: a buffer, or one for each stage of the ring, and the map that it is loaded through."""

    buffer: Buffer
    map: Descriptor


class Exchange(NamedTuple):
    """What the warpgroups need for the gradient of queries."""

    slopes: Buffer
    """Two buffers [128 keys, queries of a step], which take turns."""
    part: Buffer
    """[1, 1, 64, 64] f32 of each warpgroup."""
    sum_map: Descriptor


@dataclass(frozen=True)
class Frame:
    """The kernel's parts that all warps know."""

    kb: GpuKernelBuilder
    head_dim: int
    element_type: AnyFloat
    config: HopperBackwardConfig
    layouts: Layouts
    query: Source
    grad: Source
    """Of each stage, rows [queries, D]."""
    shift: Source
    delta: Source
    """Of each stage, a number for each row."""
    full: Barriers
    empty: Barriers
    """Of each stage."""
    key: Source
    value: Source
    """[128, D], loaded once."""
    keys_full: Barrier
    exchange: Exchange | None
    key_map: Descriptor
    value_map: Descriptor
    """Of the gradients of keys and values."""

    def place(self, count: Value) -> tuple[Value, Value]:
        """The buffer of the count-th step, and the parity of the phase in which it is full."""
        return count % self.config.stages, (count // self.config.stages) % 2

    def rows(self, source: Source, place: Value) -> Buffer:
        """[queries, D] of a stage."""
        return source.buffer[place].reshape(self.config.queries, self.head_dim)

    def numbers(self, source: Source, place: Value) -> Buffer:
        """[queries] of a stage."""
        return source.buffer[place].reshape(self.config.queries)

    def own_rows(self, source: Source, part: int) -> Buffer:
        """The 64 keys or values of a warpgroup."""
        return source.buffer.reshape(TILE, self.head_dim).part((part * ROWS, 0), (ROWS, self.head_dim))


def open_frame(kb: GpuKernelBuilder, head_dim: int, element_type: AnyFloat, config: HopperBackwardConfig) -> Frame:
    """Allocates shared memory and initializes barriers."""
    plain = NvmmaSharedLayout.of(f32.bitwidth, swizzle=0, rank=2)

    def source(name: str, box: Sequence[int], count: int | None = None, *, of_numbers: bool = False) -> Source:
        element, layout = (f32, plain) if of_numbers else (element_type, tma_layout(box, element_type))
        buffer = kb.alloc(box, element, layout, count=count).named(f"{name}_buffer")
        return Source(buffer, kb.descriptor(name, box, element, layout))

    stages, out_box = config.stages, (1, 1, ROWS, head_dim)
    rows, numbers, keys = (1, 1, config.queries, head_dim), (1, config.queries), (1, 1, TILE, head_dim)
    frame = Frame(
        kb,
        head_dim,
        element_type,
        config,
        Layouts(wgmma(config.queries), wgmma(head_dim), _rows_layout(head_dim)),
        query=source("q", rows, stages),
        grad=source("grad", rows, stages),
        shift=source("shift", numbers, stages, of_numbers=True),
        delta=source("delta", numbers, stages, of_numbers=True),
        full=kb.barriers(stages),
        empty=kb.barriers(stages, CONSUMERS),
        key=source("k", keys),
        value=source("v", keys),
        keys_full=kb.barriers(1)[0],
        exchange=_exchange(kb, config, element_type) if config.sums_queries else None,
        key_map=kb.descriptor("grad_k", out_box, element_type),
        value_map=kb.descriptor("grad_v", out_box, element_type),
    )
    kb.fence_async_shared()
    return frame


def _rows_layout(head_dim: int) -> BlockedLayout:
    lanes = head_dim // 8
    return BlockedLayout.of([1, 8], [32 // lanes, lanes], [4, 1], [1, 0])


def _exchange(kb: GpuKernelBuilder, config: HopperBackwardConfig, element: AnyFloat) -> Exchange:
    box = (1, 1, ROWS, SUM_COLUMNS)
    return Exchange(
        kb.alloc((TILE, config.queries), element, count=2).named("slopes"),
        kb.alloc(box, f32, count=CONSUMERS).named("part"),
        kb.descriptor("sum_q", box, f32),
    )
