"""The end of a tile: out and lse of a warpgroup's rows. Rows that have seen nothing give 0 and -inf."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import i64

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS
from compilemask.lowering.tiling_to_ttg.attention_consumer import Result, finish_product
from compilemask.lowering.tiling_to_ttg.attention_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_inexact import is_doubtful, is_inexact, put_on_list
from compilemask.lowering.tiling_to_ttg.attention_softmax import Softmax
from compilemask.lowering.tiling_to_ttg.attention_tile import Tile
from compilemask.lowering.tiling_to_ttg.builder import slice_of

LN_2 = math.log(2)


End = Callable[[Frame, int, Tile, Value, Result, Sequence[Value]], Sequence[Value]]
"""What a warpgroup does with its rows of a tile in the end; gives what is carried to the next tile."""


def store(
    frame: Frame, part: int, tile: Tile, valid: Value, result: Result, carried: Sequence[Value]
) -> Sequence[Value]:
    """Stores rows that exist; NaN if the tile is not valid."""
    if result.scoring.is_pointwise:
        weight = frame.kb.where(valid, result.scoring.output_factor(), math.nan)
        _store_out(frame, part, tile, _finished(frame, result) * weight)
    else:
        softmax = result.softmax
        store_rows(frame, part, tile, valid, softmax.peak, sums(frame, softmax), lambda: _finished(frame, result))
    return carried


def store_if_exact(
    frame: Frame, part: int, tile: Tile, valid: Value, result: Result, carried: Sequence[Value]
) -> Sequence[Value]:
    """The same for rows that have kept their peaks if all are exact. Carries the list of tiles where not all are
    (`attention_inexact.py`).
    """
    kb, (inexact,) = frame.kb, carried
    total = sums(frame, result.softmax)
    doubtful = is_doubtful(frame, part, tile, total)
    acc = _finished(frame, result)
    with kb.if_else(doubtful) as look:
        with look.then():
            look.yield_(is_inexact(frame, part, tile, total, acc))
        with look.otherwise():
            look.yield_(doubtful)
    with kb.if_else(look.results[0]) as branch:
        with branch.then():
            branch.yield_(put_on_list(frame, part, tile, inexact))
        with branch.otherwise():
            store_rows(frame, part, tile, valid, result.softmax.peak, total, lambda: acc)
            branch.yield_(inexact)
    return branch.results


def sums(frame: Frame, softmax: Softmax) -> Value:
    """[64] sums of weights."""
    return frame.kb.convert_layout(frame.kb.reduce(softmax.total, 1, "sum"), frame.layouts.rows)


def _finished(frame: Frame, result: Result) -> Value:
    """[64, D] sums of weighed values."""
    return finish_product(frame, result.acc, result.number - 1)


def store_rows(
    frame: Frame, part: int, tile: Tile, valid: Value, peak: Value, total: Value, acc: Callable[[], Value]
) -> None:
    """Stores lse, from peaks in base 2 and sums of weights [64], then out, for whose weighed values [64, D] it waits
    last.
    """
    kb = frame.kb
    empty = total == 0.0
    _store_lse(frame, part, tile, valid, kb.where(empty, -math.inf, (peak + kb.log2(total)) * LN_2))
    weight = kb.where(empty, 0.0, 1.0 / kb.where(empty, 1.0, total))
    weight = kb.where(valid, weight, math.nan)
    by_row = kb.convert_layout(weight, slice_of(frame.layouts.output, 1))[:, None]
    _store_out(frame, part, tile, acc() * by_row)


def _store_out(frame: Frame, part: int, tile: Tile, out: Value) -> None:
    kb, buffer = frame.kb, frame.out[part]
    if frame.config.is_persistent:
        kb.store_wait()
    buffer.reshape(ROWS, frame.head_dim).store(kb.cast(out, frame.element_type))
    kb.fence_async_shared()
    batch, head = tile.batch_and_head(frame)
    frame.out_map.store(frame.queries.box(batch, head, _first_row(frame, part, tile)), buffer)


def _store_lse(frame: Frame, part: int, tile: Tile, valid: Value, lse: Value) -> None:
    kb = frame.kb
    row = frame.queries.positions(_first_row(frame, part, tile), kb.arange(0, ROWS, frame.layouts.rows))
    of_head = kb.arg("lse") + kb.cast(tile.head, i64) * kb.cast(frame.queries.length, i64)
    kb.store(of_head + row, kb.where(valid, lse, math.nan), row < frame.queries.length)


def _first_row(frame: Frame, part: int, tile: Tile) -> Value:
    """In the order of tiles, of a warpgroup's rows."""
    return tile.number * frame.config.rows + part * ROWS
