"""Products of rows that lie in lanes with listed rows, and sums of listed rows by weights of lanes.

Rows lie in the lanes of vectors, so that maxima and sums over listed rows need no exchange between lanes; those are
read where they are, one number at a time for all lanes.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from compilemask.lowering.tiling_to_scf.attention_frame import Frame
from compilemask.lowering.tiling_to_scf.builder import Value


class Rows(NamedTuple):
    """Rows of a tensor in one batch and head, from where they begin."""

    tensor: str
    start: Value

    def at(self, frame: Frame, row: Value) -> Value:
        """Where a row begins."""
        return self.start + row * frame.sizes[f"{self.tensor}_row"]

    @classmethod
    def of(cls, frame: Frame, tensor: str, batch: Value, head: Value) -> Rows:
        """All rows of one batch and head."""
        return cls(tensor, frame.start(tensor, batch, head))


def clear(frame: Frame, memory: Value) -> None:
    """Zeros in memory [D, lanes]."""
    fb = frame.fb
    with fb.for_loop(fb.constant(0), fb.constant(frame.head_dim)) as loop:
        fb.store(frame.zeros(), memory, loop.index * frame.blocks.lanes)


def load_rows(frame: Frame, rows: Rows, first: Value, count: Value, factor: Value | None = None) -> None:
    """Lay rows, times a factor, into lanes; zeros into the lanes behind them."""
    fb, lanes, memory = frame.fb, frame.blocks.lanes, frame.rows_of(rows.tensor)
    clear(frame, memory)
    with fb.for_loop(fb.constant(0), count) as of_row:
        start = rows.at(frame, first + of_row.index)
        with fb.for_loop(fb.constant(0), fb.constant(frame.head_dim)) as of_dim:
            number = fb.load(fb.arg(rows.tensor), start + of_dim.index)
            number = number if factor is None else number * factor
            fb.store(number, memory, of_dim.index * lanes + of_row.index)


def store_rows(frame: Frame, rows: Rows, first: Value, count: Value, factor: Value) -> None:
    """Store the rows that lie in lanes, each times its lane of a factor."""
    fb, lanes, memory = frame.fb, frame.blocks.lanes, frame.rows_of(rows.tensor)
    with fb.for_loop(fb.constant(0), fb.constant(frame.head_dim)) as of_dim:
        place = of_dim.index * lanes
        fb.store(fb.load(memory, place, lanes) * factor, memory, place)
    with fb.for_loop(fb.constant(0), count) as of_row:
        start = rows.at(frame, first + of_row.index)
        with fb.for_loop(fb.constant(0), fb.constant(frame.head_dim)) as of_dim:
            number = fb.load(memory, of_dim.index * lanes + of_row.index)
            fb.store(number, fb.arg(rows.tensor), start + of_dim.index)


@contextmanager
def listed_blocks(frame: Frame, count: Value, initial: Sequence[Value] = ()) -> Generator[Block, None, None]:
    """A loop over the listed rows, a block of them at a time."""
    fb, keys = frame.fb, frame.blocks.keys
    with fb.for_loop(fb.constant(0), count, keys, initial) as loop:
        block = Block([loop.index + number for number in range(keys)], loop.carried, [])
        yield block
        loop.yield_(*block.carried)
    block.results.extend(loop.results)


class Block(NamedTuple):
    """Places of listed rows; what the loop carries, to be replaced in place; and afterwards what it ends with."""

    places: list[Value]
    carried: list[Value]
    results: list[Value]


def products(frame: Frame, lanes_of: str, listed: Rows, places: Sequence[Value]) -> list[Value]:
    """Of the rows of a tensor in lanes with each of some listed rows of another: a vector of lanes for each."""
    fb, lanes = frame.fb, frame.blocks.lanes
    starts = [listed.at(frame, fb.load(frame.read_keys, place)) for place in places]
    initial = [frame.zeros()] * len(starts)
    with fb.for_loop(fb.constant(0), fb.constant(frame.head_dim), 1, initial) as loop:
        own = fb.load(frame.rows_of(lanes_of), loop.index * lanes, lanes)
        others = [fb.splat(fb.load(fb.arg(listed.tensor), start + loop.index), lanes) for start in starts]
        loop.yield_(*(fb.fma(own, other, sum_) for other, sum_ in zip(others, loop.carried, strict=True)))
    return loop.results


class Sum(NamedTuple):
    """Rows in lanes, to which `n_listed` listed rows are added, each times its weight in each lane."""

    rows: Value
    weights: Value
    listed: Rows
    n_listed: Value
    fade: Value | None = None
    """By what the sums are multiplied before."""


def add(frame: Frame, to: Sum) -> None:
    """Add the weighted rows, in blocks of the head dimension."""
    fb, dims = frame.fb, frame.blocks.dims
    whole, rest = frame.head_dim // dims * dims, frame.head_dim % dims
    if whole:
        with fb.for_loop(fb.constant(0), fb.constant(whole), dims) as block:
            _add_block(frame, to, [block.index + number for number in range(dims)])
    if rest:
        _add_block(frame, to, [fb.constant(whole + number) for number in range(rest)])


def _add_block(frame: Frame, to: Sum, dims: Sequence[Value]) -> None:
    fb, lanes = frame.fb, frame.blocks.lanes
    initial = [fb.load(to.rows, dim * lanes, lanes) for dim in dims]
    initial = initial if to.fade is None else [sum_ * to.fade for sum_ in initial]
    with fb.for_loop(fb.constant(0), to.n_listed, 1, initial) as loop:
        weight = fb.load(to.weights, loop.index * lanes, lanes)
        start = to.listed.at(frame, fb.load(frame.read_keys, loop.index))
        numbers = [fb.splat(fb.load(fb.arg(to.listed.tensor), start + dim), lanes) for dim in dims]
        loop.yield_(*(fb.fma(weight, number, sum_) for number, sum_ in zip(numbers, loop.carried, strict=True)))
    for dim, sum_ in zip(dims, loop.results, strict=True):
        fb.store(sum_, to.rows, dim * lanes)
