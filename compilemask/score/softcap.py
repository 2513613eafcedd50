"""Scores that cannot leave an interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.dialects import arith, math

from compilemask.errors import ScoreError
from compilemask.score.builder import ScoreBuilder
from compilemask.score.score import Score, number_or_per_head

if TYPE_CHECKING:
    import torch
    from xdsl.ir import SSAValue


@dataclass(frozen=True, eq=False, repr=False)
class Softcap(Score):
    """See `softcap`."""

    cap: float | torch.Tensor

    def emit(self, builder: ScoreBuilder, score: SSAValue) -> SSAValue:
        cap = builder.number("cap", self.cap)
        bounded = builder.add(math.TanhOp(builder.add(arith.DivfOp(score, cap))))
        return builder.add(arith.MulfOp(bounded, cap))


def softcap(cap: float | torch.Tensor) -> Score:
    """cap * tanh(score / cap): scores stay between -cap and cap.

    Source: Gemma 2 (arXiv 2408.00118), section 2; cap is 50 there.

    Args:
        cap: a positive number, or a float tensor of shape [], [H] or [B, H].

    Raises:
        ScoreError: the number is not positive and finite, or the tensor is of another kind.
    """
    number = number_or_per_head("softcap: cap", cap)
    if isinstance(number, float) and number <= 0:
        raise ScoreError(f"softcap: cap is {number}, expected a positive number")
    return Softcap(number)


__all__ = ["softcap"]
