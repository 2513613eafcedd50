"""The kernel `patterns`: the bits of partial tiles and the columns that any of each 64 rows of a pattern sees.

Each program takes every n-th pattern, n being the grid's size (n, 1, 1); behind `fill`.
"""

from __future__ import annotations

from compilemask.lowering.descriptor_layout import COLUMN_ROWS, KEYS, PATTERN_ROW_WORDS, ceil_div
from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_tt.descriptor_kernel import DescriptorKernel, MaskFunctions, QueryTile
from compilemask.lowering.tiling_to_tt.row_sets import MaskRows
from compilemask.lowering.tiling_to_tt.shared_patterns import SharedPatterns


def patterns_kernel(mask: MaskFunctions) -> DescriptorKernel:
    """The kernel for one mask."""
    kernel = DescriptorKernel("patterns", mask)
    kb = kernel.kb
    count = kb.arg("pattern_capacity") if mask.shared else kb.load(kernel.descriptor + 13)
    with kb.for_loop(kb.program_id(0), count, kb.num_programs(0)) as loop:
        words = SharedPatterns(kernel).words(loop.index) if mask.shared else _stored(kernel, loop.index)
        _store(kernel, loop.index, words)
    return kernel


def _stored(kernel: DescriptorKernel, pattern: Value) -> Value:
    """The bits of a stored pattern, 0 in rows that do not exist: [lanes, 4]."""
    kb = kernel.kb
    source = kernel.section("sources") + 2 * pattern
    t, key_tile = kb.load(source), kb.load(source + 1)
    g = kb.trunc_div(t, kernel.query_tiles)
    tile = QueryTile.of(kernel, t - g * kernel.query_tiles, g)
    scope = kernel.scope(g, tile.q, kernel.queries, kernel.keys)
    words = MaskRows(scope, kernel.mask.intervals, kernel.keys).words(key_tile * KEYS)
    return kb.where(tile.exists[:, None], words, 0)


def _store(kernel: DescriptorKernel, pattern: Value, words: Value) -> None:
    kb, rows, lanes = kernel.kb, kernel.mask.rows, kernel.mask.lanes
    word = kb.arange(0, PATTERN_ROW_WORDS)
    first = kernel.section("patterns") + pattern * (rows * PATTERN_ROW_WORDS)
    address = first + (kb.arange(0, lanes)[:, None] * PATTERN_ROW_WORDS + word[None, :])
    exists = None
    if lanes > rows:
        exists = (kb.arange(0, lanes) < rows)[:, None]
        words = kb.where(exists, words, 0)
    kb.store(address, words, mask=exists)
    _store_columns(kernel, pattern, words)


def _store_columns(kernel: DescriptorKernel, pattern: Value, words: Value) -> None:
    kb, lanes, count = kernel.kb, kernel.mask.lanes, ceil_div(kernel.mask.rows, COLUMN_ROWS)
    groups = max(lanes // COLUMN_ROWS, 1)
    seen = kb.reduce(kb.reshape(words, (groups, lanes // groups, PATTERN_ROW_WORDS)), 1, "or")
    group, word = kb.arange(0, groups)[:, None], kb.arange(0, PATTERN_ROW_WORDS)[None, :]
    address = kernel.section("columns") + ((pattern * count + group) * PATTERN_ROW_WORDS + word)
    kb.store(address, seen, mask=group < count if groups > count else None)
