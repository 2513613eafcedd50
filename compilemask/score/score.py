"""What a score modification is in Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compilemask.dialects.tiling_score import LARGEST_NUMBER, Weights
from compilemask.errors import ScoreError
from compilemask.language.narrowing import is_listed
from compilemask.score.builder import Plan, ScoreBuilder

if TYPE_CHECKING:
    import torch
    from xdsl.ir import SSAValue


class Score:
    """What attention does to scores, after their scale and before the mask. `a >> b` does `a`, then `b`.

    `plan` holds its IR and the values that it captures; str() shows the IR.
    """

    plan: Plan

    def emit(self, builder: ScoreBuilder, score: SSAValue) -> SSAValue:
        """Writes the modification of a score into a `tiling.score`; the modified score."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        builder = ScoreBuilder()
        plan = builder.finish(self.name, self.emit(builder, builder.block.args[0]))
        object.__setattr__(self, "plan", plan)

    @property
    def name(self) -> str:
        """How the IR calls it."""
        return type(self).__name__.lower()

    def __rshift__(self, other: Score) -> Score:
        if not isinstance(other, Score):
            return NotImplemented
        return Then(self, other)

    def __str__(self) -> str:
        return self.plan.text


@dataclass(frozen=True, eq=False, repr=False)
class Then(Score):
    """One modification after the other."""

    first: Score
    second: Score

    @property
    def name(self) -> str:
        return f"{self.first.name}_{self.second.name}"

    def emit(self, builder: ScoreBuilder, score: SSAValue) -> SSAValue:
        score = self.first.emit(builder, score)
        if builder.weights is not Weights.SOFTMAX:
            raise ScoreError(f"{self.first.name} makes weights of scores; nothing comes after it")
        return self.second.emit(builder, score)


def per_head(what: str, value: Any, *, entries: bool = False) -> torch.Tensor:
    """A tensor as [B or 1, H or 1, n]: [], [H] or [B, H] (n = 1); with `entries` [n], [H, n] or [B, H, n].

    It stays the caller's memory, so that what is written to it later counts.

    Raises:
        ScoreError: it is no tensor or list of numbers, has another rank, or no entries.
    """
    import torch

    if is_listed(value):
        value = _from_sequence(what, value)
    shapes = "[n], [H, n] or [B, H, n]" if entries else "[], [H] or [B, H]"
    if not isinstance(value, torch.Tensor):
        raise ScoreError(f"{what} must be a tensor of shape {shapes}, got {type(value).__name__}")
    if not value.is_floating_point():
        raise ScoreError(f"{what} must hold floats, got {value.dtype}")
    tensor = value if entries else value.unsqueeze(-1)
    if not 1 <= tensor.dim() <= 3:
        raise ScoreError(f"{what} must have shape {shapes}, got {list(value.shape)}")
    return tensor[(None,) * (3 - tensor.dim())]


def _from_sequence(what: str, value: Sequence[Any]) -> torch.Tensor:
    import torch

    try:
        return torch.tensor(value, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ScoreError(f"{what} must be numbers: {error}") from None


def number_or_per_head(what: str, value: Any) -> float | torch.Tensor:
    """A finite Python number, or a tensor as `per_head` takes it. Raises ScoreError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return per_head(what, value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not abs(number) <= LARGEST_NUMBER:
        raise ScoreError(f"{what} is {number}, expected a finite float32 number")
    return number


__all__ = ["Score", "number_or_per_head", "per_head"]
