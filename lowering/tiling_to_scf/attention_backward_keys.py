"""The gradients of attention for keys and values, along the descriptor of the transposed mask: key rows in lanes,
queries listed, and all query heads that read a key head one after another."""

from __future__ import annotations

import math

from compilemask.lowering.tiling_to_scf.attention_backward_slopes import PerQuery, Side, signature, slopes
from compilemask.lowering.tiling_to_scf.attention_frame import Blocks, Frame
from compilemask.lowering.tiling_to_scf.attention_products import Rows, Sum, add, clear, load_rows, store_rows
from compilemask.lowering.tiling_to_scf.attention_tiles import LaneRows, RowTile, Visits, follow
from compilemask.lowering.tiling_to_scf.builder import F32, Value

SIGNATURE = signature("attention_backward_keys", "grad_key", "grad_value")


def attention_backward_keys(head_dim: int, blocks: Blocks) -> str:
    """The module; its function follows the descriptor of a transposed mask."""
    frame = Frame.open(SIGNATURE, head_dim, blocks)
    fb, sizes = frame.fb, frame.sizes
    with fb.numbers_below(fb.arg("counter"), fb.integer(sizes["items"], "i64")) as item:
        number, rank = item // sizes["tiles"], item % sizes["tiles"]
        batch, key_head = number // sizes["heads"], number % sizes["heads"]
        key, value, grad_key, grad_value = (
            Rows.of(frame, name, batch, key_head) for name in ("key", "value", "grad_key", "grad_value")
        )
        # All heads take the order of the first one.
        tile = RowTile.of(frame, frame.mask(batch, key_head * sizes["group"]), rank)
        with fb.for_loop(fb.constant(0), tile.rows, blocks.lanes) as loop:
            rows = LaneRows(loop.index, fb.minimum(fb.constant(blocks.lanes), tile.rows - loop.index))
            first = tile.first_row + rows.first
            load_rows(frame, key, first, rows.size, fb.arg("scale") * math.log2(math.e))
            load_rows(frame, value, first, rows.size)
            for gradient in (grad_key, grad_value):
                clear(frame, frame.rows_of(gradient.tensor))
            one = _follow_heads(frame, batch, key_head, tile, rows)
            for gradient, factor in ((grad_key, one * fb.arg("scale")), (grad_value, one)):
                store_rows(frame, gradient, first, rows.size, fb.splat(factor, blocks.lanes))
    return fb.finish()


def _follow_heads(frame: Frame, batch: Value, key_head: Value, tile: RowTile, rows: LaneRows) -> Value:
    """Add what each query head of a key head gives; 1, or NaN if the tile found no room in one of their masks."""
    fb, group = frame.fb, frame.sizes["group"]
    with fb.for_loop(fb.constant(0), group, 1, [fb.constant(1.0, F32)]) as loop:
        head = key_head * group + loop.index
        visits = Visits.of(frame, frame.mask(batch, head), tile.number)
        _follow(frame, batch, head, visits, rows)
        loop.yield_(visits.fault(frame, loop.carried[0]))
    return loop.results[0]


def _follow(frame: Frame, batch: Value, head: Value, visits: Visits, rows: LaneRows) -> None:
    query, grad_out = (Rows.of(frame, name, batch, head) for name in ("query", "grad_out"))
    heads = frame.sizes["heads"] * frame.sizes["group"]
    of = _of_listed(frame, (batch * heads + head) * frame.sizes["queries"])

    def visit(_: object, count: Value, masked: bool) -> list[Value]:
        slopes(frame, Side("key", query), Side("value", grad_out), of, count, masked)
        add(frame, Sum(frame.rows_of("grad_value"), frame.tile_of("weights"), grad_out, count))
        add(frame, Sum(frame.rows_of("grad_key"), frame.tile_of("slopes"), query, count))
        return []

    follow(frame, visits, rows, [], visit)


def _of_listed(frame: Frame, first: Value) -> PerQuery:
    """lse and delta of listed queries, the first of which is number `first` of all."""
    fb, lanes = frame.fb, frame.blocks.lanes

    def at(name: str, place: Value) -> Value:
        return fb.load(fb.arg(name), first + fb.load(frame.read_keys, place))

    return PerQuery(
        lambda place: fb.splat(at("lse", place) * math.log2(math.e), lanes),
        lambda place: fb.splat(at("delta", place), lanes),
    )
