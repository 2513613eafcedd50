"""The gradient of attention for queries, along a descriptor: query rows in lanes, keys listed."""

from __future__ import annotations

import math

from compilemask.lowering.tiling_to_scf.attention_backward_slopes import PerQuery, Side, signature, slopes
from compilemask.lowering.tiling_to_scf.attention_frame import Blocks, Frame
from compilemask.lowering.tiling_to_scf.attention_products import Rows, Sum, add, clear, load_rows, store_rows
from compilemask.lowering.tiling_to_scf.attention_tiles import LaneRows, RowTile, Visits, follow
from compilemask.lowering.tiling_to_scf.builder import Value

SIGNATURE = signature("attention_backward_queries", "grad_query")


def attention_backward_queries(head_dim: int, blocks: Blocks) -> str:
    """The module; its function follows a mask's descriptor."""
    frame = Frame.open(SIGNATURE, head_dim, blocks)
    fb, sizes = frame.fb, frame.sizes
    with fb.numbers_below(fb.arg("counter"), fb.integer(sizes["items"], "i64")) as item:
        number, rank = item // sizes["tiles"], item % sizes["tiles"]
        batch, query_head = number // sizes["heads"], number % sizes["heads"]
        query, grad_out, grad_query = (
            Rows.of(frame, name, batch, query_head) for name in ("query", "grad_out", "grad_query")
        )
        key, value = (Rows.of(frame, name, batch, query_head // sizes["group"]) for name in ("key", "value"))
        mask = frame.mask(batch, query_head)
        tile = RowTile.of(frame, mask, rank)
        visits = Visits.of(frame, mask, tile.number)
        with fb.for_loop(fb.constant(0), tile.rows, blocks.lanes) as loop:
            rows = LaneRows(loop.index, fb.minimum(fb.constant(blocks.lanes), tile.rows - loop.index))
            first = tile.first_row + rows.first
            load_rows(frame, query, first, rows.size, fb.arg("scale") * math.log2(math.e))
            load_rows(frame, grad_out, first, rows.size)
            clear(frame, frame.rows_of("grad_query"))
            of = _of_lanes(frame, number * sizes["queries"] + first, rows.size)
            _follow(frame, visits, rows, of, key, value)
            factor = fb.splat(visits.fault(frame, fb.arg("scale")), blocks.lanes)
            store_rows(frame, grad_query, first, rows.size, factor)
    return fb.finish()


def _of_lanes(frame: Frame, first: Value, count: Value) -> PerQuery:
    """lse and delta of the lanes' rows; 0 behind them."""
    fb, lanes, zero = frame.fb, frame.blocks.lanes, frame.fb.constant(0)
    found: list[Value] = []
    for name in ("lse", "delta"):
        memory = frame.lanes_of(name)
        fb.store(frame.zeros(), memory, zero)
        with fb.for_loop(zero, count) as loop:
            fb.store(fb.load(fb.arg(name), first + loop.index), memory, loop.index)
        found.append(fb.load(memory, zero, lanes))
    lse, delta = found[0] * math.log2(math.e), found[1]
    return PerQuery(lambda _: lse, lambda _: delta)


def _follow(frame: Frame, visits: Visits, rows: LaneRows, of: PerQuery, key: Rows, value: Rows) -> None:
    def visit(_: object, count: Value, masked: bool) -> list[Value]:
        slopes(frame, Side("query", key), Side("grad_out", value), of, count, masked)
        add(frame, Sum(frame.rows_of("grad_query"), frame.tile_of("slopes"), key, count))
        return []

    follow(frame, visits, rows, [], visit)
