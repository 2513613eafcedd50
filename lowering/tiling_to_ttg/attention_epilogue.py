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


Finish = Callable[[Sequence[Value]], Sequence[Value]]
"""Does what remains to be done with a tile while the next tile's needs are fetched; what is carried to the next tile,
from what was carried to this one.
"""
End = Callable[[Frame, int, Tile, Value, Result, Sequence[Value]], Sequence[Value]]
"""What a warpgroup does with its rows of a tile in the end; what is carried on, from what was carried to it."""


def store(
    frame: Frame, part: int, tile: Tile, valid: Value, result: Result, carried: Sequence[Value]
) -> Sequence[Value]:
    """Stores rows that exist; NaN if the tile is not valid."""
    if result.scoring.is_pointwise:
        weight = frame.kb.where(valid, result.scoring.output_factor(), math.nan)
        _store_out(frame, part, tile, _finished(frame, result) * weight)
    else:
        total = sums(frame, result.softmax)
        lse = _log_sum_exps(frame, valid, result.softmax.peak, total)
        _store_weighed(frame, part, tile, valid, total, _finished(frame, result))
        _store_lse(frame, part, tile, lse)
    return carried


def store_if_exact(
    frame: Frame, part: int, tile: Tile, valid: Value, result: Result, carried: Sequence[Value]
) -> Sequence[Value]:
    """The same for rows that have kept their peaks if all are exact. Carries the list of tiles where not all are
    (`attention_inexact.py`).

    Warps agree on that while the last product still runs.
    """
    kb = frame.kb
    (inexact,), total = carried, sums(frame, result.softmax)
    lse = _log_sum_exps(frame, valid, result.softmax.peak, total)
    doubtful = is_doubtful(frame, part, tile, total)
    acc = _finished(frame, result)
    with kb.if_else(doubtful == 0) as sure:
        with sure.then():
            sure.yield_(doubtful)
        with sure.otherwise():
            sure.yield_(is_inexact(frame, part, tile, total, acc))
    exact = sure.results[0] == 0
    with kb.if_else(exact) as branch:
        with branch.then():
            _store_weighed(frame, part, tile, valid, total, acc)
            branch.yield_(inexact)
        with branch.otherwise():
            branch.yield_(put_on_list(frame, part, tile, inexact))
    _store_lse(frame, part, tile, lse, exact)
    return branch.results


def store_rows(frame: Frame, part: int, tile: Tile, valid: Value, softmax: Softmax, acc: Value) -> None:
    """Stores rows that exist, from weighed values [64, D]; NaN if the tile is not valid."""
    total = sums(frame, softmax)
    _store_weighed(frame, part, tile, valid, total, acc)
    _store_lse(frame, part, tile, _log_sum_exps(frame, valid, softmax.peak, total))


def sums(frame: Frame, softmax: Softmax) -> Value:
    """[64] sums of weights."""
    return frame.kb.convert_layout(frame.kb.reduce(softmax.total, 1, "sum"), frame.layouts.rows)


def _finished(frame: Frame, result: Result) -> Value:
    """[64, D] sums of weighed values."""
    return finish_product(frame, result.acc, result.number - 1)


def _store_weighed(frame: Frame, part: int, tile: Tile, valid: Value, total: Value, acc: Value) -> None:
    """Stores weighed values [64, D], divided by the sums of weights [64]."""
    kb, empty = frame.kb, total == 0.0
    weight = kb.where(empty, 0.0, kb.reciprocal_approximate(kb.where(empty, 1.0, total)))
    by_row = kb.convert_layout(kb.where(valid, weight, math.nan), slice_of(frame.layouts.output, 1))[:, None]
    _store_out(frame, part, tile, acc * by_row)


def _store_out(frame: Frame, part: int, tile: Tile, out: Value) -> None:
    kb, buffer = frame.kb, frame.out[part]
    if frame.config.is_persistent:
        kb.store_wait()
    buffer.reshape(ROWS, frame.head_dim).store(kb.cast(out, frame.element_type))
    kb.fence_async_shared()
    batch, head = tile.batch_and_head(frame)
    frame.out_map.store(frame.queries.box(batch, head, _first_row(frame, part, tile)), buffer)


def _log_sum_exps(frame: Frame, valid: Value, peak: Value, total: Value) -> Value:
    """[64], from peaks in base 2 and sums of weights; NaN if the tile is not valid."""
    kb = frame.kb
    lse = kb.where(total == 0.0, -math.inf, (peak + kb.log2_approximate(total)) * LN_2)
    return kb.where(valid, lse, math.nan)


def _store_lse(frame: Frame, part: int, tile: Tile, lse: Value, wanted: Value | None = None) -> None:
    """Stores the log-sum-exps [64] of rows that exist, if they are `wanted`.

    Behind the output: the fence before its copy waits for all that was stored.
    """
    kb = frame.kb
    row = frame.queries.positions(_first_row(frame, part, tile), kb.arange(0, ROWS, frame.layouts.rows))
    of_head = kb.arg("lse") + kb.cast(tile.head, i64) * kb.cast(frame.queries.length, i64)
    exists = row < frame.queries.length
    kb.store(of_head + row, lse, exists if wanted is None else exists & wanted)


def _first_row(frame: Frame, part: int, tile: Tile) -> Value:
    """In the order of tiles, of a warpgroup's rows."""
    return tile.number * frame.config.rows + part * ROWS
