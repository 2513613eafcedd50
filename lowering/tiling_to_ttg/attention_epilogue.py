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
End = Callable[[Frame, int, Tile, Value, Result], Finish]
"""What a warpgroup does with its rows of a tile in the end."""


def store(frame: Frame, part: int, tile: Tile, valid: Value, result: Result) -> Finish:
    """Stores rows that exist; NaN if the tile is not valid."""

    def finish(carried: Sequence[Value]) -> Sequence[Value]:
        if result.scoring.is_pointwise:
            weight = frame.kb.where(valid, result.scoring.output_factor(), math.nan)
            _store_out(frame, part, tile, _finished(frame, result) * weight)
        else:
            peak, total = result.softmax.peak, sums(frame, result.softmax)
            _store_lse(frame, part, tile, valid, peak, total)
            _store_weighed(frame, part, tile, valid, total, _finished(frame, result))
        return carried

    return finish


def store_if_exact(frame: Frame, part: int, tile: Tile, valid: Value, result: Result) -> Finish:
    """The same for rows that have kept their peaks if all are exact. Carries the list of tiles where not all are
    (`attention_inexact.py`).

    Warps agree on that before the next tile's needs are fetched: what was fetched would be waited for otherwise.
    """
    kb, peak, total = frame.kb, result.softmax.peak, sums(frame, result.softmax)
    doubtful = is_doubtful(frame, part, tile, total)
    _store_lse(frame, part, tile, valid, peak, total, doubtful == 0)

    def finish(carried: Sequence[Value]) -> Sequence[Value]:
        (inexact,), acc = carried, _finished(frame, result)
        with kb.if_else(doubtful != 0) as look:
            with look.then():
                found = is_inexact(frame, part, tile, total, acc)
                _store_lse(frame, part, tile, valid, peak, total, found == 0)
                look.yield_(found)
            with look.otherwise():
                look.yield_(doubtful)
        with kb.if_else(look.results[0] != 0) as branch:
            with branch.then():
                branch.yield_(put_on_list(frame, part, tile, inexact))
            with branch.otherwise():
                _store_weighed(frame, part, tile, valid, total, acc)
                branch.yield_(inexact)
        return branch.results

    return finish


def store_rows(frame: Frame, part: int, tile: Tile, valid: Value, softmax: Softmax, acc: Value) -> None:
    """Stores rows that exist, from weighed values [64, D]; NaN if the tile is not valid."""
    total = sums(frame, softmax)
    _store_lse(frame, part, tile, valid, softmax.peak, total)
    _store_weighed(frame, part, tile, valid, total, acc)


def sums(frame: Frame, softmax: Softmax) -> Value:
    """[64] sums of weights."""
    return frame.kb.convert_layout(frame.kb.reduce(softmax.total, 1, "sum"), frame.layouts.rows)


def _finished(frame: Frame, result: Result) -> Value:
    """[64, D] sums of weighed values."""
    return finish_product(frame, result.acc, result.number - 1)


def _store_weighed(frame: Frame, part: int, tile: Tile, valid: Value, total: Value, acc: Value) -> None:
    """Stores weighed values [64, D], divided by the sums of weights [64]."""
    kb, empty = frame.kb, total == 0.0
    weight = kb.where(empty, 0.0, 1.0 / kb.where(empty, 1.0, total))
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


def _store_lse(
    frame: Frame, part: int, tile: Tile, valid: Value, peak: Value, total: Value, wanted: Value | None = None
) -> None:
    """Stores the log-sum-exps, from peaks in base 2 and sums of weights [64], if they are `wanted`."""
    kb = frame.kb
    lse = kb.where(total == 0.0, -math.inf, (peak + kb.log2(total)) * LN_2)
    row = frame.queries.positions(_first_row(frame, part, tile), kb.arange(0, ROWS, frame.layouts.rows))
    of_head = kb.arg("lse") + kb.cast(tile.head, i64) * kb.cast(frame.queries.length, i64)
    exists = row < frame.queries.length
    kb.store(of_head + row, kb.where(valid, lse, math.nan), exists if wanted is None else exists & wanted)


def _first_row(frame: Frame, part: int, tile: Tile) -> Value:
    """In the order of tiles, of a warpgroup's rows."""
    return tile.number * frame.config.rows + part * ROWS
