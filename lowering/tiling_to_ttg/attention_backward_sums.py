"""How two warpgroups add to the gradient of queries: each multiplies slopes of both with keys, and adds its part."""

from __future__ import annotations

from xdsl.dialects.builtin import f32

from compilemask.dialects.triton.layouts import SwizzledSharedLayout
from compilemask.dialects.triton.ttg_types import MemDescType
from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_tt.sum_blocks import LINE, SIDE, WORDS
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS, TILE
from compilemask.lowering.tiling_to_ttg.builder import GpuKernelBuilder
from compilemask.lowering.tiling_to_ttg.builder_memory import Buffer, Product

BY_THREAD = (8, 128, 4)
"""A block of the sum: of each thread of a warpgroup, four numbers at once."""


def multiply_keys(frame: Frame, part: int, slopes: Buffer) -> Product:
    """Starts a warpgroup's part of slopes times keys: half of the columns, or half of the queries if D is 64."""
    keys = frame.key.buffer.reshape(TILE, frame.head_dim)
    if frame.config.queries == ROWS:
        return frame.kb.warp_group_dot(slopes.transpose(), keys.part((0, part * SIDE), (TILE, SIDE)))
    return frame.kb.warp_group_dot(slopes.part((0, part * ROWS), (TILE, ROWS)).transpose(), keys)


def add_to_queries(frame: Frame, part: int, product: Value, head: Value, first: Value) -> None:
    """Adds a warpgroup's part [64, 64] to the sum in memory, atomically: of a step of a head from query `first` on."""
    kb, exchange = frame.kb, frame.exchange
    assert exchange is not None
    buffer = exchange.part[part]
    kb.store_wait()
    in_order = MemDescType.of(BY_THREAD, f32, SwizzledSharedLayout.of((2, 1, 0)))
    buffer.reinterpret(in_order).store(_by_thread(kb, product))
    kb.fence_async_shared()
    # A step is one block of rows and two of columns, or the other way round.
    row_blocks = kb.ceil_div(kb.arg("queries"), TILE) * (TILE // SIDE)
    block = (head * row_blocks + first // SIDE) * (frame.head_dim // SIDE) + part
    exchange.sum_map.reduce("add", [block * (WORDS // LINE), 0], buffer)


def _by_thread(kb: GpuKernelBuilder, product: Value) -> Value:
    """An accumulator [64, 64] as a block of the sum; nothing moves."""
    warp, below, row, octet, lane, column = range(6)
    parts = kb.reshape(product, (4, 2, 8, 8, 4, 2))
    return kb.reshape(kb.trans(parts, (octet, warp, row, lane, below, column)), BY_THREAD)
