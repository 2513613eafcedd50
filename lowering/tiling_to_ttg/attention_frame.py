"""What all warps of the Hopper attention kernel share: arguments, buffers and barriers, and where tiles lie in rings.

The producer fills the rings `key` and `value` of buffers; a buffer's `full` barrier ends a phase when its bytes have
come, its `empty` barrier when all warpgroups have read it. `count` numbers the tiles that a program visits, so that
tile n uses buffer n % stages of a ring, in the phase of parity n / stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from xdsl.dialects.builtin import AnyFloat, f32, i32

from compilemask.dialects.tiling import AttentionOp
from compilemask.dialects.triton.layouts import BARRIER_LAYOUT, NvidiaMmaLayout, SliceLayout
from compilemask.lowering.tiling_to_tt.builder import Arg, Value, ptr
from compilemask.lowering.tiling_to_tt.patch_order import geometry_arguments
from compilemask.lowering.tiling_to_ttg.attention_bits import lanes_of
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS, TILE, HopperConfig, Schedule
from compilemask.lowering.tiling_to_ttg.attention_maps import TileMap, TileOrder, map_arguments
from compilemask.lowering.tiling_to_ttg.builder import GpuKernelBuilder, slice_of, wgmma
from compilemask.lowering.tiling_to_ttg.builder_memory import Barrier, Barriers, Buffer

POINTER_ALIGNMENT = 16
RECORD_WORDS = 16
"""Of a tile in shared memory."""
LIST_WORDS = 4
"""A head of a list, and the numbers of a `Progress`."""
PATTERN_WORDS = 4
TENSOR_MAPS = ("q", "k", "v", "out")
SECTIONS = ("order", "visits", "patterns", "columns")
SIZES = (
    "heads",
    "group",
    "queries",
    "keys",
    "query_tiles",
    "mask_batch_stride",
    "mask_head_stride",
    "all_heads",
    "heads_together",
    "sparse_heads_together",
)
"""`all_heads` counts the query heads of all batches; `heads_together` of them are computed before the next ones, or
`sparse_heads_together` if the mask is sparse."""


def kernel_arguments(config: HopperConfig) -> list[Arg]:
    """The kernel's arguments in order. Boxes of the maps have 64 rows of q and out, 128 of k and v.

    Where tiles are patches, `queries` and `keys` are lengths in patched order, and those of the image follow the sizes.
    """
    counter = [Arg("counter", ptr(i32), POINTER_ALIGNMENT)] if config.schedule is Schedule.ATOMIC else []
    return [
        *(argument for name in TENSOR_MAPS for argument in map_arguments(name, config.key_patch)),
        Arg("lse", ptr(f32)),
        *(Arg(name, ptr(i32), POINTER_ALIGNMENT) for name in SECTIONS),
        *counter,
        *(Arg(name, i32) for name in SIZES),
        *geometry_arguments(config.key_patch),
        Arg("scale", f32),
    ]


@dataclass(frozen=True)
class Layouts:
    """Where the threads of a warpgroup hold what: scores and output as wgmma leaves them."""

    scores: NvidiaMmaLayout
    output: NvidiaMmaLayout

    @property
    def lanes(self) -> SliceLayout:
        """[64, 4]: a number per row and lane of its quad."""
        return lanes_of(self.scores, TILE)

    @property
    def rows(self) -> SliceLayout:
        """[64]: a number per row of the scores."""
        return slice_of(self.scores, 1)


class Ring(NamedTuple):
    """Buffers of tiles [128, D] with the barriers that say who may use them.

    Behind the barriers for full buffers there are as many for cleaned ones, if anything cleans them.
    """

    buffers: Buffer
    full: Barriers
    empty: Barriers

    def place(self, kb: GpuKernelBuilder, count: Value) -> tuple[Value, Value]:
        """The buffer of the count-th tile, and the parity of the phase in which it is full."""
        stages = len(self.empty)
        if stages & (stages - 1) == 0:
            return count % stages, (count // stages) % 2
        return kb.trunc_rem(count, stages), kb.trunc_div(count, stages) % 2

    def cleaned_place(self, kb: GpuKernelBuilder, number: Value) -> tuple[Value, Value]:
        """The barrier for the number-th tile that was cleaned, and the parity of its phase."""
        place, phase = self.place(kb, number)
        return place + len(self.empty), phase


@dataclass(frozen=True)
class Frame:
    """The kernel's parts that all warps know."""

    kb: GpuKernelBuilder
    op: AttentionOp
    config: HopperConfig
    layouts: Layouts
    queries: TileOrder
    keys: TileOrder
    query_map: TileMap
    key_map: TileMap
    value_map: TileMap
    out_map: TileMap
    query: Buffer
    query_full: Barriers
    query_empty: Barriers
    key: Ring
    value: Ring
    turns: Barriers | None
    """Whose turn it is to issue matrix products; None if named barriers tell."""
    out: Buffer
    record: Buffer | None
    """The tile that a persistent program computes next."""
    record_full: Barrier | None
    record_empty: Barrier | None
    inexact: Buffer | None
    """Per consumer, the head of its list of inexact tiles, and its progress, if peaks are kept."""

    @property
    def head_dim(self) -> int:
        """D."""
        return self.op.head_dim

    @property
    def element_type(self) -> AnyFloat:
        """T."""
        return self.op.element_type

    @property
    def readers(self) -> int:
        """Partitions that read the record of a tile: the consumers and the cleaner."""
        return self.config.consumers + int(self.config.clean_values)


def open_frame(kb: GpuKernelBuilder, op: AttentionOp, config: HopperConfig) -> Frame:
    """Allocates shared memory and initializes barriers."""
    head_dim, element, consumers = op.head_dim, op.element_type, config.consumers
    for name in TENSOR_MAPS:
        for argument in map_arguments(name, config.key_patch):
            kb.prefetch_tensor_map(argument.name)
    query_box, of_queries, of_keys = (1, 1, ROWS, head_dim), (ROWS, config.query_patch), (TILE, config.key_patch)
    maps = [
        TileMap(kb, name, rows, head_dim, element, patch)
        for name, (rows, patch) in zip(TENSOR_MAPS, (of_queries, of_keys, of_keys, of_queries), strict=True)
    ]
    query = kb.alloc(query_box, element, count=consumers).named("query")
    key, value = _ring(kb, config, op, "key", config.key_stages), _ring(kb, config, op, "value", config.stages)
    persistent = config.is_persistent
    readers = consumers + int(config.clean_values)
    frame = Frame(
        kb,
        op,
        config,
        Layouts(wgmma(TILE), wgmma(head_dim)),
        TileOrder(kb, "queries", config.query_patch),
        TileOrder(kb, "keys", config.key_patch, of_keys=True),
        *maps,
        query=query,
        query_full=kb.barriers(consumers),
        query_empty=kb.barriers(consumers),
        key=key,
        value=value,
        turns=None if config.named_barriers else kb.barriers(consumers),
        out=kb.alloc(query_box, element, count=consumers).named("out") if persistent else query,
        record=kb.alloc((RECORD_WORDS,), i32, BARRIER_LAYOUT).named("record") if persistent else None,
        record_full=kb.barriers(1)[0] if persistent else None,
        record_empty=kb.barriers(1, readers)[0] if persistent else None,
        inexact=kb.alloc((LIST_WORDS,), i32, BARRIER_LAYOUT, count=consumers) if config.keeps_peaks else None,
    )
    kb.fence_async_shared()
    return frame


def _ring(kb: GpuKernelBuilder, config: HopperConfig, op: AttentionOp, name: str, stages: int) -> Ring:
    buffers = kb.alloc((1, 1, TILE, op.head_dim), op.element_type, count=stages).named(name)
    is_cleaned = config.clean_values and name == "value"
    full = kb.barriers(stages * (1 + int(is_cleaned)))
    return Ring(buffers, full, kb.barriers(stages, config.consumers))
