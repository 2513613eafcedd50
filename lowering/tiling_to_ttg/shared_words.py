"""Words that one warp leaves in shared memory for others, each of whose threads reads all of them."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import i32

from compilemask.dialects.triton.layouts import WARP_SIZE, BlockedLayout
from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.builder import GpuKernelBuilder
from compilemask.lowering.tiling_to_ttg.builder_memory import Buffer


def store_words(kb: GpuKernelBuilder, buffer: Buffer, words: Sequence[Value], other: int = 0) -> None:
    """Stores i32 words from one warp to a buffer [n] of at least as many, and `other` behind them."""
    (size,) = buffer.shape
    index = kb.arange(0, size, _layout(size, 1))
    stored = kb.full((size,), other, i32, _layout(size, 1))
    for position, word in enumerate(words):
        stored = kb.where(index == position, word, stored)
    buffer.store(stored)


def load_words(kb: GpuKernelBuilder, buffer: Buffer, num_warps: int, count: int) -> list[Value]:
    """The first `count` words of a buffer, i32."""
    (size,) = buffer.shape
    words, index = buffer.load(_layout(size, num_warps)), kb.arange(0, size, _layout(size, num_warps))
    return [kb.reduce(kb.where(index == position, words, 0), 0, "sum") for position in range(count)]


def _layout(size: int, num_warps: int) -> BlockedLayout:
    """Every thread holds all words."""
    return BlockedLayout.of([size], [WARP_SIZE], [num_warps], [0])
