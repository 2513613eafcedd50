"""Full tiles: runs of keys that every row sees. No masks and no bounds: products, softmax, and loads that run ahead."""

from __future__ import annotations

from compilemask.lowering.tiling_to_tt.attention_config import TILE
from compilemask.lowering.tiling_to_tt.attention_frame import Frame
from compilemask.lowering.tiling_to_tt.attention_softmax import Scale, State, step
from compilemask.lowering.tiling_to_tt.builder import Value


def full_runs(frame: Frame, state: State, query: Value, scale: Scale) -> State:
    """The state after all full runs of the tile."""
    kb = frame.kb
    runs = kb.arg("visits") + (frame.first_pair + frame.n_partial) * 2
    with kb.for_loop(0, frame.n_runs, 1, state) as each_run:
        first, end = (kb.load(runs + each_run.index * 2 + word) for word in range(2))
        each_run.yield_(*full_tiles(frame, State(*each_run.carried), query, scale, first, end))
    return State(*each_run.results)


def full_tiles(frame: Frame, state: State, query: Value, scale: Scale, first: Value, end: Value) -> State:
    """The state after the key tiles from `first` up to `end`."""
    kb, config = frame.kb, frame.config
    keys, values = (frame.origin(name, name, frame.key_head) for name in ("k", "v"))
    mask = frame.with_dims(None)
    other = None if mask is None else 0.0
    with kb.for_loop(first * TILE, end * TILE, config.block_kv, state, num_stages=config.num_stages) as loop:
        at = loop.index
        key = kb.load(frame.block(keys, "k", at, config.block_kv), mask, other).named("key")
        value = kb.load(frame.block(values, "v", at, config.block_kv), mask, other).named("value")
        loop.yield_(*step(frame, State(*loop.carried), query, scale, at, key, value, None))
    return State(*loop.results)
