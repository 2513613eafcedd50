"""A bias that depends on how far a key is from its query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.dialects import arith
from xdsl.dialects.builtin import i32

from compilemask.errors import ScoreError
from compilemask.score.builder import ScoreBuilder
from compilemask.score.score import Score, per_head

if TYPE_CHECKING:
    import torch
    from xdsl.ir import SSAValue


@dataclass(frozen=True, eq=False, repr=False)
class RelativeBias(Score):
    """See `relative_bias`."""

    table: torch.Tensor
    zero: int

    def emit(self, builder: ScoreBuilder, score: SSAValue) -> SSAValue:
        table = builder.table("biases", self.table)
        index = builder.add(arith.AddiOp(builder.distance(), builder.constant(self.zero, i32)))
        return builder.add(arith.AddfOp(score, builder.read(table, index)))


def relative_bias(table: torch.Tensor, *, zero: int | None = None) -> Score:
    """score + table[kv - q + zero]; distances outside of the table take its first or last entry.

    Source: Raffel et al. (arXiv 1910.10683), section 2.1. Their buckets are a table that repeats entries:
    `relative_bias(weights[buckets].T)` for weights [buckets, H] and `buckets` of the distances of the table.

    Args:
        table: a float tensor of shape [n], [H, n] or [B, H, n].
        zero: the entry for kv = q; (n - 1) / 2, the middle one, if not given.

    Raises:
        ScoreError: table is not such a tensor, has no middle where one is needed, or no entry `zero`.
    """
    data = per_head("relative_bias: table", table, entries=True)
    entries = data.shape[-1]
    if zero is None:
        if entries % 2 == 0:
            raise ScoreError(f"relative_bias: a table of {entries} entries has no middle; say which entry is `zero`")
        zero = entries // 2
    if isinstance(zero, bool) or not isinstance(zero, int) or not 0 <= zero < entries:
        raise ScoreError(f"relative_bias: zero is {zero!r}, expected an int from 0 to {entries - 1}")
    return RelativeBias(data, zero)


__all__ = ["relative_bias"]
