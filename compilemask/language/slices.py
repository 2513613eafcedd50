"""Slices of the (query, key) plane, as in MagiAttention: rectangles with a triangle of each cut off or not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, ClassVar

from compilemask.errors import MaskError
from compilemask.language.extent import Extent
from compilemask.language.mask import Mask
from compilemask.language.predicate import Condition, Integer, SymbolicTable
from compilemask.language.traced import Pointwise, chosen, larger, smaller
from compilemask.language.values import Value, rows_of_table, table

if TYPE_CHECKING:
    import torch

    from compilemask.language.values import Array, Table

FAR = 2**29


@dataclass(frozen=True, eq=False, repr=False)
class _Slices(Pointwise):
    queries: Value
    keys: Value
    kinds: Value
    count: int
    LABEL: ClassVar[str] = "slices"

    def extents(self) -> tuple[Extent, ...]:
        return (
            Extent("slices: the last end of the queries", (self.queries,), _last_end),
            Extent("slices: the last end of the keys", (self.keys,), _last_end, keys_only=True),
        )

    def visible(
        self, q: Integer, kv: Integer, queries: SymbolicTable, keys: SymbolicTable, kinds: SymbolicTable
    ) -> Condition:
        parts = [self._slice(number, q, kv, queries, keys, kinds) for number in range(self.count)]
        return reduce(lambda a, b: a | b, parts)

    def _slice(
        self, number: int, q: Integer, kv: Integer, queries: SymbolicTable, keys: SymbolicTable, kinds: SymbolicTable
    ) -> Condition:
        first, end = queries[2 * number], queries[2 * number + 1]
        begin, stop = keys[2 * number], keys[2 * number + 1]
        causal, inverse = (kinds[number] & 1) == 1, (kinds[number] & 2) == 2
        lo = larger(begin, begin + q - first - chosen(inverse, 0, FAR))
        hi = smaller(stop, stop + q - end + 1 + chosen(causal, 0, FAR))
        return (first <= q) & (q < end) & (lo <= kv) & (kv < hi)


def _last_end(ranges: torch.Tensor) -> torch.Tensor:
    """Where the last of ranges [B, H, 2 * n] ends."""
    return ranges[..., 1::2]


def slices(queries: Array, keys: Array, kinds: Table) -> Mask:
    """The union of rectangles queries[s][0] <= q < queries[s][1], keys[s][0] <= kv < keys[s][1], each of a kind.

    - 0, full: all of the rectangle.
    - 1, causal: kv - keys[s][1] <= q - queries[s][1], the diagonal ends in the bottom right corner.
    - 2, inverse causal: kv - keys[s][0] >= q - queries[s][0], it starts in the top left corner.
    - 3, both: a band between the two.

    An interval per slice and row. Few slices are exact; more than about three that may overlap are decided by the
    predicate (a bounded form).

    Source: `q_ranges`, `k_ranges` and `attn_type_map` of MagiAttention.

    Args:
        queries, keys: int32/int64 data of shape [n, 2], [B, n, 2] or [B, H, n, 2] for n slices: begin and end. n is
            part of the mask's structure.
        kinds: int32/int64 data of shape [n], [B, n] or [B, H, n], from 0 to 3.

    Raises:
        MaskError: wrong type or rank, different numbers of slices, a negative position, or (in host memory) a kind
            above 3; where it is used, if a slice (in host memory) ends behind the last query or key.
    """
    rows, count = _ranges("queries", queries)
    cols, others = _ranges("keys", keys)
    codes = table("slices: kinds", kinds, 0)
    assert not isinstance(codes.data, int)
    if not count == others == codes.data.shape[-1]:
        found = f"{count}, {others} and {codes.data.shape[-1]}"
        raise MaskError(f"slices: queries, keys and kinds must be of equally many slices, got {found}")
    if (known := codes.least_and_greatest()) is not None and known[1] > 3:
        raise MaskError(f"slices: kinds are 0 full, 1 causal, 2 inverse causal and 3 both, got {known[1]}")
    return _Slices(rows, cols, codes, count)


def _ranges(name: str, value: Array) -> tuple[Value, int]:
    checked, count, width = rows_of_table(f"slices: {name}", value, "n, 2", minimum=0)
    if width != 2:
        raise MaskError(f"slices: {name} must have a begin and an end for each slice, got {width} numbers")
    return checked, count


__all__ = ["slices"]
