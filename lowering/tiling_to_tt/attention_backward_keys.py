"""The kernel `attention_backward_keys`: gradients of keys and values, along the descriptor of the transposed mask.

A program owns a block of keys and visits the queries that see it, of all query heads that read its key head, so that
nothing is summed in memory: runs are equal bit by bit. Grid: (NK * 128 / rows, Hkv, B).
"""

from __future__ import annotations

from typing import NamedTuple

from xdsl.dialects.builtin import AnyFloat, ModuleOp

from compilemask.dialects.tiling_score import ScoreOp
from compilemask.lowering.tiling_to_tt.attention_backward_config import BackwardConfig
from compilemask.lowering.tiling_to_tt.attention_backward_frame import (
    BackwardFrame,
    Visits,
    kernel_arguments,
    open_frame,
)
from compilemask.lowering.tiling_to_tt.attention_backward_score import Modification, Pairs, Scores
from compilemask.lowering.tiling_to_tt.attention_config import TILE
from compilemask.lowering.tiling_to_tt.builder import KernelBuilder, Value, f32, i32

NAME = "attention_backward_keys"
OUTPUTS = ("grad_k", "grad_v")


class _State(NamedTuple):
    """Sums [rows, padded] f32: of slopes times queries, and of weights times gradients of the output."""

    grad_key: Value
    grad_value: Value


class _Queries(NamedTuple):
    """Queries from `first` on: rows [width, padded], numbers [width], and who sees whom, [rows, width] i1, or all."""

    first: Value
    query: Value
    grad: Value
    shift: Value
    delta: Value
    seen: Value | None


class _Kernel:
    """The kernel under construction."""

    def __init__(
        self, head_dim: int, element_type: AnyFloat, config: BackwardConfig, modification: Modification | None
    ) -> None:
        arguments = kernel_arguments(OUTPUTS, element_type, config.aligned)
        arguments += [] if modification is None else modification.arguments()
        self.kb = kb = KernelBuilder(NAME, arguments)
        self.modification = modification
        self.config = config
        self.key_head = kb.program_id(1)
        self.first_head = self.key_head * kb.arg("group")
        self.frame: BackwardFrame = open_frame(kb, head_dim, element_type, config, "keys", self.first_head)
        self.key, self.value = (self.frame.load_rows(name, self.key_head) for name in ("k", "v"))

    def emit(self) -> ModuleOp:
        """The module."""
        kb, frame = self.kb, self.frame
        zeros = kb.zeros((self.config.rows, frame.padded), f32)
        with kb.for_loop(0, kb.arg("group"), 1, [zeros, zeros, kb.constant(0, i32)]) as loop:
            *sums, missing = loop.carried
            head = self.first_head + loop.index
            visits, scores = frame.visits(head), Scores(frame, self.modification, head, "keys")
            state = self._partial_tiles(head, scores, visits, _State(*sums))
            state = self._full_runs(head, scores, visits, state)
            loop.yield_(*state, missing | visits.missing)
        grad_key, grad_value, missing = loop.results
        frame.store_rows("grad_k", self.key_head, grad_key * kb.arg("scale"), missing)
        frame.store_rows("grad_v", self.key_head, grad_value, missing)
        return kb.finish()

    def _partial_tiles(self, head: Value, scores: Scores, visits: Visits, state: _State) -> _State:
        kb, width, patterns = self.kb, self.config.width, self.frame.patterns
        pairs = kb.arg("visits") + visits.first_pair * 2
        steps = visits.n_partial * patterns.steps_per_tile
        with kb.for_loop(0, steps, 1, state, num_stages=self.config.num_stages) as loop:
            pair = pairs + kb.trunc_div(loop.index, patterns.steps_per_tile) * 2
            tile, pattern = kb.load(pair).named("query_tile"), kb.load(pair + 1).named("pattern")
            in_tile = kb.trunc_rem(loop.index, patterns.steps_per_tile) * width
            at = tile * TILE + in_tile
            exists = at + kb.arange(0, width) < kb.arg("queries")
            block = self._load(head, at, patterns.read(pattern, in_tile, at), exists)
            block = block._replace(seen=patterns.seen(pattern, in_tile))
            loop.yield_(*self._step(scores, _State(*loop.carried), block))
        return _State(*loop.results)

    def _full_runs(self, head: Value, scores: Scores, visits: Visits, state: _State) -> _State:
        kb, config = self.kb, self.config
        runs = kb.arg("visits") + (visits.first_pair + visits.n_partial) * 2
        with kb.for_loop(0, visits.n_runs, 1, state) as each_run:
            first, end = (kb.load(runs + each_run.index * 2 + word) * TILE for word in range(2))
            with kb.for_loop(first, end, config.width, each_run.carried, num_stages=config.num_stages) as loop:
                block = self._load(head, loop.index, None, None)
                loop.yield_(*self._step(scores, _State(*loop.carried), block))
            each_run.yield_(*loop.results)
        return _State(*each_run.results)

    def _load(self, head: Value, at: Value, read: Value | None, exists: Value | None) -> _Queries:
        """The queries from `at`: rows that are read, 0 for others, and numbers of those that exist."""
        kb, frame, width = self.kb, self.frame, self.config.width
        mask = frame.with_dims(read)
        other = None if mask is None else 0.0
        query, grad = (
            kb.load(frame.block(frame.origin(name, name, head), name, at, width), mask, other).named(name)
            for name in ("q", "grad")
        )
        positions = at + kb.arange(0, width)
        shift, delta = (
            kb.load(frame.of_queries(name, head) + positions, exists, None if exists is None else 0.0).named(name)
            for name in ("shift", "delta")
        )
        return _Queries(at, query, grad, shift, delta, None)

    def _step(self, scores: Scores, state: _State, block: _Queries) -> _State:
        """The sums with a block of queries in them."""
        kb, frame = self.kb, self.frame
        products, rises = kb.dot(self.key, kb.trans(block.query)), kb.dot(self.value, kb.trans(block.grad))
        pairs = Pairs(products, rises, block.shift[None, :], block.delta[None, :], block.first, block.seen)
        weights, slopes = (kb.cast(x, frame.element_type) for x in scores.slopes(pairs)[:2])
        return _State(
            kb.dot(slopes, block.query, state.grad_key), kb.dot(weights.named("weights"), block.grad, state.grad_value)
        )


def emit_keys(head_dim: int, element_type: AnyFloat, config: BackwardConfig, score: ScoreOp | None = None) -> ModuleOp:
    """A module with the kernel, for a score modification. Raises GradientError if that has no gradient."""
    return _Kernel(head_dim, element_type, config, Modification.of(head_dim, element_type, score)).emit()
