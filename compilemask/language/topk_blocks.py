"""Blocks of keys chosen for each block of queries, as the top k of some score."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, ClassVar

from xdsl.ir import SSAValue

from compilemask.language.builder import Builder
from compilemask.language.mask import Mask
from compilemask.language.predicate import Integer, SymbolicTable
from compilemask.language.traced import KEYS, Line, bound, chosen, emit_lines
from compilemask.language.values import Value, integer, rows_of_table, scalar

if TYPE_CHECKING:
    from compilemask.language.values import Array


@dataclass(frozen=True, eq=False, repr=False)
class _TopkBlocks(Mask):
    indices: Value
    count: int
    rows: Value
    block: int
    LABEL: ClassVar[str] = "topk_blocks"

    def emit(self, builder: Builder) -> SSAValue:
        raster = builder.constant(0), builder.constant(self.block)
        return emit_lines(builder, raster, self._line, bound(builder, self))

    def _line(self, q: Integer, line: Integer, indices: SymbolicTable, rows: Integer) -> Line:
        """A block of keys, which is seen as a whole or not at all."""
        own, begin = q // self.block, line * self.block
        drawn = [line == indices[own * self.count + number] for number in range(self.count)]
        seen = reduce(lambda a, b: a | b, drawn)
        keys = (KEYS + (self.block - 1)) // self.block
        return Line(begin, chosen(seen, begin + self.block, begin), 0, chosen(own < rows, keys, 0))


def topk_blocks(indices: Array, block: int) -> Mask:
    """kv // block is in indices[q // block]: at most k intervals per row.

    Source: the video sparse attention of FastVideo (VSA, arXiv:2505.13389), whose blocks score best in a coarse look.

    Args:
        indices: block numbers, int32/int64 data of shape [n, k], [B, n, k] or, as heads choose for themselves,
            [B, H, n, k] for n blocks of queries, in any order; numbers of no block, such as -1, choose none. k is part
            of the mask's structure. Queries behind the last block see nothing.
        block: tokens of a block, at least 1; an int, part of the mask's structure.

    Raises:
        MaskError: wrong type or rank, no entries, or a wrong block size.
    """
    chosen_blocks, rows, count = rows_of_table("topk_blocks: indices", indices, "n, k")
    size = integer("topk_blocks: block", block, 1)
    return _TopkBlocks(chosen_blocks, count, scalar("topk_blocks: blocks of queries", rows), size)


__all__ = ["topk_blocks"]
