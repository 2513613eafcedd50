"""The kernel `count`: how many tiles of each class and how many runs a query tile has, and the header's constants.

One program per query tile and mask: grid (NQ, G, 1).
"""

from __future__ import annotations

from compilemask.lowering.descriptor_layout import (
    ALIGNMENT,
    HEADER_WORDS,
    KEYS,
    MAGIC,
    PATCHES_WORD,
    SHARED_WORD,
    TILE_WORDS,
    VERSION,
)
from compilemask.lowering.tiling_to_tt.builder import Value, i32
from compilemask.lowering.tiling_to_tt.descriptor_bits import popcount
from compilemask.lowering.tiling_to_tt.descriptor_kernel import DescriptorKernel, MaskFunctions, QueryTile
from compilemask.lowering.tiling_to_tt.tile_classes import TileClasses


def count_kernel(mask: MaskFunctions) -> DescriptorKernel:
    """The kernel for one mask."""
    kernel = DescriptorKernel("count", mask)
    kb = kernel.kb
    m, g = kb.program_id(0), kb.program_id(1)
    _store_header(kernel, (m | g) == 0)
    classes = TileClasses(kernel, QueryTile.of(kernel, m, g))
    words = dict(enumerate((*_counts(kernel, classes), classes.own_positions())))
    kernel.store_lanes(kernel.record(g * kernel.query_tiles + m) + 4, words, 4)
    return kernel


def _counts(kernel: DescriptorKernel, classes: TileClasses) -> tuple[Value, Value, Value]:
    """Partial tiles, runs and full tiles."""
    kb, zero = kernel.kb, kernel.kb.constant(0, i32)
    begin, end = classes.blocks()
    with kb.for_loop(begin, end, 1, [zero, zero, zero, zero]) as loop:
        partial, turns, full, inside = loop.carried
        block = classes.block(loop.index, inside)
        words = [popcount(kb, word) for word in (block.partial, block.turns, block.full)]
        # One instruction each within a warp, as long as they are reduced one by one.
        sums = [kb.reduce(lanes, 0, "sum") for lanes in (*words, classes.last_is_full(block))]
        loop.yield_(partial + sums[0], turns + sums[1], full + sums[2], sums[3])
    partial, turns, full, inside = loop.results
    # Each run turns twice; one that reaches the end of the last block has not turned back yet.
    return partial, (turns + inside) >> 1, full


def _store_header(kernel: DescriptorKernel, first: Value) -> None:
    """The words that are known beforehand, and zeros, also behind the records; the kernel `fill` writes the rest."""
    kb, arg = kernel.kb, kernel.kb.arg
    words: list[Value | int] = [MAGIC, VERSION, arg("batch"), arg("heads"), arg("queries"), arg("keys")]
    words += [kernel.mask.rows, KEYS, kernel.query_tiles, kernel.key_tiles, arg("pair_capacity")]
    words.append(arg("pattern_capacity"))
    known = {**dict(enumerate(words)), SHARED_WORD: int(kernel.mask.shared)}
    known |= dict(enumerate(kernel.patch_words(), PATCHES_WORD))
    with kb.if_else(first) as branch, branch.then():
        kernel.store_lanes(kernel.descriptor, known, HEADER_WORDS)
        end = kernel.record(arg("batch") * kernel.heads * kernel.query_tiles)
        lane = kb.arange(0, ALIGNMENT)
        unused = arg("order") - arg("tiles") - arg("batch") * kernel.heads * kernel.query_tiles * TILE_WORDS
        kb.store(end + lane, 0, mask=lane < unused)
