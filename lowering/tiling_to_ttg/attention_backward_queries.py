"""`tiling-to-ttg`: gradients of queries along a mask's own descriptor, as a kernel for Hopper (sm_90a).

    kernel = emit_backward_queries(128, bf16, HopperQueriesConfig.choose(128, bf16))

A program owns 128 queries and visits the keys that they see, so that nothing is summed in memory: runs are equal bit by
bit. One warp copies keys and values to shared memory by TMA, two warpgroups of 64 queries each compute. Grid:
NQ * Hq * B. `attention_backward_queries_frame.kernel_arguments` lists the arguments.
"""

from __future__ import annotations

from xdsl.dialects.builtin import AnyFloat, ModuleOp, i32

from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_backward_end import let_end
from compilemask.lowering.tiling_to_ttg.attention_backward_queries_config import HopperQueriesConfig
from compilemask.lowering.tiling_to_ttg.attention_backward_queries_consumer import run_consumer
from compilemask.lowering.tiling_to_ttg.attention_backward_queries_frame import (
    Frame,
    kernel_arguments,
    open_frame,
    own_tile,
)
from compilemask.lowering.tiling_to_ttg.attention_config import CONSUMERS, SHARED_MEMORY, check_supported
from compilemask.lowering.tiling_to_ttg.builder import GpuKernelBuilder

__all__ = ["HopperQueriesConfig", "emit_backward_queries"]

NAME = "attention_backward_queries"


def emit_backward_queries(head_dim: int, element_type: AnyFloat, config: HopperQueriesConfig) -> ModuleOp:
    """A verified module in Triton-GPU IR with the kernel. Raises LoweringError if there is none."""
    check_supported(head_dim, element_type)
    if config.shared_bytes(head_dim) > SHARED_MEMORY:
        raise LoweringError(f"{config} needs {config.shared_bytes(head_dim)} bytes of shared memory")
    kb = GpuKernelBuilder(NAME, kernel_arguments())
    frame = open_frame(kb, head_dim, element_type, config)
    with kb.warp_specialize() as roles:
        with roles.default():
            run_consumer(frame, 0)
        for part in range(1, CONSUMERS):
            with roles.partition(4, config.consumer_registers):
                run_consumer(frame, part)
        with roles.partition(1, config.producer_registers):
            _run_producer(frame)
    return kb.finish()


def _run_producer(frame: Frame) -> None:
    """Copies the program's queries, with the gradients of their outputs, and then the keys and values they see."""
    kb, tile = frame.kb, own_tile(frame, 1)
    frame.rows_full.expect(CONSUMERS * (frame.query.map.bytes + frame.grad.map.bytes))
    batch, head = tile.batch_and_head(frame)
    for source in (frame.query, frame.grad):
        for part in range(CONSUMERS):
            at = [batch, head, tile.first_row(part), 0]
            source.map.load(at, source.buffer[part], frame.rows_full)
    key_head = kb.trunc_div(head, kb.arg("group"))
    with kb.for_loop(0, tile.n_partial + tile.n_runs, 1, [kb.constant(0, i32)]) as each:
        first, end = tile.span(frame, each.index, tile.pair(frame, each.index))
        with kb.for_loop(first, end, frame.config.keys, each.carried) as steps:
            _load(frame, batch, key_head, steps.index, steps.carried[0])
            steps.yield_(steps.carried[0] + 1)
        each.yield_(*steps.results)
    if frame.config.scores_ahead:
        stages, zero = frame.config.stages, kb.constant(0, i32)
        let_end(frame, each.results[0], stages, lambda place: _copy(frame, batch, key_head, zero, place))


def _load(frame: Frame, batch: Value, key_head: Value, first: Value, number: Value) -> None:
    """Keys and values from `first` on, once there is a buffer."""
    place, phase = frame.place(number)
    frame.empty[place].wait(phase ^ 1)
    _copy(frame, batch, key_head, first, place)


def _copy(frame: Frame, batch: Value, key_head: Value, first: Value, place: Value) -> None:
    frame.full[place].expect(frame.key.map.bytes + frame.value.map.bytes)
    for source in (frame.key, frame.value):
        source.map.load([batch, key_head, first, 0], source.buffer[place], frame.full[place])
