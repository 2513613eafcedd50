"""HSTU with arbitrary masks: a few intervals of keys for each row, given as data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, ClassVar

from compilemask.errors import MaskError
from compilemask.language.extent import Extent
from compilemask.language.mask import Mask
from compilemask.language.predicate import Condition, Integer, SymbolicTable
from compilemask.language.traced import Pointwise, larger
from compilemask.language.values import Value, ascends, rows_of_table, scalar

if TYPE_CHECKING:
    from compilemask.language.values import Array


@dataclass(frozen=True, eq=False, repr=False)
class _HstuArbitrary(Pointwise):
    bounds: Value
    rows: Value
    count: int
    LABEL: ClassVar[str] = "hstu_arbitrary"

    def extents(self) -> tuple[Extent, ...]:
        return (Extent("hstu_arbitrary: the number of rows", (self.rows,), lambda rows: rows),)

    def visible(self, q: Integer, kv: Integer, bounds: SymbolicTable, rows: Integer) -> Condition:
        """Each interval is cut off at the end of the one before: that they are sorted is then plain to see."""
        at = [bounds[q + rows * number] for number in range(self.count)]
        end = larger(at[0], 0)
        parts = [kv < end]
        for lo, hi in zip(at[1::2], at[2::2], strict=True):
            begin = larger(lo, end)
            parts.append((kv >= begin) & (kv < hi))
            end = larger(begin, hi)
        return (q < rows) & reduce(lambda a, b: a | b, parts)


def hstu_arbitrary(bounds: Array) -> Mask:
    """Row q sees [0, f0), [f1, f2), [f3, f4), ... with f = bounds[:, q]: (n + 1) / 2 intervals, exact up to 8 of them.

    Source: the arbitrary mask of NVIDIA's HSTU attention (recsys-examples), whose functions these bounds are.

    Args:
        bounds: int32/int64 data of shape [n, S], [B, n, S] or [B, H, n, S] with n odd, for S rows; they ascend along n.
            n is part of the mask's structure. Rows behind the last one see nothing.

    Raises:
        MaskError: wrong type or rank, an even n, or (in host memory) bounds of a row that do not ascend; where it is
            used, if there are more rows than queries and than keys.
    """
    checked, count, rows = rows_of_table("hstu_arbitrary: bounds", bounds, "n, S")
    if count % 2 == 0:
        raise MaskError(f"hstu_arbitrary: bounds must be an odd number for each row, got {count}")
    assert not isinstance(checked.data, int)
    if checked.data.device.type == "cpu":
        by_row = checked.data.reshape(*checked.data.shape[:2], count, rows).transpose(-1, -2)
        if not ascends(by_row):
            raise MaskError("hstu_arbitrary: the bounds of each row must ascend")
    return _HstuArbitrary(checked, scalar("hstu_arbitrary: rows", rows), count)


__all__ = ["hstu_arbitrary"]
