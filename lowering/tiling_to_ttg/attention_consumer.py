"""A consumer: one warpgroup that computes 64 rows of a tile.

While the tensor cores work on the product of the last weights with their values, the warpgroup computes the softmax of
the next scores; and the warpgroups take turns in issuing products, so that one computes a softmax while another
multiplies (Shah et al., "FlashAttention-3", arXiv 2407.08608).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from xdsl.dialects.builtin import f32, i32

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS, TILE
from compilemask.lowering.tiling_to_ttg.attention_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_score import Scoring
from compilemask.lowering.tiling_to_ttg.attention_softmax import Softmax, as_operand, pattern_words
from compilemask.lowering.tiling_to_ttg.attention_tile import Progress, Tile
from compilemask.lowering.tiling_to_ttg.builder import slice_of
from compilemask.lowering.tiling_to_ttg.builder_memory import Buffer, Product

FIRST_NAMED_BARRIER = 8
TURN_THREADS = 256
"""Those of a warpgroup and of the one that passes the turn to it."""


class State(NamedTuple):
    """Between two visits: running softmax, output so far [64, D], weights of the last visit, number of the next."""

    peak: Value
    total: Value
    acc: Value
    weights: Value
    number: Value

    @property
    def softmax(self) -> Softmax:
        """The part that belongs to the softmax."""
        return Softmax(self.peak, self.total)


class Result(NamedTuple):
    """Of a tile's rows: peak in base 2 [64], sums by lane [64, 4], output in flight, the next visit's number."""

    softmax: Softmax
    acc: Product
    number: Value
    scoring: Scoring


class ValuesReady(NamedTuple):
    """How to know that values can be read: which barrier, and the parity of its phase."""

    place: Value
    phase: Value

    def wait(self, frame: Frame) -> None:
        """Until they can."""
        frame.value.full[self.place].wait(self.phase)


def _partial_values(frame: Frame, tile: Tile, progress: Progress, index: Value) -> ValuesReady:
    """How to know of the values of a tile's index-th partial tile."""
    return _values(frame, progress, index, tile.unseen != 0)


def any_values(frame: Frame, tile: Tile, progress: Progress, index: Value) -> ValuesReady:
    """How to know of the values of a tile's index-th visit."""
    return _values(frame, progress, index, tile.cleaned(frame) > index)


def _values(frame: Frame, progress: Progress, index: Value, are_cleaned: Value) -> ValuesReady:
    full = frame.value.place(frame.kb, progress.visits + index)
    if not frame.config.clean_values:
        return ValuesReady(*full)
    cleaned = frame.value.cleaned_place(frame.kb, progress.cleaned + index)
    return ValuesReady(*(frame.kb.where(are_cleaned, a, b) for a, b in zip(cleaned, full, strict=True)))


class Patterns:
    """The patterns of a tile's partial tiles. They are fetched ahead: a visit is as short as two waits for memory.

    Words are asked for one visit ahead and numbers two: asked for at the end of the visit before, words came late, and
    masks of many partial tiles took 8 % longer.
    """

    def __init__(self, frame: Frame, part: int, tile: Tile) -> None:
        self.frame, self.part, self.tile, self.pairs = frame, part, tile, tile.pairs(frame)

    def number(self, index: Value | int) -> Value:
        """Of the index-th partial tile; 0 if there is none."""
        return self.tile.pattern(self.frame, self.pairs, index)

    def key_tile(self, index: Value) -> Value:
        """Of the index-th partial tile, which exists."""
        return self.frame.kb.load(self.pairs + index * 2)

    def words(self, index: Value | int, number: Value) -> Value:
        """[64, 4] of the index-th partial tile, whose pattern has this number; 0 if there is none."""
        return pattern_words(self.frame, self.part, number, self.tile.n_partial > index)


class Turns:
    """The warpgroups issue matrix products in turn, 0, 1, (2,) 0, 1, ..., once per visit, if there are several."""

    def __init__(self, frame: Frame, part: int) -> None:
        self.frame, self.part, self.next = frame, part, (part + 1) % frame.config.consumers
        self.is_alone = frame.config.consumers == 1

    def begin(self) -> None:
        """Once, before the first visit: the first turn is warpgroup 0's."""
        if self.frame.turns is None and self.next == 0 and not self.is_alone:
            self.frame.kb.bar_arrive(FIRST_NAMED_BARRIER, TURN_THREADS)

    def take(self, count: Value) -> None:
        """Wait for this warpgroup's turn in a visit."""
        if self.is_alone:
            return
        if self.frame.turns is None:
            self.frame.kb.bar_sync(FIRST_NAMED_BARRIER + self.part, TURN_THREADS)
        else:
            self.frame.turns[self.part].wait((count % 2) ^ 1 if self.part == 0 else count % 2)

    def give(self) -> None:
        """Let the next warpgroup issue."""
        if self.is_alone:
            return
        if self.frame.turns is None:
            self.frame.kb.bar_arrive(FIRST_NAMED_BARRIER + self.next, TURN_THREADS)
        else:
            self.frame.turns[self.next].arrive()


def first_words(frame: Frame, part: int, tile: Tile) -> Value:
    """[64, 4] words of a tile's first visit: all bits if it is a full tile, none if there is no visit."""
    everything = frame.kb.where(tile.n_full > 0, -1, 0)
    return pattern_words(frame, part, tile.first_pattern, tile.n_partial > 0, everything)


def consume(frame: Frame, turns: Turns, tile: Tile, progress: Progress, first: Value) -> Result:
    """Visits all keys of a tile, whose `first_words` are `first`; the last product with values is still in flight."""
    kb, part = frame.kb, turns.part
    query = frame.query[part].reshape(ROWS, frame.head_dim)
    frame.query_full[part].wait(progress.tiles % 2)
    patterns = Patterns(frame, part, tile)
    scoring = Scoring(frame, part, tile)
    words = patterns.words(1, tile.second_pattern)
    state = _first_visit(frame, turns, tile, query, progress.visits, scoring, first)
    with kb.for_loop(1, tile.n_partial, 1, [*state, words, tile.third_pattern]) as partial:
        *before, words, number = partial.carried
        following = patterns.words(partial.index + 1, number), patterns.number(partial.index + 2)
        values = _partial_values(frame, tile, progress, partial.index - 1)
        key_tile = patterns.key_tile(partial.index) if scoring.needs_keys else None
        after = _visit(frame, turns, query, State(*before), values, scoring, key_tile, words)
        partial.yield_(*after, *following)
    if frame.config.clean_values:
        with kb.if_else(tile.cleaned(frame) > 0) as some, some.then():
            _partial_values(frame, tile, progress, tile.n_partial - 1).wait(frame)
    state = _full_visits(frame, turns, tile, query, State(*partial.results[: len(state)]), scoring)
    if frame.config.is_persistent:
        frame.query_empty[part].arrive()
    acc = weigh_values(frame, state, ValuesReady(*frame.value.place(kb, state.number - 1)))
    return Result(state.softmax, acc, state.number, scoring)


def _full_visits(frame: Frame, turns: Turns, tile: Tile, query: Buffer, state: State, scoring: Scoring) -> State:
    """Visits the full tiles behind the first visit; run by run only if it matters which they are."""
    kb = frame.kb
    taken = kb.cast(tile.n_partial == 0, i32)

    def visit(before: State, key_tile: Value | None) -> State:
        values = ValuesReady(*frame.value.place(kb, before.number - 1))
        return _visit(frame, turns, query, before, values, scoring, key_tile)

    if not scoring.needs_keys:
        with kb.for_loop(taken, tile.n_full, 1, state) as full:
            full.yield_(*visit(State(*full.carried), None))
        return State(*full.results)
    runs = tile.pairs(frame) + tile.n_partial * 2
    with kb.for_loop(0, tile.n_runs, 1, [*state, taken]) as each_run:
        *before, taken = each_run.carried
        first, end = (kb.load(runs + each_run.index * 2 + word) for word in range(2))
        with kb.for_loop(first + taken, end, 1, before) as full:
            full.yield_(*visit(State(*full.carried), full.index))
        each_run.yield_(*full.results, kb.constant(0, i32))
    return State(*each_run.results[: len(state)])


def _first_visit(
    frame: Frame, turns: Turns, tile: Tile, query: Buffer, count: Value, scoring: Scoring, words: Value
) -> State:
    """Scores and weights of the first tile of keys, masked even if it is full; all masked if there is none."""
    kb = frame.kb
    product = multiply(frame, turns, query, count)
    turns.give()
    scores = scoring.scored(kb.warp_group_dot_wait(product), tile.first_key_tile, words)
    release_key(frame, count)
    (peak, total), weights, _ = scoring.weigh(scoring.start(), scores, is_masked=True)
    acc = kb.zeros((ROWS, frame.head_dim), f32, frame.layouts.output)
    if frame.config.keeps_peaks:
        # A row that has seen nothing has no better guess.
        peak = kb.where(peak == -math.inf, 0.0, peak)
    return State(peak, total, acc, as_operand(frame, weights), count + 1)


def _visit(
    frame: Frame,
    turns: Turns,
    query: Buffer,
    state: State,
    values: ValuesReady,
    scoring: Scoring,
    key_tile: Value | None,
    words: Value | None = None,
) -> State:
    """Scores of a tile of keys, and beside their softmax the product of the last weights with their values."""
    kb, count = frame.kb, state.number
    product = multiply(frame, turns, query, count)
    acc = weigh_values(frame, state, values)
    turns.give()
    products = kb.warp_group_dot_wait(product, pending=1)
    release_key(frame, count)
    scores = scoring.scored(products, key_tile, words)
    if frame.config.keeps_peaks:
        after, weights = scoring.weigh_below_peak(state.softmax, scores)
        fade = None
    else:
        after, weights, fade = scoring.weigh(state.softmax, scores, is_masked=words is not None)
    operand = as_operand(frame, weights)
    if frame.config.hold_softmax:
        values.wait(frame)
    total = finish_product(frame, acc, count - 1)
    if fade is not None:
        by_row = kb.convert_layout(fade, slice_of(frame.layouts.output, 1))[:, None]
        total = kb.multiply_unless_one(total, kb.broadcast_to(by_row, total.shape))
    return State(*after, total, operand, count + 1)


def multiply(frame: Frame, turns: Turns, query: Buffer, count: Value) -> Product:
    """Starts the product of the rows with the count-th tile of keys, in this warpgroup's turn."""
    place, phase = frame.key.place(frame.kb, count)
    frame.key.full[place].wait(phase)
    turns.take(count)
    keys = frame.key.buffers[place].reshape(TILE, frame.head_dim)
    return frame.kb.warp_group_dot(query, keys.transpose(), layout=frame.layouts.scores)


def weigh_values(frame: Frame, state: State, values: ValuesReady) -> Product:
    """Starts to add the product of the last weights with their values."""
    values.wait(frame)
    place, _ = frame.value.place(frame.kb, state.number - 1)
    buffer = frame.value.buffers[place].reshape(TILE, frame.head_dim)
    return frame.kb.warp_group_dot(state.weights, buffer, state.acc)


def release_key(frame: Frame, count: Value) -> None:
    """Gives back the buffer of the count-th tile's keys, which nobody reads any more."""
    frame.key.empty[frame.key.place(frame.kb, count)[0]].arrive()


def finish_product(frame: Frame, acc: Product, count: Value) -> Value:
    """The output with the count-th tile's values in it, which nobody reads any more."""
    total = frame.kb.warp_group_dot_wait(acc)
    frame.value.empty[frame.value.place(frame.kb, count)[0]].arrive()
    return total
