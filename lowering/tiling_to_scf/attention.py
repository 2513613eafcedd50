"""Attention that follows a descriptor, as a function of upstream dialects for the CPU: the same for all masks.

    text = attention(64, Blocks.choose(vector_bits=512))     # a module with func.func @attention

The function is the forward pass of flash attention (Dao, "FlashAttention-2", arXiv 2307.08691) in f32. Calls in several
threads with one counter share the query tiles among them, longest first; `Signature` lists the arguments.
"""

from __future__ import annotations

import math

from compilemask.lowering.tiling_to_scf.attention_frame import Blocks, Frame, Signature
from compilemask.lowering.tiling_to_scf.attention_products import Rows, clear, load_rows, store_rows
from compilemask.lowering.tiling_to_scf.attention_softmax import Head, State, attend
from compilemask.lowering.tiling_to_scf.attention_tiles import LaneRows, RowTile, Visits, follow
from compilemask.lowering.tiling_to_scf.builder import F32, Value

SIGNATURE = Signature("attention", ("query", "key", "value", "out"), ("lse",))


def attention(head_dim: int, blocks: Blocks) -> str:
    """The module, for heads of a dimension, in blocks of sizes that suit the machine."""
    frame = Frame.open(SIGNATURE, head_dim, blocks)
    fb, sizes = frame.fb, frame.sizes
    with fb.numbers_below(fb.arg("counter"), fb.integer(sizes["items"], "i64")) as item:
        number, rank = item // sizes["tiles"], item % sizes["tiles"]
        batch, query_head = number // sizes["heads"], number % sizes["heads"]
        query, out = (Rows.of(frame, name, batch, query_head) for name in ("query", "out"))
        key, value = (Rows.of(frame, name, batch, query_head // sizes["group"]) for name in ("key", "value"))
        mask = frame.mask(batch, query_head)
        tile = RowTile.of(frame, mask, rank)
        visits = Visits.of(frame, mask, tile.number)
        with fb.for_loop(fb.constant(0), tile.rows, blocks.lanes) as loop:
            rows = LaneRows(loop.index, fb.minimum(fb.constant(blocks.lanes), tile.rows - loop.index))
            first = tile.first_row + rows.first
            # Exponentials are powers of 2.
            load_rows(frame, query, first, rows.size, fb.arg("scale") * math.log2(math.e))
            clear(frame, frame.rows_of("out"))
            state = _follow(frame, Head(key, value), visits, rows)
            store_rows(frame, out, first, rows.size, _quotient(frame, state.total))
            _store_lse(frame, state, number * sizes["queries"] + first, rows.size)
    return fb.finish()


def _follow(frame: Frame, head: Head, visits: Visits, rows: LaneRows) -> State:
    """Attend to all that a tile of query rows visits."""
    fb = frame.fb
    total = fb.splat(visits.fault(frame, fb.constant(0.0, F32)), frame.blocks.lanes)
    initial = State(fb.constant(-math.inf, total.type), total)
    final = follow(
        frame,
        visits,
        rows,
        initial,
        lambda carried, count, masked: attend(frame, State(*carried), head, count, masked),
    )
    return State(*final)


def _quotient(frame: Frame, total: Value) -> Value:
    """By what sums are multiplied: 0 for rows that saw nothing."""
    fb = frame.fb
    return fb.select(fb.compare("oeq", total, 0.0), frame.zeros(), fb.constant(1.0, total.type) / total)


def _store_lse(frame: Frame, state: State, first: Value, count: Value) -> None:
    """Store the log-sum-exps: -inf for rows that saw nothing."""
    fb = frame.fb
    lse = (state.top + fb.log2(state.total)) * math.log(2)
    fb.store(lse, frame.lanes_of("lse"), fb.constant(0))
    with fb.for_loop(fb.constant(0), count) as loop:
        fb.store(fb.load(frame.lanes_of("lse"), loop.index), fb.arg("lse"), first + loop.index)
