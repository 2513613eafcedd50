"""Random eviction: each key is forgotten at a time of its own, as caches drop them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from compilemask.language.extent import Extent
from compilemask.language.mask import Mask
from compilemask.language.predicate import Condition, Integer, SymbolicTable
from compilemask.language.traced import Pointwise
from compilemask.language.values import Value, table

if TYPE_CHECKING:
    from compilemask.language.values import Table


@dataclass(frozen=True, eq=False, repr=False)
class _RandomEviction(Pointwise):
    evict: Value
    LABEL: ClassVar[str] = "random_eviction"

    def extents(self) -> tuple[Extent, ...]:
        count = Extent("random_eviction: the number of times", (self.evict,), lambda evict: evict.shape[-1])
        return (count,)

    def visible(self, q: Integer, kv: Integer, evict: SymbolicTable) -> Condition:
        return (kv <= q) & (q < evict[kv])


def random_eviction(evict: Table) -> Mask:
    """kv <= q and q < evict[kv]: key kv is seen from itself on, by queries before evict[kv].

    A row may see any number of intervals, so that the predicate decides below the diagonal (a bounded form). Keys
    behind the last time have the last one.

    Source: the random eviction mask of FlashMask (arXiv:2410.01359).

    Args:
        evict: int32/int64 data of shape [n], [B, n] or, as each head forgets by itself, [B, H, n] for n keys.

    Raises:
        MaskError: wrong type or rank; where it is used, if there are more times (in host memory) than queries and than
            keys.
    """
    return _RandomEviction(table("random_eviction: evict", evict))


__all__ = ["random_eviction"]
