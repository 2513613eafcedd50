"""Causal blockwise: demonstrations do not see each other, the last document sees them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from compilemask.language.extent import Extent, last_offset
from compilemask.language.mask import Mask
from compilemask.language.predicate import Condition, Integer, SymbolicTable
from compilemask.language.traced import Pointwise, chosen, last_at_most
from compilemask.language.values import LIMIT, Value
from compilemask.language.values import offsets as checked_offsets

if TYPE_CHECKING:
    from compilemask.language.values import Table


@dataclass(frozen=True, eq=False, repr=False)
class _CausalBlockwise(Pointwise):
    offsets: Value
    LABEL: ClassVar[str] = "causal_blockwise"

    def extents(self) -> tuple[Extent, ...]:
        return (Extent("causal_blockwise: the last offset", (self.offsets,), last_offset),)

    def visible(self, q: Integer, kv: Integer, offsets: SymbolicTable) -> Condition:
        number = last_at_most(offsets, q)
        last = offsets[LIMIT]
        first = chosen(offsets[number + 1] >= last, 0, offsets[number])
        return (number >= 0) & (q < last) & (first <= kv) & (kv <= q)


def causal_blockwise(offsets: Table) -> Mask:
    """kv <= q and (kv is of q's document, or q is of the last document). One interval per row.

    Documents are those of `document`; the last one is the last that is not empty.

    Source: the causal blockwise mask of FlashMask (arXiv:2410.01359), for in-context learning.

    Args:
        offsets: ascending int32/int64 data of shape [n + 1], [B, n + 1] or [B, H, n + 1] for n documents.

    Raises:
        MaskError: wrong type or rank, fewer than 2 entries, or (in host memory) negative or not ascending; where it
            is used, if the last offset (in host memory) is greater than the numbers of queries and of keys.
    """
    return _CausalBlockwise(checked_offsets("causal_blockwise: offsets", offsets))


__all__ = ["causal_blockwise"]
