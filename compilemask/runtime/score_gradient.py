"""Gradients of what a score modification captures, and of scores in host memory."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from xdsl.dialects.builtin import MemRefType

from compilemask.dialects.semantics.score import Pairs, pulled_back
from compilemask.dialects.tiling_score_gradient import ScoreGradientOp
from compilemask.errors import GradientError
from compilemask.lowering.tiling_to_tt.attention_backward_score import constant_index, is_sum_of_head
from compilemask.passes.score_gradient import gradient_of
from compilemask.runtime.calls.gradient_inputs import GradientInputs, Gradients
from compilemask.runtime.calls.gradient_memory import gradient_like
from compilemask.runtime.scoring import Scoring, score_op, table_strides


@lru_cache(maxsize=256)
def gradient_op(text: str, wanted: tuple[int, ...]) -> ScoreGradientOp:
    """The gradient of a structure, with regard to captured values of some numbers. Raises GradientError."""
    op = score_op(text)
    assert op is not None
    return gradient_of(op, wanted)


def wanted_tables(inputs: GradientInputs) -> dict[int, torch.Tensor]:
    """The captured tables of which gradients are wanted, by their numbers among captured values."""
    op = inputs.scoring.op
    if op is None:
        return {}
    numbers = [number for number, type_ in enumerate(op.captured) if isinstance(type_, MemRefType)]
    first = int(op.sink is not None)
    tables = zip(numbers, inputs.scoring.tensors[first:], inputs.wanted[first:], strict=True)
    return {number: table for number, table, is_wanted in tables if is_wanted}


def gradients_of_tensors(
    inputs: GradientInputs, delta: torch.Tensor, tables: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Those that are wanted, in order: of the sink, if it is, then `tables`, the sums for `wanted_tables`.

    `delta` [B, Hq, Sq] is the gradient along a row's output, less that of its log-sum-exp. A sink's weight in a row is
    exp(logit - lse), and its value is 0.
    """
    scoring = inputs.scoring
    found = [total.to(table.dtype) for total, table in zip(tables, wanted_tables(inputs).values(), strict=True)]
    if scoring.sink is None or not inputs.wanted[0]:
        return found
    lse = inputs.lse.masked_fill(inputs.lse == -torch.inf, torch.inf)
    of_rows = torch.exp(scoring.sink.to(lse.dtype) - lse) * -delta
    of_heads = of_rows.sum(dim=-1, keepdim=True)
    return [of_heads.sum_to_size(scoring.sink.shape).to(scoring.sink.dtype), *found]


def no_gradients(inputs: GradientInputs) -> Gradients:
    """Gradients of empty inputs: 0, but for that of a sink, which is all that rows without keys see."""
    found = (gradient_like(x).zero_() for x in (inputs.query, inputs.key, inputs.value))
    delta = torch.zeros_like(inputs.lse) if inputs.grad_lse is None else -inputs.grad_lse.to(inputs.lse.dtype)
    sums = [torch.zeros_like(table) for table in wanted_tables(inputs).values()]
    return Gradients(*found, tables=gradients_of_tensors(inputs, delta, sums))


class DeviceSums:
    """What the kernel of queries adds up for the gradients of captured tables, in float32 on a GPU.

    One for each `tiling.accumulate`: parts of programs [B, Hq, programs], or a table of zeros, added to by atomics.
    """

    def __init__(self, text: str, wanted: dict[int, torch.Tensor], query: torch.Tensor, programs: int) -> None:
        self.wanted = wanted
        self._op = gradient_op(text, tuple(wanted))
        self._sums: list[torch.Tensor] = []
        for accumulate in self._op.accumulates:
            if is_sum_of_head(accumulate):
                shape = (*query.shape[:2], programs)
                self._sums.append(query.new_empty(shape, dtype=torch.float32))
            else:
                _alert_not_deterministic(self._op)
                table = wanted[self._op.captured_number(accumulate.table)]
                self._sums.append(query.new_zeros(table.shape, dtype=torch.float32))

    def arguments(self) -> list[int]:
        """The last arguments of the kernel."""
        arguments: list[int] = []
        for accumulate, total in zip(self._op.accumulates, self._sums, strict=True):
            arguments.append(total.data_ptr())
            if not is_sum_of_head(accumulate):
                arguments += table_strides(total)
        return arguments

    def totals(self) -> list[torch.Tensor]:
        """Gradients of the wanted tables, in order, once the kernel has run."""
        found = {number: torch.zeros_like(x, dtype=torch.float32) for number, x in self.wanted.items()}
        for accumulate, total in zip(self._op.accumulates, self._sums, strict=True):
            table = found[self._op.captured_number(accumulate.table)]
            entry = constant_index(accumulate)
            if entry is None:
                table += total
            else:
                at = min(max(entry, 0), table.shape[-1] - 1)
                table[..., at] += total.sum(dim=-1).sum_to_size(table.shape[:2])
        return list(found.values())


def _alert_not_deterministic(op: ScoreGradientOp) -> None:
    """Raise GradientError, or warn, where PyTorch's deterministic algorithms are on."""
    if not torch.are_deterministic_algorithms_enabled():
        return
    text = (
        f"@{op.sym_name.data} sums the gradient of a table by atomics, in any order, and "
        "torch.use_deterministic_algorithms is on"
    )
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise GradientError(text)
    warnings.warn(text, RuntimeWarning, stacklevel=2)


class HostScores:
    """What becomes of scores [B, Hkv, G, R, n] of some batches and heads, and of their gradients, in host memory."""

    def __init__(
        self,
        scoring: Scoring,
        batches: slice,
        heads: slice,
        key_heads: int,
        sums: dict[int, np.ndarray],
        real: torch.dtype,
    ) -> None:
        """`sums`, by the numbers of captured tables, have their shapes; their gradients are added to them."""
        self.scoring, self.sums = scoring, sums
        self._batch = np.arange(int(batches.start), int(batches.stop))[:, None, None, None, None]
        self._head = np.arange(int(heads.start), int(heads.stop)).reshape(key_heads, -1, 1, 1)
        self._captured = scoring.captured_arrays(real)
        self._gradient = gradient_op(scoring.text, tuple(sums)).body.block

    def of_pairs(self, products: torch.Tensor, pairs: tuple[np.ndarray, np.ndarray]) -> torch.Tensor:
        """The scores that are used, from scores of pairs, whose queries [R] and keys [n] are numbered."""
        return self.scoring.apply(products, self._pairs(pairs))

    def pulled_back(
        self,
        products: torch.Tensor,
        slopes: torch.Tensor,
        pairs: tuple[np.ndarray, np.ndarray],
        visible: torch.Tensor | None,
    ) -> torch.Tensor:
        """Gradients of scores, from those of the scores that are used."""
        sums = [self.sums.get(number) for number in range(len(self._captured))]
        seen = None if visible is None else visible.numpy()
        values = (products.numpy(), slopes.numpy(), self._pairs(pairs), self._captured, sums, seen)
        return torch.from_numpy(np.array(pulled_back(self._gradient, *values)))

    def _pairs(self, pairs: tuple[np.ndarray, np.ndarray]) -> Pairs:
        queries, keys = pairs
        return Pairs(self._batch, self._head, queries[:, None], keys)


__all__ = ["DeviceSums", "HostScores", "gradient_op", "gradients_of_tensors", "no_gradients", "wanted_tables"]
