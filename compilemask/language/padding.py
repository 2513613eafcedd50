"""Padding: the keys behind each sequence's length are not there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from xdsl.ir import SSAValue

from compilemask.dialects import mask as dialect
from compilemask.language.builder import Builder
from compilemask.language.extent import Extent
from compilemask.language.mask import Mask
from compilemask.language.values import Value, scalar

if TYPE_CHECKING:
    from compilemask.language.values import Scalar


@dataclass(frozen=True, eq=False, repr=False)
class _Padding(Mask):
    lengths: Value
    LABEL: ClassVar[str] = "padding"

    def extents(self) -> tuple[Extent, ...]:
        return (Extent("padding: the greatest length", (self.lengths,), lambda lengths: lengths, keys_only=True),)

    def emit(self, builder: Builder) -> SSAValue:
        length = builder.scalar("lengths", self.lengths)
        return builder.add(dialect.ColsOp(builder.constant(0), length), "present")


def padding(lengths: Scalar) -> Mask:
    """Every query sees the first `lengths` keys: trailing padding is invisible. Rows of padding see the same keys.

    Args:
        lengths: keys without padding, at least 0; an int or int32/int64 data of shape [], [B] or [B, H].

    Raises:
        MaskError: a length is negative or no integer; where it is used, if one (in host memory) is greater than the
            number of keys.
    """
    return _Padding(scalar("padding: lengths", lengths, 0))


__all__ = ["padding"]
