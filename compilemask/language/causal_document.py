"""Packed documents that are causal: the mask of packed pre-training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compilemask.language.causal import causal
from compilemask.language.document import document
from compilemask.language.mask import Mask

if TYPE_CHECKING:
    from compilemask.language.values import Table


def causal_document(offsets: Table) -> Mask:
    """offsets[d] <= kv <= q, d being q's document: `causal() & document(offsets)`. One interval per row.

    Source: the variable-length interface of FlashAttention (`cu_seqlens`), document masking of attention-gym.

    Args:
        offsets: ascending int32/int64 data of shape [n + 1], [B, n + 1] or [B, H, n + 1] for n documents.

    Raises:
        MaskError: as `document`.
    """
    return (causal() & document(offsets)).named("causal_document")


__all__ = ["causal_document"]
