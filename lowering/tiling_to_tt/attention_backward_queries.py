"""The kernel `attention_backward_queries`: the gradient of queries, along the descriptor of the mask.

A program owns a block of query rows and visits the keys that they see, so that nothing is summed in memory: runs are
equal bit by bit. It also computes the gradients of tables that a score modification captures; those of which pairs read
different entries are summed in memory, in any order. Grid: (NQ * 128 / rows, Hq, B).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from xdsl.dialects.builtin import AnyFloat, ModuleOp

from compilemask.dialects.tiling_score import ScoreOp
from compilemask.lowering.tiling_to_tt.attention_backward_config import BackwardConfig
from compilemask.lowering.tiling_to_tt.attention_backward_frame import (
    BackwardFrame,
    Visits,
    kernel_arguments,
    open_frame,
)
from compilemask.lowering.tiling_to_tt.attention_backward_score import Modification, Pairs, Scores, Sums
from compilemask.lowering.tiling_to_tt.attention_config import TILE
from compilemask.lowering.tiling_to_tt.builder import KernelBuilder, Value, f32

NAME = "attention_backward_queries"
OUTPUTS = ("grad_q",)


class _Kernel:
    """The kernel under construction."""

    def __init__(
        self, head_dim: int, element_type: AnyFloat, config: BackwardConfig, modification: Modification | None
    ) -> None:
        arguments = kernel_arguments(OUTPUTS, element_type, config.aligned)
        arguments += [] if modification is None else modification.arguments()
        self.kb = kb = KernelBuilder(NAME, arguments)
        self.config = config
        self.head = kb.program_id(1)
        self.frame: BackwardFrame = open_frame(kb, head_dim, element_type, config, "queries", self.head)
        self.query, self.grad = (self.frame.load_rows(name, self.head) for name in ("q", "grad"))
        self.shift, self.delta = self._numbers("shift", math.inf), self._numbers("delta", 0.0)
        self.scores = Scores(self.frame, modification, self.head, "queries")
        self.sums = Sums(self.frame, modification, self.head)
        key_head = kb.trunc_div(self.head, kb.arg("group"))
        self.keys, self.values = (self.frame.origin(name, name, key_head) for name in ("k", "v"))

    def _numbers(self, name: str, other: float) -> Value:
        frame, kb = self.frame, self.kb
        first = frame.of_queries(name, self.head) + frame.first_row
        return kb.load(first + kb.arange(0, self.config.rows), frame.inside, other).named(name)

    def emit(self) -> ModuleOp:
        """The module."""
        kb, frame = self.kb, self.frame
        visits = frame.visits(self.head)
        state = self._partial_tiles(visits, [kb.zeros((self.config.rows, frame.padded), f32), *self.sums.start()])
        total, *sums = self._full_runs(visits, state)
        frame.store_rows("grad_q", self.head, total * kb.arg("scale"), visits.missing)
        self.sums.store(sums, visits.missing)
        return kb.finish()

    def _partial_tiles(self, visits: Visits, state: Sequence[Value]) -> Sequence[Value]:
        kb, width, patterns = self.kb, self.config.width, self.frame.patterns
        pairs = kb.arg("visits") + visits.first_pair * 2
        steps = visits.n_partial * patterns.steps_per_tile
        with kb.for_loop(0, steps, 1, state, num_stages=self.config.num_stages) as loop:
            pair = pairs + kb.trunc_div(loop.index, patterns.steps_per_tile) * 2
            tile, pattern = kb.load(pair).named("key_tile"), kb.load(pair + 1).named("pattern")
            in_tile = kb.trunc_rem(loop.index, patterns.steps_per_tile) * width
            at = tile * TILE + in_tile
            key, value = self._load(at, patterns.read(pattern, in_tile, at))
            loop.yield_(*self._step(loop.carried, at, key, value, patterns.seen(pattern, in_tile)))
        return loop.results

    def _full_runs(self, visits: Visits, state: Sequence[Value]) -> Sequence[Value]:
        kb, config = self.kb, self.config
        runs = kb.arg("visits") + (visits.first_pair + visits.n_partial) * 2
        with kb.for_loop(0, visits.n_runs, 1, state) as each_run:
            first, end = (kb.load(runs + each_run.index * 2 + word) * TILE for word in range(2))
            with kb.for_loop(first, end, config.width, each_run.carried, num_stages=config.num_stages) as loop:
                loop.yield_(*self._step(loop.carried, loop.index, *self._load(loop.index, None), None))
            each_run.yield_(*loop.results)
        return each_run.results

    def _load(self, at: Value, read: Value | None) -> tuple[Value, Value]:
        """Keys and values [width, padded] from `at`: those that are read, 0 for others."""
        kb, frame, width = self.kb, self.frame, self.config.width
        mask = frame.with_dims(read)
        other = None if mask is None else 0.0
        key = kb.load(frame.block(self.keys, "k", at, width), mask, other)
        value = kb.load(frame.block(self.values, "v", at, width), mask, other)
        return key.named("key"), value.named("value")

    def _step(self, state: Sequence[Value], at: Value, key: Value, value: Value, seen: Value | None) -> list[Value]:
        """The sum of slopes times keys [rows, padded] f32, and those of heads, with the keys from `at` in them."""
        kb, (total, *sums) = self.kb, state
        products, rises = kb.dot(self.query, kb.trans(key)), kb.dot(self.grad, kb.trans(value))
        pairs = Pairs(products, rises, self.shift[:, None], self.delta[:, None], at, seen)
        found = self.scores.slopes(pairs)
        total = kb.dot(kb.cast(found.slopes, self.frame.element_type), key, total)
        return [total, *(before + more for before, more in zip(sums, found.sums, strict=True))]


def emit_queries(
    head_dim: int,
    element_type: AnyFloat,
    config: BackwardConfig,
    score: ScoreOp | None = None,
    wanted: Collection[int] = (),
) -> ModuleOp:
    """A module with the kernel, for a score modification, and the captured tables of which gradients are wanted.

    Raises GradientError if the modification has no gradient.
    """
    return _Kernel(head_dim, element_type, config, Modification.of(head_dim, element_type, score, wanted)).emit()
