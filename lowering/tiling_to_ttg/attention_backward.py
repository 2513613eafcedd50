"""`tiling-to-ttg`: gradients of keys and values along a transposed descriptor, as a kernel for Hopper (sm_90a).

    kernel = emit_backward(128, bf16, HopperBackwardConfig.choose(128, bf16))

A program owns 128 keys and visits the queries that see them, of all heads that read its key head, so that gradients of
keys and values are summed in registers. One warp copies queries and gradients of the output to shared memory by TMA,
two warpgroups of 64 keys each compute. The gradient of queries is summed in memory, in float32
(`tiling_to_tt/attention_backward_total.py` rounds it), or left to `attention_backward_queries.py`. Grid: NK * Hkv * B.
`attention_backward_frame.kernel_arguments` lists the arguments.
"""

from __future__ import annotations

from xdsl.dialects.builtin import AnyFloat, ModuleOp

from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_ttg.attention_backward_config import HopperBackwardConfig
from compilemask.lowering.tiling_to_ttg.attention_backward_consumer import run_consumer
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import kernel_arguments, open_frame
from compilemask.lowering.tiling_to_ttg.attention_backward_producer import run_producer
from compilemask.lowering.tiling_to_ttg.attention_config import CONSUMERS, ROWS, SHARED_MEMORY, check_supported
from compilemask.lowering.tiling_to_ttg.builder import GpuKernelBuilder

__all__ = ["HopperBackwardConfig", "emit_backward"]

NAME = "attention_backward_keys"


def emit_backward(head_dim: int, element_type: AnyFloat, config: HopperBackwardConfig) -> ModuleOp:
    """A verified module in Triton-GPU IR with the kernel. Raises LoweringError if there is none."""
    check_supported(head_dim, element_type)
    if config.shared_bytes(head_dim) > SHARED_MEMORY:
        raise LoweringError(f"{config} needs {config.shared_bytes(head_dim)} bytes of shared memory")
    if config.sums_queries and config.queries * head_dim != CONSUMERS * ROWS * ROWS:
        raise LoweringError(f"{config.queries} x {head_dim} sums of queries are not one block for each warpgroup")
    kb = GpuKernelBuilder(NAME, kernel_arguments(config))
    frame = open_frame(kb, head_dim, element_type, config)
    with kb.warp_specialize() as roles:
        with roles.default():
            run_consumer(frame, 0)
        for part in range(1, CONSUMERS):
            with roles.partition(4, config.consumer_registers):
                run_consumer(frame, part)
        with roles.partition(1, config.producer_registers):
            run_producer(frame)
    return kb.finish()
