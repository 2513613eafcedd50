"""Attention that follows a descriptor, as a function of upstream dialects for the CPU: the same for all masks.

    text = attention(64, Blocks.choose(vector_bits=512))     # a module with func.func @attention

The function is the forward pass of flash attention (Dao, "FlashAttention-2", arXiv 2307.08691) in f32. Calls in several
threads with one counter share the query tiles among them, longest first; `attention_frame` lists the arguments.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from compilemask.lowering.descriptor_layout import ORDER_WORDS
from compilemask.lowering.tiling_to_scf.attention_frame import Blocks, Frame
from compilemask.lowering.tiling_to_scf.attention_visit import State, Tile, attend, list_all, list_visible
from compilemask.lowering.tiling_to_scf.builder import F32, Value

NAME = "attention"


def attention(head_dim: int, blocks: Blocks) -> str:
    """The module, for heads of a dimension, in blocks of sizes that suit the machine."""
    frame = Frame.open(NAME, head_dim, blocks)
    fb, sizes = frame.fb, frame.sizes
    with fb.numbers_below(fb.arg("counter"), fb.integer(sizes["items"], "i64")) as item:
        head = _Head.of(frame, item // sizes["query_tiles"])
        tile = _QueryTile.of(frame, head, item % sizes["query_tiles"])
        with fb.for_loop(fb.constant(0), tile.rows, blocks.lanes) as loop:
            rows = fb.minimum(fb.constant(blocks.lanes), tile.rows - loop.index)
            _load_query(frame, head, tile.first_row + loop.index, rows)
            state = _follow(frame, head, tile, loop.index, rows)
            _store(frame, head, tile.first_row + loop.index, rows, state)
    return fb.finish()


class _Head(NamedTuple):
    """Where the tensors of one batch and query head begin, and which mask it has."""

    query: Value
    key: Value
    value: Value
    out_rows: Value
    """The number of its first row in the results."""
    mask: Value

    @classmethod
    def of(cls, frame: Frame, number: Value) -> _Head:
        sizes = frame.sizes
        batch, head = number // sizes["query_heads"], number % sizes["query_heads"]

        def start(name: str, head: Value) -> Value:
            return batch * sizes[f"{name}_batch"] + head * sizes[f"{name}_head"]

        key_head = head // sizes["group"]
        mask = batch * sizes["batch_masks"] + head * sizes["head_masks"]
        return cls(
            start("query", head), start("key", key_head), start("value", key_head), number * sizes["queries"], mask
        )


class _QueryTile(NamedTuple):
    """A record of the descriptor's `order`."""

    first_row: Value
    rows: Value
    first_pair: Value
    partial: Value
    """How many partial tiles there are; negative if the tile found no room."""
    runs: Value

    @classmethod
    def of(cls, frame: Frame, head: _Head, rank: Value) -> _QueryTile:
        fb, sizes = frame.fb, frame.sizes
        record = sizes["order"] + (head.mask * sizes["query_tiles"] + rank) * ORDER_WORDS
        tile, first, partial, runs = (_word(frame, record + number) for number in range(4))
        first_row = tile * sizes["rows"]
        runs = fb.select(fb.compare("slt", partial, 0), fb.constant(0), runs)
        return cls(first_row, fb.minimum(sizes["rows"], sizes["queries"] - first_row), first, partial, runs)


def _word(frame: Frame, place: Value) -> Value:
    """A word of the descriptor."""
    return frame.fb.index(frame.fb.load(frame.fb.arg("descriptor"), place))


def _load_query(frame: Frame, head: _Head, row: Value, rows: Value) -> None:
    """Lay the scaled queries of some rows into lanes; zeros into the others, and into the sums."""
    fb, lanes = frame.fb, frame.blocks.lanes
    zero, dims = fb.constant(0), fb.constant(frame.head_dim)
    # Exponentials are powers of 2.
    scale = fb.arg("scale") * math.log2(math.e)
    with fb.for_loop(zero, dims) as of_dim:
        for memory in (frame.query, frame.sums):
            fb.store(frame.zeros(), memory, of_dim.index * lanes)
    with fb.for_loop(zero, rows) as of_row:
        start = head.query + (row + of_row.index) * frame.sizes["query_row"]
        with fb.for_loop(zero, dims) as of_dim:
            number = fb.load(fb.arg("query"), start + of_dim.index) * scale
            fb.store(number, frame.query, of_dim.index * lanes + of_row.index)


def _follow(frame: Frame, head: _Head, tile: _QueryTile, row: Value, rows: Value) -> State:
    """Visit what the descriptor names: partial tiles, then runs of full ones."""
    fb, zero = frame.fb, frame.fb.constant(0)
    # NaN stays NaN whatever is added: the fault of a tile without room is loud.
    lost, fine = fb.constant(math.nan, F32), fb.constant(0.0, F32)
    total = fb.splat(fb.select(fb.compare("slt", tile.partial, 0), lost, fine), frame.blocks.lanes)
    state = State(fb.constant(-math.inf, total.type), total)
    with fb.for_loop(zero, tile.partial, 1, state) as loop:
        pair = frame.sizes["visits"] + (tile.first_pair + loop.index) * 2
        count = list_visible(frame, _word(frame, pair), _word(frame, pair + 1), row, rows)
        loop.yield_(*attend(frame, State(*loop.carried), Tile(head.key, head.value, count), masked=True))
    with fb.for_loop(zero, tile.runs, 1, loop.results) as of_run:
        pair = frame.sizes["visits"] + (tile.first_pair + tile.partial + of_run.index) * 2
        with fb.for_loop(_word(frame, pair), _word(frame, pair + 1), 1, of_run.carried) as loop:
            count = list_all(frame, loop.index)
            loop.yield_(*attend(frame, State(*loop.carried), Tile(head.key, head.value, count), masked=False))
        of_run.yield_(*loop.results)
    return State(*of_run.results)


def _store(frame: Frame, head: _Head, row: Value, rows: Value, state: State) -> None:
    """Store the quotients of sums and totals, and the log-sum-exps; 0 and -inf for rows that saw nothing."""
    fb, lanes = frame.fb, frame.blocks.lanes
    zero, dims = fb.constant(0), fb.constant(frame.head_dim)
    quotient = fb.constant(1.0, state.total.type) / state.total
    quotient = fb.select(fb.compare("oeq", state.total, 0.0), frame.zeros(), quotient)
    with fb.for_loop(zero, dims) as of_dim:
        place = of_dim.index * lanes
        fb.store(fb.load(frame.sums, place, lanes) * quotient, frame.sums, place)
    # The scores of the last tile are used up.
    fb.store(state.top, frame.weights, zero)
    fb.store(state.total, frame.weights, fb.constant(lanes))
    with fb.for_loop(zero, rows) as of_row:
        position = row + of_row.index
        start = (head.out_rows + position) * frame.head_dim
        with fb.for_loop(zero, dims) as of_dim:
            number = fb.load(frame.sums, of_dim.index * lanes + of_row.index)
            fb.store(number, fb.arg("out"), start + of_dim.index)
        top, total = (fb.load(frame.weights, of_row.index + start) for start in (0, lanes))
        lse = (top + fb.log2(total)) * math.log(2)
        fb.store(lse, fb.arg("lse"), head.out_rows + position)
