"""A consumer of the backward kernel that follows the producer's notes, and knows of its visits how many they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_backward_notes import read_note
from compilemask.lowering.tiling_to_ttg.attention_backward_step import (
    State,
    Step,
    advance,
    advance_masked,
    await_queries,
)
from compilemask.lowering.tiling_to_ttg.attention_backward_visits import KeyTile, Patterns, Visits
from compilemask.lowering.tiling_to_ttg.attention_bits import words_of_step
from compilemask.lowering.tiling_to_ttg.attention_config import TILE


def masked_steps(frame: Frame, part: int, tile: KeyTile, visits: Visits, state: State) -> State:
    """Visits partial tiles, and the full ones too if keys are missing."""
    kb, patterns = frame.kb, Patterns(frame, part, tile, visits)
    tiles = visits.n_partial + kb.where(tile.is_cut_off(frame), visits.n_full, 0)
    with kb.for_loop(0, tiles * (TILE // frame.config.queries), 1, state.values) as steps:
        state = State(*steps.carried)
        place = await_queries(frame, state)
        note = read_note(frame, place)
        words = _existing(frame, tile, patterns, patterns.stored(note.pattern, note.pattern >= 0))
        words = words_of_step(kb, words, state.number, frame.config.queries)
        step = Step(_block(frame, part, place), words, note.seeing[part], note.blind)
        steps.yield_(*advance_masked(frame, part, state, step).values)
    return State(*steps.results)


def full_steps(frame: Frame, part: int, tile: KeyTile, visits: Visits) -> tuple[Value, Callable[[State], State]]:
    """How many steps of full tiles there are, none if keys are missing, and what makes them."""
    tiles = frame.kb.where(tile.is_cut_off(frame), 0, visits.n_full)
    count = tiles * (TILE // frame.config.queries)
    return count, partial(_steps, frame, part, count)


def _steps(frame: Frame, part: int, count: Value, state: State) -> State:
    with frame.kb.for_loop(0, count, 1, state.values) as steps:
        state = State(*steps.carried)
        step = Step(_block(frame, part, await_queries(frame, state)))
        steps.yield_(*advance(frame, part, state, step).values)
    return State(*steps.results)


def _existing(frame: Frame, tile: KeyTile, patterns: Patterns, words: Value) -> Value:
    """The same words, none of them of missing keys. Few tiles have any, and no other shall hold what says which."""
    kb = frame.kb
    with kb.if_else(tile.is_cut_off(frame)) as some:
        with some.then():
            some.yield_(kb.where(patterns.exists, words, 0))
        with some.otherwise():
            some.yield_(words)
    return some.results[0]


def _block(frame: Frame, part: int, place: Value) -> Callable[[], Value]:
    """Read when it is needed: it need not be held meanwhile."""
    return lambda: read_note(frame, place).block + part
