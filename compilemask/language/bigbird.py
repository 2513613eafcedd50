"""BigBird: blocks that see their neighbours, the first and last blocks, and some random ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, ClassVar

from xdsl.ir import SSAValue

from compilemask.language.builder import Builder
from compilemask.language.mask import Mask
from compilemask.language.predicate import Integer, SymbolicTable
from compilemask.language.traced import KEYS, QUERIES, Line, bound, chosen, emit_lines
from compilemask.language.values import LIMIT, Value, integer, rows_of_table

if TYPE_CHECKING:
    from compilemask.language.values import Array


@dataclass(frozen=True, eq=False, repr=False)
class _BigBird(Mask):
    block: int
    random: Value
    count: int
    reach: int
    edge: int
    LABEL: ClassVar[str] = "bigbird"

    def emit(self, builder: Builder) -> SSAValue:
        raster = builder.constant(0), builder.constant(self.block)
        return emit_lines(builder, raster, self._line, bound(builder, self))

    def _line(self, q: Integer, line: Integer, random: SymbolicTable) -> Line:
        """A block of keys, which is seen as a whole or not at all."""
        own, begin = q // self.block, line * self.block
        queries, keys = ((length + (self.block - 1)) // self.block for length in (QUERIES, KEYS))
        near = (line >= own - self.reach) & (line <= own + self.reach)
        edge = (line < self.edge) | (line >= keys - self.edge) | (own < self.edge) | (own >= queries - self.edge)
        drawn = [line == random[own * self.count + number] for number in range(self.count)]
        seen = reduce(lambda a, b: a | b, drawn, near | edge)
        return Line(begin, chosen(seen, begin + self.block, begin), 0, keys)


def bigbird(block: int, random: Array, reach: int = 1, edge: int = 1) -> Mask:
    """With i = q // block and j = kv // block: |i - j| <= reach, or i or j is one of the first or last `edge` blocks,
    or j is in random[i]. At most r + 3 intervals per row (with the default reach and edge).

    Source: BigBird (Zaheer et al. 2020, arXiv:2007.14062), whose blocks have 64 tokens, with 3 random blocks each.

    Args:
        block: tokens of a block, at least 1; an int, part of the mask's structure, as are reach and edge.
        random: block numbers, int32/int64 data of shape [n, r], [B, n, r] or [B, H, n, r] for n blocks of queries;
            numbers of no block, such as -1, draw none. r is part of the mask's structure.
        reach: blocks on each side, at least 0 and at most 2^30 tokens.
        edge: blocks at each end that see and are seen by everything, at least 0 and at most 2^30 tokens.

    Raises:
        MaskError: a number is out of its range or no int, or wrong block numbers.
    """
    drawn, _, count = rows_of_table("bigbird: random", random, "n, r")
    size = integer("bigbird: block", block, 1)
    most = LIMIT // size
    return _BigBird(
        size, drawn, count, integer("bigbird: reach", reach, 0, most), integer("bigbird: edge", edge, 0, most)
    )


__all__ = ["bigbird"]
