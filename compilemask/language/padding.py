"""Padding: the keys behind, or before, each sequence are not there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from xdsl.dialects.arith import SubiOp
from xdsl.ir import SSAValue

from compilemask.dialects import mask as dialect
from compilemask.errors import MaskError
from compilemask.language.builder import Builder
from compilemask.language.extent import Extent
from compilemask.language.mask import Mask
from compilemask.language.values import Value, scalar

if TYPE_CHECKING:
    from compilemask.language.values import Scalar


Side = Literal["trailing", "leading"]


@dataclass(frozen=True, eq=False, repr=False)
class _Padding(Mask):
    lengths: Value
    side: Side
    LABEL: ClassVar[str] = "padding"

    def extents(self) -> tuple[Extent, ...]:
        return (Extent("padding: the greatest length", (self.lengths,), lambda lengths: lengths, keys_only=True),)

    def emit(self, builder: Builder) -> SSAValue:
        length = builder.scalar("lengths", self.lengths)
        if self.side == "trailing":
            return builder.add(dialect.ColsOp(builder.constant(0), length), "present")
        keys = builder.add(dialect.KeysOp(), "keys")
        return builder.add(dialect.ColsOp(builder.add(SubiOp(keys, length), "first"), keys), "present")


def padding(lengths: Scalar, side: Side = "trailing") -> Mask:
    """Every query sees the keys that are no padding: kv < lengths, or kv >= keys - lengths if padding is in front. One
    interval per row. Rows of padding see the same keys.

    Args:
        lengths: keys without padding, at least 0; an int or int32/int64 data of shape [], [B] or [B, H].
        side: where padding is, "trailing" or "leading".

    Raises:
        MaskError: a length is negative or no integer, or another side; where it is used, if a length (in host memory)
            is greater than the number of keys.
    """
    if not isinstance(side, str) or side not in get_args(Side):
        raise MaskError(f"padding: side must be 'trailing' or 'leading', got {side!r}")
    return _Padding(scalar("padding: lengths", lengths, 0), side)


__all__ = ["padding"]
