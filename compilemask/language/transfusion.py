"""Transfusion: text is causal, the patches of each image see all of their image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from compilemask.errors import MaskError
from compilemask.language.extent import Extent, last_offset
from compilemask.language.mask import Mask
from compilemask.language.predicate import Condition, Integer, SymbolicTable
from compilemask.language.traced import Pointwise, chosen, larger, last_at_most
from compilemask.language.values import Value, ascends, table

if TYPE_CHECKING:
    from compilemask.language.values import Table


@dataclass(frozen=True, eq=False, repr=False)
class _Transfusion(Pointwise):
    begins: Value
    ends: Value
    LABEL: ClassVar[str] = "transfusion"
    ASCENDING: ClassVar[tuple[str, ...]] = ("ends",)

    def extents(self) -> tuple[Extent, ...]:
        return (Extent("transfusion: the end of the last image", (self.ends,), last_offset),)

    def visible(self, q: Integer, kv: Integer, begins: SymbolicTable, ends: SymbolicTable) -> Condition:
        image = last_at_most(begins, q)
        return kv < larger(q + 1, chosen(image >= 0, ends[image], 0))


def transfusion(begins: Table, ends: Table) -> Mask:
    """kv <= q, or for some image m: q >= begins[m] and kv < ends[m]. One interval per row.

    Image m holds the positions begins[m] <= p < ends[m]; everything else is text.

    Source: Transfusion (Zhou et al. 2024, arXiv:2408.11039).

    Args:
        begins: ascending int32/int64 data of shape [n], [B, n] or [B, H, n] for n images.
        ends: of the same shape; no image begins before the end of the one before it.

    Raises:
        MaskError: wrong type or rank, different shapes, or (in host memory) images that end before they begin or that
            overlap; where it is used, if the last image (in host memory) ends behind the last query and the last key.
    """
    first, last = table("transfusion: begins", begins, 0), table("transfusion: ends", ends, 0)
    assert not isinstance(first.data, int)
    assert not isinstance(last.data, int)
    if first.data.shape != last.data.shape:
        shapes = f"{list(first.data.shape)} and {list(last.data.shape)}"
        raise MaskError(f"transfusion: begins and ends must have one shape, got {shapes}")
    if first.data.device.type == last.data.device.type == "cpu":
        if (first.data > last.data).any():
            raise MaskError("transfusion: an image ends before it begins")
        if not ascends(first.data) or (last.data[..., :-1] > first.data[..., 1:]).any():
            raise MaskError("transfusion: images must ascend and not overlap")
    return _Transfusion(first, last)


__all__ = ["transfusion"]
