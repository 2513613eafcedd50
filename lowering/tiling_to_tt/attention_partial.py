"""Partial tiles: a bit pattern says which pairs are visible, and a column pattern which keys are read at all."""

from __future__ import annotations

from compilemask.lowering.tiling_to_tt.attention_config import TILE
from compilemask.lowering.tiling_to_tt.attention_frame import Frame
from compilemask.lowering.tiling_to_tt.attention_patterns import Patterns
from compilemask.lowering.tiling_to_tt.attention_softmax import Scale, State, step
from compilemask.lowering.tiling_to_tt.builder import Value


def partial_tiles(frame: Frame, state: State, query: Value, scale: Scale) -> State:
    """The state after all partial tiles of the query tile, each in steps of `block_kv` keys."""
    kb, config = frame.kb, frame.config
    keys, values = (frame.origin(name, name, frame.key_head) for name in ("k", "v"))
    patterns = Patterns(kb, config.block_kv, frame.row_in_tile, frame.inside, frame.cut_off, kb.arg("keys"))
    pairs = kb.arg("visits") + frame.first_pair * 2
    steps = frame.n_partial * config.steps_per_tile
    with kb.for_loop(0, steps, 1, state, num_stages=config.num_stages) as loop:
        pair = pairs + kb.trunc_div(loop.index, config.steps_per_tile) * 2
        key_tile, pattern = kb.load(pair).named("key_tile"), kb.load(pair + 1).named("pattern")
        in_tile = kb.trunc_rem(loop.index, config.steps_per_tile) * config.block_kv
        at = (key_tile * TILE + in_tile).named("first_key")
        read = patterns.read(pattern, in_tile, at)
        key = kb.load(frame.block(keys, "k", at, config.block_kv), frame.with_dims(read), 0.0).named("key")
        value = kb.load(frame.block(values, "v", at, config.block_kv), frame.with_dims(read), 0.0).named("value")
        seen = patterns.seen(pattern, in_tile)
        loop.yield_(*step(frame, State(*loop.carried), query, scale, at, key, value, seen))
    return State(*loop.results)
