"""A key that is always there, and gives nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from compilemask.errors import ScoreError
from compilemask.score.builder import ScoreBuilder, Table
from compilemask.score.score import Score, per_head

if TYPE_CHECKING:
    import torch
    from xdsl.ir import SSAValue


@dataclass(frozen=True, eq=False, repr=False)
class Sink(Score):
    """See `sink`."""

    logits: torch.Tensor

    def emit(self, builder: ScoreBuilder, score: SSAValue) -> SSAValue:
        if builder.sink is not None:
            raise ScoreError("a softmax has one sink; add exp(logits) up for more")
        builder.sink = Table("sink", self.logits)
        return score


def sink(logits: torch.Tensor) -> Score:
    """Each head has one more key, which no mask hides: its score is a logit of the head, and its value 0.

    So exp(logit) joins the denominator of the softmax, and the log-sum-exp: with scores s, lse = log(exp(logit) +
    sum exp(s)) and out = sum exp(s - lse) v. A row that sees no key gives 0, and lse = logit. Modifications of scores
    do not change the logit. A logit of -inf is no sink.

    Source: gpt-oss (arXiv 2508.10925), section 2.2; Miller, "Attention is off by one" (2023), with a logit of 0.

    Args:
        logits: a float tensor of shape [], [H] or [B, H].

    Raises:
        ScoreError: logits are not such a tensor, or there are two sinks.
    """
    return Sink(per_head("sink: logits", logits))


__all__ = ["sink"]
