"""Weights without a softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.dialects import arith, math

from compilemask.dialects.tiling_score import Weights
from compilemask.errors import ScoreError
from compilemask.score.builder import ScoreBuilder
from compilemask.score.score import Score, number_or_per_head

if TYPE_CHECKING:
    import torch
    from xdsl.ir import SSAValue


@dataclass(frozen=True, eq=False, repr=False)
class Silu(Score):
    """See `silu`."""

    length: float | torch.Tensor | None

    def emit(self, builder: ScoreBuilder, score: SSAValue) -> SSAValue:
        if builder.sink is not None:
            raise ScoreError("silu takes the place of the softmax; a sink is a key of one")
        builder.weights = Weights.POINTWISE
        # x sigmoid(x) = y + y tanh(y) with y = x / 2: one special function, and no overflow.
        half = builder.add(arith.MulfOp(score, builder.constant(0.5)))
        weight = builder.add(arith.AddfOp(half, builder.add(arith.MulfOp(half, builder.add(math.TanhOp(half))))))
        if self.length is None:
            return weight
        return builder.add(arith.DivfOp(weight, builder.number("length", self.length)))


def silu(length: float | torch.Tensor | None = None) -> Score:
    """out = sum silu(score) v / length over the visible keys, silu(x) = x / (1 + exp(-x)), in place of the softmax.

    A row that sees no key gives 0. There is no log-sum-exp, and nothing comes after it. Source: HSTU (arXiv
    2402.17152), section 3.1, which divides by the length of the longest sequence.

    Args:
        length: what sums are divided by: 1 if not given, a number other than 0, or a float tensor of shape [], [H] or
            [B, H].

    Raises:
        ScoreError: the number is 0 or not finite, the tensor is of another kind, or there is a sink.
    """
    number = None if length is None else number_or_per_head("silu: length", length)
    if number is not None and isinstance(number, float) and number == 0.0:
        raise ScoreError("silu: length is 0, expected another number")
    return Silu(number)


__all__ = ["silu"]
