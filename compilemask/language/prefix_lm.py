"""Prefix language models: the prefix sees itself in both directions, what follows is causal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from compilemask.language.extent import Extent
from compilemask.language.mask import Mask
from compilemask.language.predicate import Condition, Integer
from compilemask.language.traced import Pointwise, larger
from compilemask.language.values import Value, scalar

if TYPE_CHECKING:
    from compilemask.language.values import Scalar


@dataclass(frozen=True, eq=False, repr=False)
class _PrefixLm(Pointwise):
    prefix: Value
    LABEL: ClassVar[str] = "prefix_lm"

    def extents(self) -> tuple[Extent, ...]:
        return (Extent("prefix_lm: the prefix", (self.prefix,), lambda prefix: prefix),)

    def visible(self, q: Integer, kv: Integer, prefix: Integer) -> Condition:
        return kv < larger(q + 1, prefix)


def prefix_lm(prefix: Scalar) -> Mask:
    """kv < prefix or kv <= q. One interval per row.

    Source: T5 (Raffel et al. 2019, arXiv:1910.10683).

    Args:
        prefix: tokens of the prefix, at least 0; an int or int32/int64 data of shape [], [B] or [B, H].

    Raises:
        MaskError: a length is negative or no integer; where it is used, if one (in host memory) is greater than the
            numbers of queries and of keys.
    """
    return _PrefixLm(scalar("prefix_lm: prefix", prefix, 0))


__all__ = ["prefix_lm"]
