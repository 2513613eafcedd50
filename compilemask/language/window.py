"""Sliding windows, the local attention of Longformer (Beltagy et al. 2020, arXiv:2004.05150) and Mistral."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from xdsl.dialects.arith import AddiOp, SubiOp
from xdsl.ir import SSAValue

from compilemask.dialects import mask as dialect
from compilemask.errors import MaskError
from compilemask.language.builder import Builder
from compilemask.language.causal import Align, checked_align, diagonal
from compilemask.language.mask import Mask
from compilemask.language.values import Value, scalar

if TYPE_CHECKING:
    from compilemask.language.values import Scalar


@dataclass(frozen=True, eq=False, repr=False)
class _Window(Mask):
    left: Value | None
    right: Value | None
    align: Align
    LABEL: ClassVar[str] = "window"

    def emit(self, builder: Builder) -> SSAValue:
        left = None if self.left is None else builder.scalar("left", self.left)
        right = None if self.right is None else builder.scalar("right", self.right)
        center = diagonal(builder, self.align)
        lower = None if left is None else builder.add(SubiOp(center, left), "lower")
        if right is not None and self.align == "bottom_right":
            right = builder.add(AddiOp(center, right), "upper")
        return builder.add(dialect.BandOp(lower, right), "near")


def window(left: Scalar | None, right: Scalar | None = 0, *, align: Align = "top_left") -> Mask:
    """Each query sees `left` keys before its own position, and `right` after it: -left <= kv - q <= right.

    So `window(W)` shows W + 1 keys. This is the convention of FlashAttention's (left, right), with None where
    FlashAttention writes -1. attention-gym's causal sliding window q - kv <= W is `window(W)`; the convention
    0 <= q - kv < W of Hugging Face and torchtitan, where W counts the query's own key, is `window(W - 1)`.

    Args:
        left: keys before the query, at least 0, or None for all; an int or int32/int64 data of shape [], [B] or [B, H].
        right: keys after the query, at least 0, or None for all.
        align: for unequal numbers of queries and keys, which of their ends are the same token (see `causal`).

    Raises:
        MaskError: both sides are unbounded, a side is negative or no integer, or another `align`.
    """
    if left is None and right is None:
        raise MaskError("window needs a bound on one side; full() has none")
    for side, reach in (("left", left), ("right", right)):
        if isinstance(reach, int) and reach == -1:
            raise MaskError(f"window: {side} must be at least 0, got -1; None means unbounded")
    return _Window(
        None if left is None else scalar("window: left", left, 0),
        None if right is None else scalar("window: right", right, 0),
        checked_align("window", align),
    )


__all__ = ["window"]
