"""The end of the attention kernel: out and lse from the running values."""

from __future__ import annotations

import math

from compilemask.dialects.tiling import Weights
from compilemask.lowering.tiling_to_tt.attention_frame import Frame
from compilemask.lowering.tiling_to_tt.attention_softmax import Scale, State
from compilemask.lowering.tiling_to_tt.builder import KernelBuilder, Value, i64

LN_2 = math.log(2)


def store(frame: Frame, state: State, scale: Scale) -> None:
    """Stores the rows that exist: 0 and -inf where nothing was seen, NaN where the frame is not valid."""
    kb = frame.kb
    if frame.op.weights.data is Weights.POINTWISE:
        factor = None if scale.region is None else scale.region.output_factor
        _store_out(frame, state.acc if factor is None else state.acc * factor)
        return
    out, lse = results(kb, state)
    _store_out(frame, out)
    head = frame.batch * kb.arg("heads") + frame.head
    first = kb.cast(head, i64) * kb.cast(kb.arg("queries"), i64) + kb.cast(frame.first_row, i64)
    kb.store(kb.arg("lse") + first + kb.arange(0, frame.config.block_q), _or_nan(frame, lse), frame.inside)


def results(kb: KernelBuilder, state: State) -> tuple[Value, Value]:
    """out [rows, padded] and lse [rows], f32: 0 and -inf where nothing was seen."""
    empty = state.total == 0.0
    weight = kb.where(empty, 0.0, 1.0 / kb.where(empty, 1.0, state.total))
    out = kb.where(empty[:, None], 0.0, state.acc * weight[:, None])
    return out, (state.peak + kb.log2(state.total)) * LN_2


def _store_out(frame: Frame, out: Value) -> None:
    out = frame.kb.cast(_or_nan(frame, out), frame.element_type).named("rows_of_out")
    addresses = frame.block(frame.origin("out", "o", frame.head), "o", frame.first_row, frame.config.block_q)
    frame.kb.store(addresses, out, frame.with_dims(frame.inside[:, None]))


def _or_nan(frame: Frame, x: Value) -> Value:
    return frame.kb.where(frame.valid, x, math.nan)
