"""Bits of a pattern against a block of scores that a warpgroup holds.

Column c of a row is bit 2 * (c >> 3) + (c & 1) of word (c >> 1) & 3 (docs/descriptor.md): a thread holds the columns of
one word per row, so that masking moves nothing between threads.
"""

from __future__ import annotations

from compilemask.dialects.triton.layouts import LinearLayout, NvidiaMmaLayout, SliceLayout
from compilemask.dialects.triton.layouts_linear import reshaped
from compilemask.lowering.descriptor_layout import PATTERN_ROW_WORDS
from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_config import CONSUMERS, ROWS, TILE
from compilemask.lowering.tiling_to_ttg.builder import GpuKernelBuilder, slice_of

BITS_PER_HALF = 16
"""Of a word: those of 64 columns."""


def quads_of(scores: NvidiaMmaLayout, columns: int) -> LinearLayout:
    """Scores [64, columns] as [64, columns / 8, 4, 2]: column 8 i + 2 lane + c of a row lies in a lane of its quad."""
    return reshaped(scores, (ROWS, columns), (ROWS, columns // 8, 4, 2))


def lanes_of(scores: NvidiaMmaLayout, columns: int) -> SliceLayout:
    """[64, 4]: a number per row and lane of its quad."""
    return slice_of(slice_of(quads_of(scores, columns), 3), 1)


def only_visible(
    kb: GpuKernelBuilder,
    x: Value,
    words: Value,
    scores: NvidiaMmaLayout,
    columns: int,
    hidden: float,
    together: int = 2,
) -> Value:
    """A block [64, columns] where the bits of pairs are set in `words` [64, 4], else -inf or 0: `hidden`.

    So many tests stand `together` before their choices (`inline_ptx.KEEP_WHERE_SET`).
    """
    quads = quads_of(scores, columns)
    octet = kb.arange(0, columns // 8, slice_of(slice_of(slice_of(quads, 3), 2), 0))
    octet = octet[None, :][:, :, None][:, :, :, None]
    shifted = kb.shift_right_unsigned(words[:, None, :][:, :, :, None], octet // 8 * BITS_PER_HALF)
    shifted = kb.broadcast_to(shifted, (ROWS, columns // 8, 4, 2))
    return kb.keep_where_set(x, kb.convert_layout(kb.reshape(shifted, (ROWS, columns)), scores), hidden, together)


def octets_seen(
    kb: GpuKernelBuilder, part: int, pattern: Value, exists: Value | None = None, other: Value | int | None = None
) -> Value:
    """i32: bits of the octets of columns of which the warpgroup's 64 rows of a pattern of 128 see some.

    `other` in all four words if the pattern does not exist.
    """
    address = kb.arg("columns") + (pattern * CONSUMERS + part) * PATTERN_ROW_WORDS
    words = [kb.load(address + word, exists, other) for word in range(PATTERN_ROW_WORDS)]
    return words[0] | words[1] | words[2] | words[3]


def bits_of_step(kb: GpuKernelBuilder, words: Value, octets: Value, first: Value, size: int) -> tuple[Value, Value]:
    """Words [64, 4] of a tile's pattern and its octets, for the `size` columns of a step from `first` on: with the bits
    of those first, and in the octets no others. Steps are whole tiles, or halves.
    """
    if size == TILE:
        return words, octets
    before = first // size % (TILE // size) * BITS_PER_HALF
    words, octets = (kb.shift_right_unsigned(bits, before) for bits in (words, octets))
    return words, octets & ((1 << BITS_PER_HALF) - 1)
