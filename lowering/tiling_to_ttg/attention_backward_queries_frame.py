"""What all warps of the Hopper kernel for gradients of queries share: arguments, buffers, barriers, and its tile.

A ring of buffers of keys and values runs ahead of the steps. `number` counts the steps of a program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from xdsl.dialects.builtin import AnyFloat, f32, i32

from compilemask.dialects.triton.layouts import BlockedLayout, NvidiaMmaLayout, SliceLayout
from compilemask.lowering.descriptor_layout import ORDER_WORDS
from compilemask.lowering.tiling_to_tt.attention_backward_frame import mask_of_head, numbers_of_head
from compilemask.lowering.tiling_to_tt.builder import Arg, Value, ptr
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import rows_layout
from compilemask.lowering.tiling_to_ttg.attention_backward_queries_config import HopperQueriesConfig
from compilemask.lowering.tiling_to_ttg.attention_backward_visits import UNSEEN
from compilemask.lowering.tiling_to_ttg.attention_bits import lanes_of, octets_seen
from compilemask.lowering.tiling_to_ttg.attention_config import CONSUMERS, ROWS, TILE
from compilemask.lowering.tiling_to_ttg.attention_frame import PATTERN_WORDS, POINTER_ALIGNMENT
from compilemask.lowering.tiling_to_ttg.attention_order import own_place
from compilemask.lowering.tiling_to_ttg.builder import GpuKernelBuilder, slice_of, tensor_map, wgmma
from compilemask.lowering.tiling_to_ttg.builder_memory import Barrier, Barriers, Buffer, Descriptor

TENSOR_MAPS = ("q", "k", "v", "grad", "grad_q")
NUMBERS = ("shift", "delta")
SECTIONS = ("order", "visits", "patterns", "columns")
SIZES = (
    "heads",
    "group",
    "queries",
    "keys",
    "stored",
    "query_tiles",
    "mask_batch_stride",
    "mask_head_stride",
    "all_heads",
)
"""`all_heads` counts the query heads of all batches."""


def kernel_arguments() -> list[Arg]:
    """The kernel's arguments in order.

    Boxes of the maps [B, H, S, D] have 64 rows of q, grad and grad_q, and `config.keys` of k and v. `shift` and `delta`
    are [B, Hq, stored] f32. Sections are those of the mask's own descriptor.
    """
    return [
        *map(tensor_map, TENSOR_MAPS),
        *(Arg(name, ptr(f32), POINTER_ALIGNMENT) for name in NUMBERS),
        *(Arg(name, ptr(i32), POINTER_ALIGNMENT) for name in SECTIONS),
        *(Arg(name, i32) for name in SIZES),
        Arg("scale", f32),
    ]


@dataclass(frozen=True)
class Layouts:
    """Where the threads of a warpgroup hold what: `scores` are [64 queries, keys of a step], `sums` [64, D]."""

    scores: NvidiaMmaLayout
    sums: NvidiaMmaLayout
    rows: BlockedLayout
    """Rows [n, D] of a buffer, 16 bytes a thread."""

    @property
    def numbers(self) -> SliceLayout:
        """A number per query of the scores."""
        return slice_of(self.scores, 1)


class Source(NamedTuple):
    """What is loaded: an array of buffers, and the tensor that it is loaded from."""

    buffer: Buffer
    map: Descriptor


@dataclass(frozen=True)
class Frame:
    """The kernel's parts that all warps know."""

    kb: GpuKernelBuilder
    head_dim: int
    element_type: AnyFloat
    config: HopperQueriesConfig
    layouts: Layouts
    query: Source
    grad: Source
    """Of each warpgroup, rows [64, D]."""
    rows_full: Barrier
    key: Source
    value: Source
    """Of each stage, rows [keys, D]."""
    full: Barriers
    empty: Barriers
    """Of each stage."""
    output: Descriptor

    def place(self, number: Value) -> tuple[Value, Value]:
        """The buffer of a step, and the parity of the phase in which it is full."""
        return number % self.config.stages, (number // self.config.stages) % 2

    def own_rows(self, source: Source, part: int) -> Buffer:
        """[64, D] of a warpgroup."""
        return source.buffer[part].reshape(ROWS, self.head_dim)

    def step_rows(self, source: Source, place: Value) -> Buffer:
        """[keys, D] of a stage."""
        return source.buffer[place].reshape(self.config.keys, self.head_dim)


def open_frame(kb: GpuKernelBuilder, head_dim: int, element_type: AnyFloat, config: HopperQueriesConfig) -> Frame:
    """Allocates shared memory and initializes barriers."""

    def source(name: str, rows: int, count: int) -> Source:
        box = (1, 1, rows, head_dim)
        buffer = kb.alloc(box, element_type, count=count).named(f"{name}_buffer")
        return Source(buffer, kb.descriptor(name, box, element_type))

    frame = Frame(
        kb,
        head_dim,
        element_type,
        config,
        Layouts(wgmma(config.keys), wgmma(head_dim), rows_layout(head_dim)),
        query=source("q", ROWS, CONSUMERS),
        grad=source("grad", ROWS, CONSUMERS),
        rows_full=kb.barriers(1)[0],
        key=source("k", config.keys, config.stages),
        value=source("v", config.keys, config.stages),
        full=kb.barriers(config.stages),
        empty=kb.barriers(config.stages, CONSUMERS),
        output=kb.descriptor("grad_q", (1, 1, ROWS, head_dim), element_type),
    )
    kb.fence_async_shared()
    return frame


class QueryTile(NamedTuple):
    """The tile of queries of a program, and what it visits; numbers are i32."""

    number: Value
    head: Value
    """Batch times query heads plus query head."""
    pairs: Value
    """Address of the first pair."""
    n_partial: Value
    n_runs: Value
    missing: Value
    """i1: the descriptor had no room for the tile's visits."""
    unseen: Value
    """Not 0 if there may be keys that no query sees."""

    def first_row(self, part: int) -> Value:
        """The first query of a warpgroup."""
        return self.number * TILE + part * ROWS

    def batch_and_head(self, frame: Frame) -> tuple[Value, Value]:
        """Batch and query head."""
        kb = frame.kb
        return kb.trunc_div(self.head, kb.arg("heads")), kb.trunc_rem(self.head, kb.arg("heads"))

    def pair(self, frame: Frame, index: Value | int) -> tuple[Value, Value]:
        """The words of the index-th visit, 0 if there is none: key tile and pattern, or first and end of a run."""
        first, second = (
            frame.kb.load(self.pairs + index * 2 + word, self.n_partial + self.n_runs > index, 0) for word in range(2)
        )
        return first, second

    def span(self, frame: Frame, index: Value, pair: tuple[Value, Value]) -> tuple[Value, Value]:
        """First key of the index-th visit, and the one behind its last, from its pair of words."""
        kb, (first, second) = frame.kb, pair
        end = kb.where(index < self.n_partial, first + 1, second)
        return first * TILE, kb.minimum(end * TILE, kb.arg("keys"))


def own_tile(frame: Frame, num_warps: int) -> QueryTile:
    """The tile of this program, of one head behind the other; but the long tiles of all heads come first."""
    kb = frame.kb
    tiles = kb.arg("query_tiles")
    rank, head = own_place(kb, tiles, num_warps)
    record = kb.arg("order") + (mask_of_head(kb, head) * tiles + rank) * ORDER_WORDS
    number, first_pair, n_partial, n_runs = (kb.load(record + word) for word in range(4))
    missing = n_partial < 0
    return QueryTile(
        number.named("query_tile"),
        head,
        kb.arg("visits") + first_pair * 2,
        kb.maximum(n_partial, 0),
        kb.where(missing, 0, n_runs),
        missing,
        kb.load(record + UNSEEN),
    )


def numbers_of(frame: Frame, tile: QueryTile, part: int, name: str) -> Value:
    """[64, 1]: `shift` or `delta` of a warpgroup's queries."""
    kb = frame.kb
    row = tile.first_row(part) + kb.arange(0, ROWS, frame.layouts.numbers)
    return kb.load(numbers_of_head(kb, name, kb.constant(0), tile.head, "stored") + row)[:, None]


class Patterns:
    """Who sees whom in a warpgroup's 64 rows of the tile: a word for each row and lane of its quad."""

    def __init__(self, frame: Frame, part: int) -> None:
        kb, layout = frame.kb, lanes_of(frame.layouts.scores, frame.config.keys)
        row = kb.arange(0, ROWS, slice_of(layout, 1))[:, None] + part * ROWS
        lane = kb.arange(0, PATTERN_WORDS, slice_of(layout, 0))[None, :]
        self.kb, self.part, self.addresses = kb, part, kb.arg("patterns") + (row * PATTERN_WORDS + lane)

    def fetched(self, pattern: Value) -> tuple[Value, Value]:
        """The words [64, 4] of a pattern, and bits of the octets of keys that some of the rows see.

        Of the first pattern for visits that have none.
        """
        seen = octets_seen(self.kb, self.part, pattern)
        return self.kb.load(self.addresses + pattern * (TILE * PATTERN_WORDS)), seen
