"""Bits of a pattern against a block of scores that a warpgroup holds.

Column c of a row is bit 2 * (c >> 3) + (c & 1) of word (c >> 1) & 3 (docs/descriptor.md): a thread holds the columns of
one word per row, so that masking moves nothing between threads.
"""

from __future__ import annotations

from xdsl.dialects.builtin import i32

from compilemask.dialects.triton.layouts import LinearLayout, NvidiaMmaLayout, SliceLayout
from compilemask.dialects.triton.layouts_linear import reshaped
from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS
from compilemask.lowering.tiling_to_ttg.builder import GpuKernelBuilder, slice_of


def quads_of(scores: NvidiaMmaLayout, columns: int) -> LinearLayout:
    """Scores [64, columns] as [64, columns / 8, 4, 2]: column 8 i + 2 lane + c of a row lies in a lane of its quad."""
    return reshaped(scores, (ROWS, columns), (ROWS, columns // 8, 4, 2))


def lanes_of(scores: NvidiaMmaLayout, columns: int) -> SliceLayout:
    """[64, 4]: a number per row and lane of its quad."""
    return slice_of(slice_of(quads_of(scores, columns), 3), 1)


def visible(kb: GpuKernelBuilder, words: Value, scores: NvidiaMmaLayout, columns: int) -> Value:
    """[64, columns] i1: the pairs whose bits are set in `words` [64, 4]."""
    quads = quads_of(scores, columns)
    octet = kb.arange(0, columns // 8, slice_of(slice_of(slice_of(quads, 3), 2), 0))
    column = kb.arange(0, 2, slice_of(slice_of(slice_of(quads, 2), 1), 0))
    octet, column = octet[None, :][:, :, None][:, :, :, None], column[None, :][:, None, :][:, :, None, :]
    bit = kb.constant(1, i32) << (octet * 2 + column)
    found = (words[:, None, :][:, :, :, None] & bit) != 0
    return kb.convert_layout(kb.reshape(found, (ROWS, columns)), scores)
