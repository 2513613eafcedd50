"""Chunked local attention, as in Llama 4: causal inside chunks of the sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compilemask.language.mask import Mask
from compilemask.language.predicate import Condition, Integer
from compilemask.language.traced import Pointwise
from compilemask.language.values import integer


@dataclass(frozen=True, eq=False, repr=False)
class _Chunked(Pointwise):
    size: int
    LABEL: ClassVar[str] = "chunked"

    def visible(self, q: Integer, kv: Integer) -> Condition:
        return (q // self.size == kv // self.size) & (kv <= q)


def chunked(size: int) -> Mask:
    """q // size == kv // size and kv <= q: each query sees the keys of its chunk up to itself. One interval per row.

    Source: the chunked attention of Llama 4 (`chunked_overlay` of Hugging Face transformers), where size is 8192.

    Args:
        size: tokens of a chunk, at least 1; an int, part of the mask's structure.

    Raises:
        MaskError: the size is no int or less than 1.
    """
    return _Chunked(integer("chunked: size", size, 1))


__all__ = ["chunked"]
