"""Fixed blocks: the sequence is cut into blocks that see themselves only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compilemask.language.mask import Mask
from compilemask.language.predicate import Condition, Integer
from compilemask.language.traced import Pointwise
from compilemask.language.values import integer


@dataclass(frozen=True, eq=False, repr=False)
class _Blocks(Pointwise):
    size: int
    LABEL: ClassVar[str] = "blocks"

    def visible(self, q: Integer, kv: Integer) -> Condition:
        return q // self.size == kv // self.size


def blocks(size: int) -> Mask:
    """q // size == kv // size: each query sees the whole block of keys that it stands in. One interval per row.

    Source: the blockwise attention of Qiu et al. 2019, arXiv:1911.02972, without permutation.

    Args:
        size: tokens of a block, at least 1; an int, part of the mask's structure.

    Raises:
        MaskError: the size is no int or less than 1.
    """
    return _Blocks(integer("blocks: size", size, 1))


__all__ = ["blocks"]
