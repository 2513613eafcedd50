"""Packed documents: several sequences behind one another, each seeing only itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from xdsl.ir import SSAValue

from compilemask.dialects import mask as dialect
from compilemask.language.builder import Builder
from compilemask.language.extent import Extent, last_offset
from compilemask.language.mask import Mask
from compilemask.language.values import Value
from compilemask.language.values import offsets as checked_offsets

if TYPE_CHECKING:
    from compilemask.language.values import Table


@dataclass(frozen=True, eq=False, repr=False)
class _Document(Mask):
    offsets: Value
    LABEL: ClassVar[str] = "document"

    def extents(self) -> tuple[Extent, ...]:
        return (Extent("document: the last offset", (self.offsets,), last_offset),)

    def emit(self, builder: Builder) -> SSAValue:
        offsets = builder.table("offsets", self.offsets)
        documents = builder.add(dialect.SegmentsOp(offsets), "documents")
        return builder.add(dialect.SameOp(documents), "own")


def document(offsets: Table) -> Mask:
    """Each query sees the keys of its own document, in both directions; `causal() & document(offsets)` looks back only.

    Document d holds the positions offsets[d] <= p < offsets[d + 1] (the `cu_seqlens` of FlashAttention). Documents
    may be empty; positions outside all documents see nothing and are seen by nothing.

    Args:
        offsets: ascending int32/int64 data of shape [n + 1], [B, n + 1] or [B, H, n + 1] for n documents.

    Raises:
        MaskError: wrong type or rank, fewer than 2 entries, or (in host memory) negative or not ascending; where it
            is used, if the last offset (in host memory) is greater than the numbers of queries and of keys.
    """
    return _Document(checked_offsets("document: offsets", offsets))


__all__ = ["document"]
