"""Attention with linear biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import f32

from compilemask.dialects.arith import SIToFPOp
from compilemask.errors import ScoreError
from compilemask.score.builder import ScoreBuilder
from compilemask.score.score import Score, per_head

if TYPE_CHECKING:
    import torch
    from xdsl.ir import SSAValue


@dataclass(frozen=True, eq=False, repr=False)
class Alibi(Score):
    """See `alibi`."""

    slopes: torch.Tensor
    symmetric: bool

    def emit(self, builder: ScoreBuilder, score: SSAValue) -> SSAValue:
        slope = builder.number("slopes", self.slopes)
        distance = builder.add(SIToFPOp(builder.distance(), f32))
        if self.symmetric:
            distance = builder.add(arith.NegfOp(builder.add(math.AbsFOp(distance))))
        return builder.add(arith.AddfOp(score, builder.add(arith.MulfOp(distance, slope))))


def alibi(slopes: torch.Tensor, *, symmetric: bool = False) -> Score:
    """score + slope * (kv - q): keys of the past lose in proportion to their distance.

    Positions count from 0 at the first query and at the first key. Source: Press et al. (arXiv 2108.12409), who use
    it under a causal mask.

    Args:
        slopes: a float tensor of shape [], [H] or [B, H]; `alibi_slopes` gives those of the paper.
        symmetric: score - slope * |kv - q|, so that keys of the future lose too.

    Raises:
        ScoreError: slopes are not such a tensor.
    """
    return Alibi(per_head("alibi: slopes", slopes), bool(symmetric))


def alibi_slopes(heads: int) -> torch.Tensor:
    """The paper's slopes [heads] float32, 2^(-8 i / heads) for i = 1 to heads, heads being a power of two.

    For other numbers: those of the next smaller power of two, then every second one of the next larger.

    Raises:
        ScoreError: heads is not a positive int.
    """
    import torch

    if isinstance(heads, bool) or not isinstance(heads, int) or heads < 1:
        raise ScoreError(f"alibi_slopes: heads is {heads!r}, expected a positive int")
    power = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    slopes += [2 ** (-4 * i / power) for i in range(1, 2 * (heads - power), 2)]
    return torch.tensor(slopes, dtype=torch.float32)


__all__ = ["alibi", "alibi_slopes"]
