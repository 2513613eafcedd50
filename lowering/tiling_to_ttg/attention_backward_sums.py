"""How two warpgroups add to the gradient of queries: each multiplies slopes of both with keys, and adds its part."""

from __future__ import annotations

from xdsl.dialects.builtin import i32, i64

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_tt.sum_blocks import SIDE, WORDS, place_in_block
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS, TILE
from compilemask.lowering.tiling_to_ttg.builder import slice_of, wgmma
from compilemask.lowering.tiling_to_ttg.builder_memory import Buffer, Product


def multiply_keys(frame: Frame, part: int, slopes: Buffer, number: Value) -> Product:
    """Starts a warpgroup's part of slopes times keys: half of the columns, or half of the queries if D is 64."""
    keys = frame.loaded_once(frame.key, number)
    if frame.config.queries == ROWS:
        return frame.kb.warp_group_dot(slopes.transpose(), keys.part((0, part * SIDE), (TILE, SIDE)))
    return frame.kb.warp_group_dot(slopes.part((0, part * ROWS), (TILE, ROWS)).transpose(), keys)


def no_block(frame: Frame) -> Value:
    """That of a step before the first."""
    return frame.kb.constant(-1, i32)


def block_of(frame: Frame, part: int, head: Value, first: Value) -> Value:
    """The block that a warpgroup's part belongs to, of a step of a head from query `first` on."""
    kb = frame.kb
    # A step is one block of rows and two of columns, or the other way round.
    row_blocks = kb.ceil_div(kb.arg("queries"), TILE) * (TILE // SIDE)
    return (head * row_blocks + first // SIDE) * (frame.head_dim // SIDE) + part


def add_to_queries(frame: Frame, product: Value, block: Value) -> None:
    """Adds a part [64, 64] to a block of the sum in memory, atomically, if there is one.

    A thread adds four numbers at once, and those of a warp lie side by side. By itself that takes 1 to 2 % more time
    than to let TMA add the block from shared memory, but it leaves 32 KB more to the first cache.
    """
    kb, layout = frame.kb, wgmma(SIDE)
    row, column = (kb.arange(0, SIDE, slice_of(layout, 1 - dim)) for dim in range(2))
    numbers = kb.arg("sum_q") + kb.cast(block, i64) * WORDS
    kb.add_in_memory(numbers + place_in_block(row[:, None], column[None, :]), product, block)
