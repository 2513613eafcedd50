"""`tiling-to-ttg`: attention that follows a descriptor as a kernel for Hopper (sm_90a), the same for all masks.

    module = attention_module(128, bf16)                       # func.func @attention with one tiling.attention
    kernel = emit(attention_op(module), HopperConfig.choose(128, bf16))
    text = print_generic(legalize(kernel, triton.__version__))  # what Triton compiles

One warp copies tiles of q, k and v to shared memory by TMA, two or three warpgroups of 64 rows each multiply them with
asynchronous wgmma, and one warp cleans values that nobody sees. Where rows keep their first peaks, the same warps
compute inexact tiles again in the end (`attention_again.py`). Results equal those of the portable kernel
(`tiling_to_tt/attention.py`) up to rounding. `attention_frame.kernel_arguments` lists the arguments. Tiles may be
patches of an image, which TMA copies from where they lie in raster order (`attention_maps.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.builtin import BFloat16Type, ModuleOp

from compilemask.dialects import tiling
from compilemask.dialects.tiling import Weights
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt.attention_score import score_arguments
from compilemask.lowering.tiling_to_ttg.attention_again import (
    clean_again,
    consume_again,
    produce_again,
)
from compilemask.lowering.tiling_to_ttg.attention_config import (
    SHARED_MEMORY,
    HopperConfig,
    Schedule,
    check_supported,
)
from compilemask.lowering.tiling_to_ttg.attention_frame import Frame, kernel_arguments, open_frame
from compilemask.lowering.tiling_to_ttg.attention_inexact import published
from compilemask.lowering.tiling_to_ttg.attention_schedule import run_cleaner, run_consumer, run_producer
from compilemask.lowering.tiling_to_ttg.attention_tile import tile_at
from compilemask.lowering.tiling_to_ttg.builder import GpuKernelBuilder

__all__ = ["HopperConfig", "Schedule", "emit"]

NAME = "attention"


def emit(op: tiling.AttentionOp, config: HopperConfig, name: str = NAME) -> ModuleOp:
    """A verified module in Triton-GPU IR with the kernel of this attention. Raises LoweringError if there is none."""
    check_supported(op.head_dim, op.element_type)
    if config.programs * config.shared_bytes(op.head_dim) > SHARED_MEMORY:
        raise LoweringError(f"{config} needs {config.shared_bytes(op.head_dim)} bytes of shared memory")
    if config.key_patch is not None and (op.score.blocks or op.sink is not None or op.lse is None):
        raise LoweringError("no Hopper kernel for modified scores in patches of an image")
    if config.keeps_peaks and (op.score.blocks or op.weights.data is Weights.POINTWISE):
        raise LoweringError("no Hopper kernel that keeps peaks of modified scores")
    if config.keeps_peaks and not isinstance(op.element_type, BFloat16Type):
        # Weights far below 1 are as exact as others only where their type has the range of float32.
        raise LoweringError(f"no Hopper kernel that keeps peaks for {op.element_type}")
    arguments = [*kernel_arguments(config), *score_arguments(op)]
    kb = GpuKernelBuilder(name, arguments, max_registers=config.max_registers)
    # Read before warps part, who would all wait for it, each by itself, and beside the preparation of barriers.
    only = None if config.is_persistent else tile_at(kb, config, kb.program_id(0))
    frame = open_frame(kb, op, config)
    _specialize(
        frame,
        lambda part: run_consumer(frame, part, only),
        lambda: run_producer(frame, only),
        lambda: run_cleaner(frame, only),
    )
    if config.keeps_peaks:
        lists = published(frame)
        with kb.if_else(lists.name_tiles) as some, some.then():
            _specialize(
                frame,
                lambda part: consume_again(frame, part, lists),
                lambda: produce_again(frame, lists),
                lambda: clean_again(frame, lists),
            )
    return kb.finish()


def _specialize(
    frame: Frame, consume: Callable[[int], None], produce: Callable[[], None], clean: Callable[[], None]
) -> None:
    """One warpgroup or more that compute, one warp that copies, and one that cleans values."""
    config = frame.config
    with frame.kb.warp_specialize() as roles:
        with roles.default():
            consume(0)
        for part in range(1, config.consumers):
            with roles.partition(4, config.consumer_registers):
                consume(part)
        with roles.partition(1, config.producer_registers):
            produce()
        if config.clean_values:
            with roles.partition(1, config.producer_registers):
                clean()
