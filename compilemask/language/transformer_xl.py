"""Chunks with a memory of one chunk, as in Transformer-XL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compilemask.language.mask import Mask
from compilemask.language.predicate import Condition, Integer
from compilemask.language.traced import Pointwise
from compilemask.language.values import LIMIT, integer


@dataclass(frozen=True, eq=False, repr=False)
class _TransformerXl(Pointwise):
    size: int
    LABEL: ClassVar[str] = "transformer_xl"

    def visible(self, q: Integer, kv: Integer) -> Condition:
        return (kv >= (q // self.size - 1) * self.size) & (kv <= q)


def transformer_xl(size: int) -> Mask:
    """q // size - 1 <= kv // size and kv <= q: the query's own chunk up to itself, and the chunk before it. One
    interval per row.

    Source: Transformer-XL (Dai et al. 2019, arXiv:1901.02860), whose segments attend to the cached one before.

    Args:
        size: tokens of a chunk, from 1 to 2^29; an int, part of the mask's structure.

    Raises:
        MaskError: the size is no int or out of its range.
    """
    return _TransformerXl(integer("transformer_xl: size", size, 1, LIMIT // 2))


__all__ = ["transformer_xl"]
