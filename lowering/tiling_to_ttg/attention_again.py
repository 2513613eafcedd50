"""The second pass of a program that has kept peaks: it computes inexact tiles again, looking for their peaks.

It is rarely needed, and then for few tiles: it is written to be short, not fast. A long one also made ptxas spill
registers in the first pass, of which it changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from xdsl.dialects.builtin import f32

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS
from compilemask.lowering.tiling_to_ttg.attention_consumer import (
    Patterns,
    State,
    Turns,
    any_values,
    finish_product,
    multiply,
    release_key,
    weigh_values,
)
from compilemask.lowering.tiling_to_ttg.attention_epilogue import Finish, store_rows
from compilemask.lowering.tiling_to_ttg.attention_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_inexact import Lists, next_position, parts_of, take_off
from compilemask.lowering.tiling_to_ttg.attention_order import Order
from compilemask.lowering.tiling_to_ttg.attention_producer import name_tile, produce
from compilemask.lowering.tiling_to_ttg.attention_schedule import Pass, clean_values, each_tile
from compilemask.lowering.tiling_to_ttg.attention_score import Scoring
from compilemask.lowering.tiling_to_ttg.attention_softmax import Softmax, as_operand, pattern_words
from compilemask.lowering.tiling_to_ttg.attention_tile import Progress, Tile, tile_at, write_record
from compilemask.lowering.tiling_to_ttg.builder import slice_of

FIRST_PASS_RECORDS = 1
"""Those of the first pass that named no tile."""


def second_pass(frame: Frame, lists: Lists) -> Pass:
    """The pass over the tiles of lists. The only tile of a program is read again, not held in registers until then."""
    if frame.config.is_persistent:
        return Pass(lists.progress, None, FIRST_PASS_RECORDS)
    tile = tile_at(frame.kb, frame.config, frame.kb.program_id(0))
    return Pass(lists.progress, tile._replace(parts=parts_of(frame, lists.heads, tile)))


def produce_again(frame: Frame, lists: Lists) -> None:
    """What the warp that copies does."""
    kb, count = frame.kb, len(lists.heads)
    only = second_pass(frame, lists).only
    if only is not None:
        produce(frame, only.without_faults(frame), lists.progress)
        return
    order = Order.of_queries(kb, 1)
    with kb.while_loop([*lists.heads, *lists.progress]) as loop:
        with loop.condition() as values:
            loop.continue_if(next_position(frame, values[:count]) >= 0, *values)
        with loop.body() as values:
            heads, progress = values[:count], Progress(*values[count:])
            tile = tile_at(kb, frame.config, next_position(frame, heads), order)
            behind = take_off(frame, heads, tile)
            tile = tile._replace(parts=parts_of(frame, heads, tile))
            name_tile(frame, tile, progress, FIRST_PASS_RECORDS)
            tile = tile.without_faults(frame)
            produce(frame, tile, progress)
            loop.yield_(*behind, *progress.after(frame, tile))
    write_record(frame, None, loop.results[count] + FIRST_PASS_RECORDS)


def clean_again(frame: Frame, lists: Lists) -> None:
    """What the warp that cleans values does."""
    each_tile(frame, 1, second_pass(frame, lists), lambda _: (), partial(clean_values, frame))


def consume_again(frame: Frame, part: int, lists: Lists) -> None:
    """What a warpgroup that computes does."""
    work = partial(_compute, frame, Turns(frame, part))
    each_tile(frame, 4, second_pass(frame, lists), lambda _: (), work)
    frame.kb.store_wait()


def _compute(frame: Frame, turns: Turns, tile: Tile, progress: Progress, _: Sequence[Value]) -> Finish:
    """A warpgroup's rows of a tile, stored if the tile was on its list; nothing remains then."""
    valid, tile = tile.is_valid(frame), tile.without_faults(frame)
    softmax, acc = _visit_in_turn(frame, turns, tile, progress)
    with frame.kb.if_else(((tile.parts >> turns.part) & 1) != 0) as listed, listed.then():
        store_rows(frame, turns.part, tile, valid, softmax, acc)
    return lambda carried: carried


def _visit_in_turn(frame: Frame, turns: Turns, tile: Tile, progress: Progress) -> tuple[Softmax, Value]:
    """Visits all keys of a tile, masking full tiles too, and nothing at once: what is rarely executed should be short.
    The softmax, and the weighed values [64, D].
    """
    kb, part = frame.kb, turns.part
    query = frame.query[part].reshape(ROWS, frame.head_dim)
    frame.query_full[part].wait(progress.tiles % 2)
    scoring, patterns = Scoring(frame, part, tile), Patterns(frame, part, tile)
    nothing = kb.zeros((ROWS, frame.head_dim), f32, frame.layouts.output)
    with kb.for_loop(0, tile.visits(frame), 1, [*scoring.start(), nothing]) as loop:
        index, (*before, acc) = loop.index, loop.carried
        count = progress.visits + index
        product = multiply(frame, turns, query, count)
        turns.give()
        everything = kb.where(tile.n_full > 0, -1, 0)
        words = pattern_words(frame, part, patterns.number(index), tile.n_partial > index, everything)
        scores = scoring.scored(kb.warp_group_dot_wait(product), None, words)
        release_key(frame, count)
        softmax, weights, fade = scoring.weigh(Softmax(*before), scores, is_masked=True)
        assert fade is not None
        by_row = kb.convert_layout(fade, slice_of(frame.layouts.output, 1))[:, None]
        state = State(*softmax, acc * by_row, as_operand(frame, weights), count + 1)
        after = weigh_values(frame, state, any_values(frame, tile, progress, index))
        loop.yield_(*softmax, finish_product(frame, after, count))
    if frame.config.is_persistent:
        frame.query_empty[part].arrive()
    *softmax, acc = loop.results
    return Softmax(*softmax), acc
