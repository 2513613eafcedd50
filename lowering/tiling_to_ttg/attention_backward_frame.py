"""What all warps of the Hopper backward kernel share: arguments, buffers and barriers.

A ring of buffers runs ahead of the steps: queries and gradients of the output, with their `shift` and `delta`
(`tiling_to_tt/attention_backward_rows.py`). `count` numbers the steps of a program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from xdsl.dialects.builtin import AnyFloat, f32, i32

from compilemask.dialects.triton.layouts import (
    BlockedLayout,
    NvidiaMmaLayout,
    NvmmaSharedLayout,
    SliceLayout,
)
from compilemask.lowering.tiling_to_tt.builder import Arg, Value, ptr
from compilemask.lowering.tiling_to_tt.patch_order import geometry_arguments
from compilemask.lowering.tiling_to_ttg.attention_backward_config import SLOTS, HopperBackwardConfig
from compilemask.lowering.tiling_to_ttg.attention_config import CONSUMERS, ROWS, TILE, Patch
from compilemask.lowering.tiling_to_ttg.attention_frame import POINTER_ALIGNMENT
from compilemask.lowering.tiling_to_ttg.attention_maps import TileMap, TileOrder, map_arguments
from compilemask.lowering.tiling_to_ttg.builder import GpuKernelBuilder, slice_of, tensor_map, wgmma
from compilemask.lowering.tiling_to_ttg.builder_memory import Barrier, Barriers, Buffer, Descriptor

INPUTS, OUTPUTS = ("q", "k", "v", "grad"), ("grad_k", "grad_v")
SECTIONS = ("tiles", "order", "visits", "patterns", "columns")
SIZES = ("heads", "group", "queries", "keys", "key_tiles", "mask_batch_stride", "mask_head_stride", "all_heads")
"""`all_heads` counts the key heads of all batches."""


def kernel_arguments(config: HopperBackwardConfig) -> list[Arg]:
    """The kernel's arguments in order.

    Maps of tensors [B, H, S, D] have boxes of `config.queries` rows of q and grad, 128 of k and v, 64 of the outputs
    grad_k and grad_v. Those of `shift` and `delta`, f32 [B * Hq, NQ * 128], have boxes of `config.queries` numbers.
    `sum_q` points to the blocks of `tiling_to_tt/sum_blocks.py` for NQ * 128 rows of each head. Sections are those of
    the transposed descriptor.

    Where tiles are patches, `queries` and `keys` are lengths in patched order, in which the numbers and `sum_q` are
    too, and those of the image follow the sizes.
    """
    sums = [Arg("sum_q", ptr(f32), POINTER_ALIGNMENT)] if config.sums_queries else []
    return [
        *(argument for name in INPUTS for argument in map_arguments(name, config.key_patch)),
        *map(tensor_map, ("shift", "delta")),
        *(argument for name in OUTPUTS for argument in map_arguments(name, config.key_patch)),
        *sums,
        *(Arg(name, ptr(i32), POINTER_ALIGNMENT) for name in SECTIONS),
        *(Arg(name, i32) for name in SIZES),
        *geometry_arguments(config.key_patch),
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
    """What is loaded: a buffer, or one for each stage of the ring, and the tensor that it is loaded from."""

    buffer: Buffer
    map: TileMap


class Numbers(NamedTuple):
    """The same of a number for each row."""

    buffer: Buffer
    map: Descriptor


@dataclass(frozen=True)
class Frame:
    """The kernel's parts that all warps know."""

    kb: GpuKernelBuilder
    head_dim: int
    element_type: AnyFloat
    config: HopperBackwardConfig
    layouts: Layouts
    queries: TileOrder
    keys: TileOrder
    query: Source
    grad: Source
    """Of each stage, rows [queries, D]."""
    shift: Numbers
    delta: Numbers
    """Of each stage, a number for each row."""
    full: Barriers
    empty: Barriers
    """Of each stage."""
    key: Source
    value: Source
    """[128, D], loaded once."""
    keys_full: Barrier
    slopes: Buffer | None
    """[128 keys, queries of a step], which warpgroups exchange for the gradient of queries; `SLOTS` take turns."""
    key_map: TileMap
    value_map: TileMap
    """Of the gradients of keys and values."""

    def place(self, count: Value) -> tuple[Value, Value]:
        """The buffer of the count-th step, and the parity of the phase in which it is full."""
        stages = self.config.stages
        place = count % stages
        # A multiple of an odd number is as odd as its quotient; from that of a quotient by 3 ptxas would compute
        # addresses for each lane.
        return place, (count ^ place) % 2 if stages % 2 else (count // stages) % 2

    def rows(self, source: Source, place: Value) -> Buffer:
        """[queries, D] of a stage."""
        return source.buffer[place].reshape(self.config.queries, self.head_dim)

    def numbers(self, source: Numbers, place: Value) -> Buffer:
        """[queries] of a stage."""
        return source.buffer[place].reshape(self.config.queries)

    def loaded_once(self, source: Source, number: Value | None = None) -> Buffer:
        """Keys or values [128, D], for the number-th step if one is given.

        Its number, less than 2^31, is shifted to 0, but ptxas cannot know that: where matrices lie in shared memory is
        computed in each step anew. What is the same in all it keeps in 40 registers, and spills others for them.
        """
        index = 0 if number is None else self.kb.shift_right_unsigned(number, 31)
        return source.buffer[index].reshape(TILE, self.head_dim)

    def own_rows(self, source: Source, part: int, number: Value | None = None) -> Buffer:
        """The 64 keys or values of a warpgroup."""
        return self.loaded_once(source, number).part((part * ROWS, 0), (ROWS, self.head_dim))


def open_frame(kb: GpuKernelBuilder, head_dim: int, element_type: AnyFloat, config: HopperBackwardConfig) -> Frame:
    """Allocates shared memory and initializes barriers."""
    plain = NvmmaSharedLayout.of(f32.bitwidth, swizzle=0, rank=2)
    stages, queries = config.stages, config.queries

    def source(name: str, rows: int, patch: Patch | None, count: int | None = None) -> Source:
        buffer = kb.alloc((1, 1, rows, head_dim), element_type, count=count).named(f"{name}_buffer")
        return Source(buffer, TileMap(kb, name, rows, head_dim, element_type, patch))

    def numbers(name: str) -> Numbers:
        buffer = kb.alloc((1, queries), f32, plain, count=stages).named(f"{name}_buffer")
        return Numbers(buffer, kb.descriptor(name, (1, queries), f32, plain))

    slopes = kb.alloc((TILE, queries), element_type, count=SLOTS) if config.sums_queries else None
    frame = Frame(
        kb,
        head_dim,
        element_type,
        config,
        Layouts(wgmma(config.queries), wgmma(head_dim), rows_layout(head_dim)),
        TileOrder(kb, "queries", config.query_patch),
        TileOrder(kb, "keys", config.key_patch, of_keys=True),
        query=source("q", queries, config.query_patch, stages),
        grad=source("grad", queries, config.query_patch, stages),
        shift=numbers("shift"),
        delta=numbers("delta"),
        full=kb.barriers(stages),
        empty=kb.barriers(stages, CONSUMERS),
        key=source("k", TILE, config.key_patch, 1),
        value=source("v", TILE, config.key_patch, 1),
        keys_full=kb.barriers(1)[0],
        slopes=slopes,
        key_map=TileMap(kb, "grad_k", ROWS, head_dim, element_type, config.key_patch),
        value_map=TileMap(kb, "grad_v", ROWS, head_dim, element_type, config.key_patch),
    )
    kb.fence_async_shared()
    return frame


def rows_layout(head_dim: int) -> BlockedLayout:
    """Of rows [n, D] of a buffer, 16 bytes a thread."""
    lanes = head_dim // 8
    return BlockedLayout.of([1, 8], [32 // lanes, lanes], [4, 1], [1, 0])
