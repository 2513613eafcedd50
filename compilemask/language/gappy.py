"""Keys of one sequence per batch in a larger buffer, with gaps between them: a padded cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from compilemask.language.extent import Extent
from compilemask.language.mask import Mask
from compilemask.language.predicate import Condition, Integer
from compilemask.language.traced import Pointwise
from compilemask.language.values import Value, scalar

if TYPE_CHECKING:
    from compilemask.language.values import Scalar


@dataclass(frozen=True, eq=False, repr=False)
class _Gappy(Pointwise):
    starts: Value
    lengths: Value
    LABEL: ClassVar[str] = "gappy"

    def extents(self) -> tuple[Extent, ...]:
        values = self.starts, self.lengths
        return (Extent("gappy: the end of the keys", values, lambda start, length: start + length, keys_only=True),)

    def visible(self, q: Integer, kv: Integer, starts: Integer, lengths: Integer) -> Condition:
        return (kv >= starts) & (kv < starts + lengths)


def gappy(starts: Scalar, lengths: Scalar) -> Mask:
    """starts <= kv < starts + lengths: every query sees the keys of its batch, which lie somewhere in the buffer. One
    interval per row.

    Source: `BlockDiagonalGappyKeysMask` and `PaddedKeysMask` of xFormers.

    Args:
        starts: first key, at least 0; an int or int32/int64 data of shape [], [B] or [B, H].
        lengths: number of keys, at least 0.

    Raises:
        MaskError: a number is negative or no integer; where it is used, if the keys (in host memory) end behind the
            last one.
    """
    return _Gappy(scalar("gappy: starts", starts, 0), scalar("gappy: lengths", lengths, 0))


__all__ = ["gappy"]
