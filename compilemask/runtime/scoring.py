"""A score modification as the attention of a backend takes it: its structure as text, and what it captures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from xdsl.dialects.builtin import MemRefType
from xdsl.parser import Parser

from compilemask.dialects.registry import make_context
from compilemask.dialects.semantics.score import Pairs, scored
from compilemask.dialects.tiling_score import ScoreOp, Weights


@lru_cache(maxsize=256)
def score_op(text: str) -> ScoreOp | None:
    """The `tiling.score` of a structure; None if scores are not modified, which the empty text says."""
    if not text:
        return None
    module = Parser(make_context(), text).parse_module()
    return next(op for op in module.ops if isinstance(op, ScoreOp))


class Scoring(NamedTuple):
    """Tensors are the sink, if there is one, then the tables, each [B or 1, H or 1, n]."""

    text: str = ""
    tensors: Sequence[torch.Tensor] = ()
    numbers: Sequence[float] = ()

    @property
    def op(self) -> ScoreOp | None:
        """The structure."""
        return score_op(self.text)

    @property
    def region(self) -> str:
        """The structure, if it modifies scores; a sink alone does not."""
        return "" if self.op is None or self.op.is_identity else self.text

    @property
    def is_pointwise(self) -> bool:
        """Whether results weigh values as they are, so that there is no log-sum-exp."""
        return self.op is not None and self.op.weights is Weights.POINTWISE

    @property
    def sink(self) -> torch.Tensor | None:
        """Logits [B or 1, H or 1, 1] of the sink."""
        return self.tensors[0] if self.op is not None and self.op.sink is not None else None

    def captured(self) -> Iterator[float | torch.Tensor]:
        """What the structure captures, in order."""
        if self.op is None:
            return
        numbers, tables = iter(self.numbers), iter(self.tensors[int(self.op.sink is not None) :])
        for type_ in self.op.captured:
            yield next(tables) if isinstance(type_, MemRefType) else next(numbers)

    def for_kernels(self) -> Scoring:
        """The same with tensors that kernels read: integers in 32 bits, entries side by side."""
        kept = [x if x.is_floating_point() else x.to(torch.int32) for x in self.tensors]
        return self._replace(tensors=[x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous() for x in kept])

    def kernel_arguments(self) -> list[int | float]:
        """What follows the other arguments of a kernel: of a table its address, entries and strides, and the sink."""
        values: list[int | float] = []
        for value in self.captured():
            if isinstance(value, torch.Tensor):
                values += [value.data_ptr(), value.shape[-1], *table_strides(value)]
            else:
                values.append(value)
        if self.sink is not None:
            values += [self.sink.data_ptr(), *table_strides(self.sink)]
        return values

    def apply(self, scores: torch.Tensor, pairs: Pairs) -> torch.Tensor:
        """Modified scores, in the type of `scores` and of their shape, in host memory."""
        if self.op is None or self.op.is_identity:
            return scores
        values = self.captured_arrays(scores.dtype)
        return torch.from_numpy(np.array(scored(self.op.body.block, scores.numpy(), pairs, values)))

    def captured_arrays(self, real: torch.dtype) -> list[float | np.ndarray]:
        """What the structure captures, floats in the type `real`."""
        return [_as_array(value, real) for value in self.captured()]


def table_strides(table: torch.Tensor) -> list[int]:
    """Strides of batches and heads; 0 where there is only one."""
    return [stride if size > 1 else 0 for stride, size in zip(table.stride()[:2], table.shape[:2], strict=True)]


def _as_array(value: float | torch.Tensor, real: torch.dtype) -> float | np.ndarray:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().to(real if value.is_floating_point() else torch.int64).numpy()


UNMODIFIED = Scoring()
