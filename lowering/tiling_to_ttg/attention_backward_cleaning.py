"""Zeroes what nobody may notice: keys and values that no query sees, queries that see nothing and their gradients.

All their weights are 0, but 0 times NaN or infinity is NaN, and such memory may hold anything. Where the descriptor
says that there is none, nothing is done.
"""

from __future__ import annotations

import math

from xdsl.dialects.builtin import i32

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_backward_visits import KeyTile, Patterns, visits_of
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS, TILE
from compilemask.lowering.tiling_to_ttg.builder import slice_of
from compilemask.lowering.tiling_to_ttg.builder_memory import Buffer

CLEANED_BARRIER = 12
BOTH = 256
"""Threads of both warpgroups."""


def clean_keys(frame: Frame, part: int, tile: KeyTile) -> None:
    """Zeroes a warpgroup's keys and values that no query sees, if there may be any in the tile.

    A fence comes behind.
    """
    kb = frame.kb
    existing = frame.keys.existing(tile.number * TILE, TILE)
    with kb.if_else(visits_of(frame, tile, kb.constant(0, i32)).surely_seen < existing) as some, some.then():
        seen = kb.convert_layout(_seen(frame, part, tile), slice_of(frame.layouts.rows, 1)) != 0
        for source in (frame.key, frame.value):
            _keep(frame, frame.own_rows(source, part), seen)


def _seen(frame: Frame, part: int, tile: KeyTile) -> Value:
    """[64] i32: not 0 for keys that a query of some head sees."""
    kb = frame.kb
    nobody = kb.full((ROWS,), 0, i32, slice_of(Patterns.layout(frame), 1))
    with kb.for_loop(0, kb.arg("group"), 1, [nobody]) as members:
        visits = visits_of(frame, tile, members.index)
        patterns = Patterns(frame, part, tile, visits)
        with kb.for_loop(0, visits.n_partial + visits.n_runs, 1, members.carried) as each:
            words = patterns.words(each.index, visits.pair(frame, each.index)[1])
            each.yield_(each.carried[0] | kb.reduce(words, 1, "or"))
        members.yield_(*each.results)
    return members.results[0]


def clean_queries(frame: Frame, part: int, place: Value) -> None:
    """Zeroes rows of a step that see nothing, which their shift tells: one warpgroup the queries, one the gradients."""
    kb, shift = frame.kb, frame.numbers(frame.shift, place)
    blind = kb.cast(kb.reduce(shift.load(frame.layouts.columns), 0, "max") == math.inf, i32)
    # Where ptxas takes a branch for one that lanes part at, it computes addresses for each lane in all steps.
    with kb.if_else(kb.uniform(blind) != 0) as some, some.then():
        # The other warpgroup may still read the queries, for its scores.
        kb.bar_sync(CLEANED_BARRIER, BOTH)
        sees = shift.load(slice_of(frame.layouts.rows, 1)) < math.inf
        _keep(frame, frame.rows((frame.query, frame.grad)[part], place), sees)
        kb.fence_async_shared()
        kb.bar_sync(CLEANED_BARRIER, BOTH)


def _keep(frame: Frame, rows: Buffer, kept: Value) -> None:
    """Zeroes the other rows of a buffer [n, D]."""
    kb, layout = frame.kb, frame.layouts.rows
    rows.store(kb.where(kept[:, None], rows.load(layout), 0.0))
