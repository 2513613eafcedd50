"""Longformer: a window in both directions, and tokens that see and are seen by everything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from compilemask.language.extent import Extent
from compilemask.language.mask import Mask
from compilemask.language.predicate import Condition, Integer, SymbolicTable
from compilemask.language.traced import KEYS, Pointwise, chosen
from compilemask.language.values import Value, scalar, table

if TYPE_CHECKING:
    from compilemask.language.values import Scalar, Table


@dataclass(frozen=True, eq=False, repr=False)
class _Longformer(Pointwise):
    reach: Value
    leading: Value
    LABEL: ClassVar[str] = "longformer"

    def visible(self, q: Integer, kv: Integer, reach: Integer, leading: Integer) -> Condition:
        near = (kv >= q - reach) & (kv <= q + reach)
        return near | (kv < chosen(q < leading, KEYS, leading))


@dataclass(frozen=True, eq=False, repr=False)
class _Scattered(_Longformer):
    flags: Value

    def extents(self) -> tuple[Extent, ...]:
        return (Extent("longformer: the number of flags", (self.flags,), lambda flags: flags.shape[-1]),)

    def visible(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, q: Integer, kv: Integer, reach: Integer, leading: Integer, flags: SymbolicTable
    ) -> Condition:
        return super().visible(q, kv, reach, leading) | (flags[q] != 0) | (flags[kv] != 0)


def longformer(reach: Scalar, leading: Scalar = 0, flags: Table | None = None) -> Mask:
    """|q - kv| <= reach, or q or kv is a global token: one of the first `leading` tokens, or one whose flag is not 0.

    Two intervals per row. With flags a row sees up to one interval more for each global token; then the predicate
    decides about the pairs outside the window and the leading tokens (a bounded form).

    Source: Beltagy et al. 2020, arXiv:2004.05150.

    Args:
        reach: keys on each side, at least 0; an int or int32/int64 data of shape [], [B] or [B, H].
        leading: number of leading global tokens, at least 0.
        flags: int32/int64 data of shape [n], [B, n] or [B, H, n] for n positions, or None. Positions behind them have
            the last flag.

    Raises:
        MaskError: a number is negative or no integer, or wrong flags; where it is used, if there are more flags (in
            host memory) than queries and than keys.
    """
    numbers = scalar("longformer: reach", reach, 0), scalar("longformer: leading", leading, 0)
    return _Longformer(*numbers) if flags is None else _Scattered(*numbers, table("longformer: flags", flags))


__all__ = ["longformer"]
