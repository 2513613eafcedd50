"""The plain regions: everything, strips of rows or columns, bands along the diagonal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from xdsl.ir import SSAValue

from compilemask.dialects import mask as dialect
from compilemask.errors import MaskError
from compilemask.language.builder import Builder
from compilemask.language.mask import Mask
from compilemask.language.values import Value, scalar

if TYPE_CHECKING:
    from compilemask.language.values import Scalar


@dataclass(frozen=True, eq=False, repr=False)
class _Full(Mask):
    LABEL: ClassVar[str] = "full"

    def emit(self, builder: Builder) -> SSAValue:
        return builder.add(dialect.AllOp(), "visible")


def full() -> Mask:
    """Every query sees every key."""
    return _Full()


@dataclass(frozen=True, eq=False, repr=False)
class _Strip(Mask):
    begin: Value
    end: Value
    OPERATION: ClassVar[type[dialect.RowsOp | dialect.ColsOp]]

    @property
    def name(self) -> str:
        return self.OPERATION.name.removeprefix("mask.")

    def emit(self, builder: Builder) -> SSAValue:
        begin, end = builder.scalar("begin", self.begin), builder.scalar("end", self.end)
        return builder.add(self.OPERATION(begin, end), self.name)


class _Rows(_Strip):
    OPERATION: ClassVar = dialect.RowsOp


class _Cols(_Strip):
    OPERATION: ClassVar = dialect.ColsOp


def rows(begin: Scalar, end: Scalar) -> Mask:
    """Queries begin <= q < end see every key, all others none.

    Args:
        begin: first row, at least 0; an int or int32/int64 data of shape [], [B] or [B, H].
        end: behind the last row; nothing is visible if it is not greater than `begin`.

    Raises:
        MaskError: a bound is negative or no integer.
    """
    return _Rows(scalar("rows: begin", begin, 0), scalar("rows: end", end, 0))


def cols(begin: Scalar, end: Scalar) -> Mask:
    """Every query sees the keys begin <= kv < end.

    Args:
        begin: first key, at least 0; an int or int32/int64 data of shape [], [B] or [B, H].
        end: behind the last key; nothing is visible if it is not greater than `begin`.

    Raises:
        MaskError: a bound is negative or no integer.
    """
    return _Cols(scalar("cols: begin", begin, 0), scalar("cols: end", end, 0))


@dataclass(frozen=True, eq=False, repr=False)
class _Band(Mask):
    lower: Value | None
    upper: Value | None
    LABEL: ClassVar[str] = "band"

    def emit(self, builder: Builder) -> SSAValue:
        lower = None if self.lower is None else builder.scalar("lower", self.lower)
        upper = None if self.upper is None else builder.scalar("upper", self.upper)
        return builder.add(dialect.BandOp(lower, upper), "band")


def band(lower: Scalar | None = None, upper: Scalar | None = None) -> Mask:
    """Pairs with lower <= kv - q <= upper: a band along the main diagonal, both bounds included, of any sign.

    Args:
        lower: least kv - q, or None for no bound; an int or int32/int64 data of shape [], [B] or [B, H].
        upper: greatest kv - q, or None for no bound.

    Raises:
        MaskError: both bounds are missing, or one is no integer.
    """
    if lower is None and upper is None:
        raise MaskError("band needs a lower or an upper bound; full() has neither")
    return _Band(
        None if lower is None else scalar("band: lower", lower),
        None if upper is None else scalar("band: upper", upper),
    )


__all__ = ["band", "cols", "full", "rows"]
