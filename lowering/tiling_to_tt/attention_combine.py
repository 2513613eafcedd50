"""The kernel `attention_combine`: out and lse of each row, from what the programs of `attention_split` have of it.

Parts of a row that saw nothing were not written, and are not read. A row of which all parts saw nothing gives 0 and
-inf; a part that is NaN makes the row NaN. `out` and `lse` are contiguous. Grid: (rows of all heads and batches, 1, 1).
"""

from __future__ import annotations

import math

from xdsl.dialects.builtin import AnyFloat, ModuleOp

from compilemask.lowering.tiling_to_tt.attention_addresses import VECTOR_BYTES
from compilemask.lowering.tiling_to_tt.attention_config import padded_head_dim
from compilemask.lowering.tiling_to_tt.attention_epilogue import results
from compilemask.lowering.tiling_to_tt.attention_softmax import State
from compilemask.lowering.tiling_to_tt.attention_split_frame import PARTS
from compilemask.lowering.tiling_to_tt.builder import Arg, KernelBuilder, f32, i32, i64, ptr

NAME = "attention_combine"
NUMBERS = 4096
"""Of parts that a program has at a time: 32 a thread."""


def kernel_arguments(element_type: AnyFloat) -> list[Arg]:
    """The kernel's arguments in order."""
    return [
        Arg("parts", ptr(f32), VECTOR_BYTES),
        *(Arg(name, ptr(f32)) for name in PARTS[1:]),
        Arg("out", ptr(element_type), VECTOR_BYTES),
        Arg("lse", ptr(f32)),
        Arg("splits", i32),
    ]


def emit_combine(head_dim: int, element_type: AnyFloat, name: str = NAME) -> ModuleOp:
    """A module with the kernel. Raises LoweringError if there is none for this head_dim."""
    kb = KernelBuilder(name, kernel_arguments(element_type))
    padded = padded_head_dim(head_dim)
    row, splits, dims = kb.cast(kb.program_id(0), i64), kb.arg("splits"), kb.arange(0, padded)[None, :]
    exists = None if padded == head_dim else dims < head_dim
    first = row * kb.cast(splits, i64)
    count = NUMBERS // padded
    with kb.for_loop(0, splits, count, _nothing(kb, padded), num_stages=1) as loop:
        number = loop.index + kb.arange(0, count)
        part = first + kb.cast(number, i64)
        peaks = kb.load(kb.arg("peaks") + part, number < splits, -math.inf).named("peaks")
        totals = kb.load(kb.arg("totals") + part, number < splits, 0.0).named("totals")
        written = (totals != 0.0)[:, None]
        addresses = kb.arg("parts") + (part[:, None] * head_dim + kb.cast(dims, i64))
        parts = kb.load(addresses, written if exists is None else written & exists, 0.0).named("parts")
        loop.yield_(*_joined(kb, State(*loop.carried), State(peaks, totals, parts)))
    out, lse = results(kb, State(*loop.results))
    kb.store(kb.arg("out") + (row * head_dim + kb.cast(dims, i64)), kb.cast(out, element_type), exists)
    kb.store(kb.arg("lse") + row + kb.arange(0, 1), lse)
    return kb.finish()


def _nothing(kb: KernelBuilder, padded: int) -> State:
    """One row, of which nothing was seen."""
    return State(kb.full((1,), -math.inf, f32), kb.zeros((1,), f32), kb.zeros((1, padded), f32))


def _joined(kb: KernelBuilder, state: State, parts: State) -> State:
    """The state of the row [1] after more parts of it [count]."""
    peak = kb.maximum(state.peak, kb.reduce(parts.peak, 0, "max"))
    # As in a step of softmax: -inf - -inf is NaN.
    shift = kb.where(peak == -math.inf, 0.0, peak)
    weights, fade = kb.exp2(parts.peak - shift).named("weights"), kb.exp2(state.peak - shift)
    total = state.total * fade + kb.reduce(parts.total * weights, 0, "sum")
    acc = state.acc * fade[:, None] + kb.reduce(parts.acc * weights[:, None], 0, "sum")[None, :]
    return State(peak, total, acc)
