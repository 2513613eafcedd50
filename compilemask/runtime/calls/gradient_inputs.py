"""What gradients of attention are computed from, and what they are: the same for every backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.scoring import UNMODIFIED, Scoring


class GradientInputs(NamedTuple):
    """Gradients of the outputs, and what the forward pass took and gave; all checked."""

    grad_out: torch.Tensor
    grad_lse: torch.Tensor | None
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor
    descriptor: Descriptor
    """With its transpose."""
    scale: float
    scoring: Scoring = UNMODIFIED
    wanted: Sequence[bool] = ()
    """Of which tensors of the scoring gradients are wanted."""

    @classmethod
    def of_operator(cls, *arguments: Any) -> GradientInputs:
        """From the arguments of the operator `compilemask::attention_backward`."""
        *tensors, descriptor, scale, score, score_tensors, score_numbers, wanted = arguments
        return cls(
            *tensors,
            descriptor=Descriptor.of_tensors(descriptor),
            scale=scale,
            scoring=Scoring(score, score_tensors, score_numbers),
            wanted=wanted,
        )

    @property
    def transposed(self) -> Descriptor:
        """The descriptor that gradients of keys and values follow."""
        assert self.descriptor.transposed is not None
        return self.descriptor.transposed

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to attend to or with, so that all gradients are 0."""
        return not (self.query.numel() and self.key.numel())


class Gradients(NamedTuple):
    """Of query, key and value, and of the tensors of the scoring of which they are wanted; each in its type."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    tables: list[torch.Tensor]
