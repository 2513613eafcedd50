"""`tiling-to-tt-split`: attention of a few rows over many keys, the visits of a tile split among several programs.

Where there are few query rows, one program per tile would leave most of a GPU idle (decoding). Here each program takes
a share of the tile's visits, which it finds in the descriptor, and leaves what it has of each row: the output before
it is divided by the sum of weights, the maximum in base 2, and that sum. `attention_combine` puts them together
("Flash-Decoding", Dao, Haziza, Massa and Sizov, 2023). Query heads that share a key head may be rows of one block, so
that their keys and values are read once.

The grid is (splits * blocks * NQ, Hq / together, batches), with ceil(together * min(Sq, 128) / block_q) blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from compilemask.dialects.tiling import AttentionOp, Weights
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt import attention_combine
from compilemask.lowering.tiling_to_tt.attention import replace_attention
from compilemask.lowering.tiling_to_tt.attention_config import AttentionConfig
from compilemask.lowering.tiling_to_tt.attention_full import full_tiles
from compilemask.lowering.tiling_to_tt.attention_partial import partial_tiles
from compilemask.lowering.tiling_to_tt.attention_score import score_arguments
from compilemask.lowering.tiling_to_tt.attention_softmax import Scale, State, initial_state, prepare
from compilemask.lowering.tiling_to_tt.attention_split_frame import SplitFrame, kernel_arguments, open_split_frame
from compilemask.lowering.tiling_to_tt.builder import KernelBuilder, Value, i64

NAME = "attention_split"
RUNS = 128
"""Runs that are looked at together."""


def emit_split(op: AttentionOp, config: AttentionConfig, name: str = NAME) -> ModuleOp:
    """A module with the kernel of this attention. A score region or a sink asks for heads one by one: together = 1.

    Raises LoweringError for pointwise weights.
    """
    if op.weights.data is Weights.POINTWISE:
        raise LoweringError("attention with pointwise weights is not split")
    kb = KernelBuilder(name, [*kernel_arguments(op.element_type, config.aligned), *score_arguments(op)])
    frame = open_split_frame(kb, op, config)
    query, scale = prepare(frame, frame.load_query())
    state = partial_tiles(_with_own_partial_tiles(frame), _initial_state(frame), query, scale)
    state = _full_tiles_of_share(frame, state, query, scale)
    _store(frame, state)
    return kb.finish()


def _initial_state(frame: SplitFrame) -> State:
    """As for one program, NaN if the frame is not valid; the sink is counted in the first split only."""
    kb = frame.kb
    peak, total, acc = initial_state(frame)
    if frame.op.sink is not None:
        peak, total = (kb.where(frame.split == 0, x, nothing) for x, nothing in ((peak, -math.inf), (total, 0.0)))
    return State(peak, kb.where(frame.valid, total, math.nan), acc)


def _with_own_partial_tiles(frame: SplitFrame) -> SplitFrame:
    first, end = (frame.kb.minimum(x, frame.n_partial) for x in (frame.first_visit, frame.end_visit))
    return replace(frame, first_pair=frame.first_pair + first, n_partial=end - first)


def _full_tiles_of_share(frame: SplitFrame, state: State, query: Value, scale: Scale) -> State:
    """The state after the full tiles of the share, which may begin and end inside a run."""
    kb = frame.kb
    first, end = (kb.maximum(x - frame.n_partial, 0) for x in (frame.first_visit, frame.end_visit))
    runs = kb.arg("visits") + (frame.first_pair + frame.n_partial) * 2
    first_run, end_run, before = _runs_of_share(frame, runs, first, end)
    with kb.for_loop(first_run, end_run, 1, (before, *state)) as each_run:
        before, *carried = each_run.carried
        begin, behind = (kb.load(runs + each_run.index * 2 + word) for word in range(2))
        # Full tile number `before` of the query tile is key tile `begin`.
        offset = begin - before
        own = kb.maximum(begin, first + offset), kb.minimum(behind, end + offset)
        each_run.yield_(before + (behind - begin), *full_tiles(frame, State(*carried), query, scale, *own))
    return State(*each_run.results[1:])


def _runs_of_share(frame: SplitFrame, runs: Value, first: Value, end: Value) -> tuple[Value, Value, Value]:
    """The first run with full tiles of [first, end), the one behind the last, and the full tiles before the first."""
    kb = frame.kb
    with kb.for_loop(0, frame.n_runs, RUNS, [kb.constant(0)] * 4) as loop:
        first_run, end_run, skipped, seen = loop.carried
        number = loop.index + kb.arange(0, RUNS)
        begin, behind = (kb.load(runs + number * 2 + word, number < frame.n_runs, 0) for word in range(2))
        length = behind - begin
        up_to = seen + kb.cumsum(length)
        is_before = (up_to <= first) & (number < frame.n_runs)
        begins_before_end = (up_to - length < end) & (number < frame.n_runs)
        loop.yield_(
            first_run + kb.reduce(kb.where(is_before, 1, 0), 0, "sum"),
            end_run + kb.reduce(kb.where(begins_before_end, 1, 0), 0, "sum"),
            skipped + kb.reduce(kb.where(is_before, length, 0), 0, "sum"),
            seen + kb.reduce(length, 0, "sum"),
        )
    first_run, end_run, skipped, _ = loop.results
    return first_run, end_run, skipped


def _store(frame: SplitFrame, state: State) -> None:
    """Stores what there is of rows that exist; of those that have seen nothing, no output."""
    kb = frame.kb
    part = frame.parts_of_rows()
    kb.store(kb.arg("peaks") + part, state.peak, frame.inside)
    kb.store(kb.arg("totals") + part, state.total, frame.inside)
    addresses = kb.arg("parts") + (part[:, None] * frame.head_dim + kb.cast(frame.dims(), i64))
    has_seen = (frame.inside & (state.total != 0.0))[:, None]
    kb.store(addresses, state.acc, frame.with_dims(has_seen))


@dataclass(frozen=True)
class TilingToTtSplitPass(ModulePass):
    """Replaces each function that holds a `tiling.attention` by the kernel that splits keys and that which combines."""

    name = "tiling-to-tt-split"

    block_q: int = 16
    block_kv: int = 64

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        config = AttentionConfig(self.block_q, self.block_kv)

        def kernels(attention: AttentionOp, name: str) -> Sequence[ModuleOp]:
            split = emit_split(attention, config, f"{name}_split")
            return split, attention_combine.emit_combine(attention.head_dim, attention.element_type, f"{name}_combine")

        replace_attention(op, kernels)
