"""The end of a tile: out and lse of a warpgroup's rows. Rows that have seen nothing give 0 and -inf."""

from __future__ import annotations

import math

from xdsl.dialects.builtin import i32, i64

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS
from compilemask.lowering.tiling_to_ttg.attention_consumer import Result, finish_product
from compilemask.lowering.tiling_to_ttg.attention_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_tile import Tile
from compilemask.lowering.tiling_to_ttg.builder import slice_of

LN_2 = math.log(2)
SMALLEST_SUM, LARGEST_SUM = 2.0**-60, 2.0**100
"""Of a row's weights, whose peak was kept: below, products with values may vanish, above, they may overflow."""


def store(frame: Frame, part: int, tile: Tile, valid: Value, result: Result) -> None:
    """Stores rows that exist; NaN if the tile is not valid."""
    kb = frame.kb
    if result.scoring.is_pointwise:
        weight = result.scoring.output_factor()
        first_row = tile.number * frame.config.rows + part * ROWS
        _store_out(frame, part, tile, first_row, kb.where(valid, weight, math.nan), result)
        return
    total = kb.convert_layout(kb.reduce(result.softmax.total, 1, "sum"), frame.layouts.rows)
    empty = total == 0.0
    first_row = tile.number * frame.config.rows + part * ROWS
    _store_lse(frame, tile, first_row, valid, kb.where(empty, -math.inf, (result.softmax.peak + kb.log2(total)) * LN_2))
    weight = kb.where(empty, 0.0, 1.0 / kb.where(empty, 1.0, total))
    weight = kb.where(valid, weight, math.nan)
    by_row = kb.convert_layout(weight, slice_of(frame.layouts.output, 1))[:, None]
    _store_out(frame, part, tile, first_row, by_row, result, total)


def _name_if_inexact(frame: Frame, tile: Tile, first_row: Value, total: Value, seen: Value, acc: Value) -> None:
    """Names the tile in `redo` if a row's sum or output left the range in which they are exact: its scores lie too far
    from the peak that was kept.
    """
    kb, layout = frame.kb, frame.layouts.rows
    words = kb.convert_layout(kb.reduce(seen, 1, "or"), layout)
    not_seen = (words == 0) & (tile.n_full == 0)
    # Infinity and NaN times 0 are NaN.
    finite = kb.convert_layout(kb.reduce(acc * 0.0, 1, "sum"), layout) == 0.0
    exact = (total <= LARGEST_SUM) & ((total >= SMALLEST_SUM) | not_seen) & finite
    exists = frame.queries.positions(first_row, kb.arange(0, ROWS, layout)) < frame.queries.length
    inexact = kb.reduce(kb.where(exact, 0, kb.cast(exists, i32)), 0, "max")
    with kb.if_else(inexact != 0) as some, some.then():
        kb.store(kb.arg("redo"), 1)
        kb.store(tile.redo(frame), 1)


def _store_out(
    frame: Frame, part: int, tile: Tile, first_row: Value, weight: Value, result: Result, total: Value | None = None
) -> None:
    """Stores the output times a weight, a number or one per row; `total` are the sums of weights, if there are any."""
    kb = frame.kb
    acc = finish_product(frame, result.acc, result.number - 1)
    if result.seen is not None and total is not None:
        _name_if_inexact(frame, tile, first_row, total, result.seen, acc)
    out = acc * weight
    buffer = frame.out[part]
    if frame.config.is_persistent:
        kb.store_wait()
    buffer.reshape(ROWS, frame.head_dim).store(kb.cast(out, frame.element_type))
    kb.fence_async_shared()
    batch, head = tile.batch_and_head(frame)
    frame.out_map.store(frame.queries.box(batch, head, first_row), buffer)


def _store_lse(frame: Frame, tile: Tile, first_row: Value, valid: Value, lse: Value) -> None:
    kb = frame.kb
    row = frame.queries.positions(first_row, kb.arange(0, ROWS, frame.layouts.rows))
    of_head = kb.arg("lse") + kb.cast(tile.head, i64) * kb.cast(frame.queries.length, i64)
    kb.store(of_head + row, kb.where(valid, lse, math.nan), row < frame.queries.length)
