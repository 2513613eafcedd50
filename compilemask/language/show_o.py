"""Show-o: text is causal, an image sees everything, and padding stands before both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from compilemask.language.extent import Extent
from compilemask.language.mask import Mask
from compilemask.language.predicate import Condition, Integer
from compilemask.language.traced import KEYS, Pointwise, chosen
from compilemask.language.values import Value, at_most, scalar

if TYPE_CHECKING:
    from compilemask.language.values import Scalar


@dataclass(frozen=True, eq=False, repr=False)
class _ShowO(Pointwise):
    begin: Value
    end: Value
    padding: Value
    LABEL: ClassVar[str] = "show_o"

    def extents(self) -> tuple[Extent, ...]:
        return (Extent("show_o: the end of the image", (self.end,), lambda end: end),)

    def visible(self, q: Integer, kv: Integer, begin: Integer, end: Integer, padding: Integer) -> Condition:
        return (kv >= padding) & (kv < chosen((begin <= q) & (q < end), KEYS, q + 1))


def show_o(begin: Scalar, end: Scalar, padding: Scalar = 0) -> Mask:
    """kv >= padding and (kv <= q or begin <= q < end): text rows are causal, image rows see everything but padding. One
    interval per row.

    Source: Show-o (Xie et al. 2024, arXiv:2408.12528), whose sequences are padded on the left. No row sees padding
    here; the rows of padding themselves are not used.

    Args:
        begin: first position of the image, at least 0; an int or int32/int64 data of shape [], [B] or [B, H].
        end: position behind the image, at least `begin`.
        padding: tokens of padding at the begin of the sequence, at least 0.

    Raises:
        MaskError: a number is negative or no integer, or (in host memory) begin > end; where it is used, if the image
            (in host memory) ends behind the last query and the last key.
    """
    image = scalar("show_o: begin", begin, 0), scalar("show_o: end", end, 0)
    at_most("show_o: begin", image[0], "end", image[1])
    return _ShowO(*image, scalar("show_o: padding", padding, 0))


__all__ = ["show_o"]
