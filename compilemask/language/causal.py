"""Causal masks: no query sees the future."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from xdsl.dialects.arith import SubiOp
from xdsl.ir import SSAValue

from compilemask.dialects import mask as dialect
from compilemask.errors import MaskError
from compilemask.language.builder import Builder
from compilemask.language.mask import Mask

Align = Literal["top_left", "bottom_right"]
"""Which query and key are the same token if there are not equally many: the first ones or the last ones."""


def checked_align(what: str, align: Align) -> Align:
    """Raises `MaskError` unless `align` is one of the two."""
    if align == "top_left" or align == "bottom_right":
        return align
    raise MaskError(f"{what}: align must be 'top_left' or 'bottom_right', got {align!r}")


def diagonal(builder: Builder, align: Align) -> SSAValue:
    """The kv - q of the diagonal on which queries and keys are the same token: 0, or keys - queries."""
    if align == "top_left":
        return builder.constant(0)
    keys, queries = builder.add(dialect.KeysOp(), "keys"), builder.add(dialect.QueriesOp(), "queries")
    return builder.add(SubiOp(keys, queries), "diagonal")


@dataclass(frozen=True, eq=False, repr=False)
class _Causal(Mask):
    align: Align
    LABEL: ClassVar[str] = "causal"

    def emit(self, builder: Builder) -> SSAValue:
        return builder.add(dialect.BandOp(upper=diagonal(builder, self.align)), "past")


def causal(align: Align = "top_left") -> Mask:
    """Each query sees the key at its own position and all before it.

    Args:
        align: for unequal numbers of queries and keys, where the diagonal lies. "top_left": kv <= q, query 0 is
            token 0. "bottom_right": kv <= q + keys - queries, the last query is the last token, as in decoding with
            a cache.

    Raises:
        MaskError: another `align`.
    """
    return _Causal(checked_align("causal", align))


__all__ = ["Align", "causal", "checked_align", "diagonal"]
