"""The gradient of attention on the CPU, as kernels compute it: that of queries along the descriptor, those of keys and
values along its transpose. By compiled functions where there are such, else by operations of PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch

from compilemask.runtime.calls.gradient_inputs import GradientInputs, Gradients
from compilemask.runtime.calls.gradient_memory import gradient_like
from compilemask.runtime.cpu.attention_backward_cpu_jit import attention_backward_cpu_jit, takes
from compilemask.runtime.cpu.visits import key_heads, pieces, shares
from compilemask.runtime.patched import gradients_in_patched_order
from compilemask.runtime.score_gradient import HostScores, gradients_of_tensors, no_gradients, wanted_tables


def attention_backward_cpu(inputs: GradientInputs) -> Gradients:
    """Gradients of query, key and value in their type.

    Exactly 0 for queries that see no key and keys that no query sees, whatever they hold; NaN in tiles that found no
    room in the descriptor.
    """
    if inputs.is_empty:
        return no_gradients(inputs)
    if inputs.descriptor.layout.patches is not None:
        return gradients_in_patched_order(attention_backward_cpu, inputs)
    if takes(inputs):
        return attention_backward_cpu_jit(inputs)
    return gradients_by_tiles(inputs)


def gradients_by_tiles(inputs: GradientInputs) -> Gradients:
    """As `attention_backward_cpu`, by operations of PyTorch: of any type."""
    work = inputs.lse.dtype
    blind = inputs.lse == -torch.inf
    grad = inputs.grad_out.to(work).masked_fill(blind[..., None], 0)
    delta = (grad * inputs.out.to(work)).sum(dim=-1)
    if inputs.grad_lse is not None:
        delta = delta - inputs.grad_lse.to(work)
    numbers = torch.arange(inputs.query.shape[2])
    rows = _Rows(inputs.query.to(work), grad, inputs.lse.masked_fill(blind, torch.inf), delta, numbers)
    keys = (inputs.key.to(work), inputs.value.to(work))
    sums = {number: np.zeros(table.shape, np.float64) for number, table in wanted_tables(inputs).items()}
    grad_query = _of_queries(rows, *keys, inputs, sums)
    grad_key, grad_value = _of_keys(rows, *keys, inputs)
    found = ((inputs.query, grad_query), (inputs.key, grad_key), (inputs.value, grad_value))
    tables = gradients_of_tensors(inputs, delta, [torch.from_numpy(total) for total in sums.values()])
    return Gradients(*(gradient_like(x).copy_(gradient) for x, gradient in found), tables=tables)


@dataclass(frozen=True)
class _Rows:
    """What belongs to query rows [B, Hq, Sq]; gradients have 0 in rows that see nothing, and lse +inf."""

    query: torch.Tensor
    grad: torch.Tensor
    lse: torch.Tensor
    delta: torch.Tensor
    """The gradient along the row's output, less that of its lse."""
    numbers: torch.Tensor
    """[Sq]: which queries they are."""

    def of(self, batches: slice, heads: slice, key_heads: int) -> _Rows:
        """Some batches and heads, as [B, Hkv, Hq / Hkv, Sq]."""
        parts = (x[batches, heads] for x in (self.query, self.grad, self.lse, self.delta))
        return _Rows(*(cast("torch.Tensor", x.unflatten(1, (key_heads, -1))) for x in parts), numbers=self.numbers)

    def at(self, rows: torch.Tensor) -> _Rows:
        """Some rows."""
        parts = (self.query, self.grad, self.lse, self.delta)
        return _Rows(*(x[:, :, :, rows] for x in parts), numbers=self.numbers[rows])


class _Keys(NamedTuple):
    """Keys [n] by their numbers, with what belongs to them, [B, Hkv, 1, n, D], and which of them rows see, [R, n]."""

    numbers: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    visible: torch.Tensor | None


def _weights_and_slopes(
    rows: _Rows, keys: _Keys, inputs: GradientInputs, score: HostScores | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and gradients of products, [B, Hkv, G, R, n]."""
    products = inputs.scale * (rows.query @ keys.key.mT)
    rises = rows.grad @ keys.value.mT
    pairs = (rows.numbers.numpy(), keys.numbers.numpy())
    scores = products if score is None else score.of_pairs(products, pairs)
    if inputs.scoring.is_pointwise:
        weights, slopes = scores, rises
    else:
        weights = torch.exp(scores - rows.lse[..., None])
        slopes = weights * (rises - rows.delta[..., None])
    if keys.visible is not None:
        weights, slopes = (x.masked_fill(~keys.visible, 0) for x in (weights, slopes))
    if score is not None:
        slopes = score.pulled_back(products, slopes, pairs, keys.visible)
        slopes = slopes if keys.visible is None else slopes.masked_fill(~keys.visible, 0)
    return weights, inputs.scale * slopes


def _of_queries(
    every: _Rows, key: torch.Tensor, value: torch.Tensor, inputs: GradientInputs, sums: dict[int, np.ndarray]
) -> torch.Tensor:
    """The gradient of queries; adds to those of captured tables."""
    result = torch.zeros_like(every.query)
    descriptor = inputs.descriptor
    layout, group = descriptor.layout, every.query.shape[1] // key.shape[1]
    for b, batches in shares(layout.batch, key.shape[0]):
        for h, heads in shares(layout.heads, every.query.shape[1]):
            k, v = (x[batches, key_heads(heads, group), None] for x in (key, value))
            part = every.of(batches, heads, k.shape[1])
            score = _score(inputs, batches, heads, k.shape[1], sums)
            for m in range(layout.query_tiles):
                tile = slice(m * layout.rows, min((m + 1) * layout.rows, layout.queries))
                found = pieces(descriptor, b, h, m, tile.stop - tile.start)
                if found is None:
                    result[batches, heads, tile] = torch.nan
                    for total in sums.values():
                        total.fill(np.nan)
                    continue
                rows = part.at(torch.arange(tile.start, tile.stop))
                for keys, visible in found:
                    across = _Keys(keys, k[..., keys, :], v[..., keys, :], visible)
                    _, slopes = _weights_and_slopes(rows, across, inputs, score)
                    result[batches, heads, tile] += (slopes @ across.key).flatten(1, 2)
    return result


def _of_keys(
    every: _Rows, key: torch.Tensor, value: torch.Tensor, inputs: GradientInputs
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_key, grad_value = torch.zeros_like(key), torch.zeros_like(value)
    transposed = inputs.transposed
    layout, group = transposed.layout, every.query.shape[1] // key.shape[1]
    for b, batches in shares(layout.batch, key.shape[0]):
        for h, heads in shares(layout.heads, every.query.shape[1]):
            kv = (batches, key_heads(heads, group))
            k, v = key[kv][:, :, None], value[kv][:, :, None]
            part = every.of(batches, heads, k.shape[1])
            score = _score(inputs, batches, heads, k.shape[1], {})
            for n in range(layout.query_tiles):
                tile = slice(n * layout.rows, min((n + 1) * layout.rows, layout.queries))
                found = pieces(transposed, b, h, n, tile.stop - tile.start)
                if found is None:
                    grad_key[*kv, tile] = grad_value[*kv, tile] = torch.nan
                    continue
                numbers = torch.arange(tile.start, tile.stop)
                for queries, visible in found:
                    seen = None if visible is None else visible.mT
                    across = _Keys(numbers, k[..., tile, :], v[..., tile, :], seen)
                    rows = part.at(queries)
                    weights, slopes = _weights_and_slopes(rows, across, inputs, score)
                    grad_key[*kv, tile] += (slopes.mT @ rows.query).sum(dim=2)
                    grad_value[*kv, tile] += (weights.mT @ rows.grad).sum(dim=2)
    return grad_key, grad_value


def _score(
    inputs: GradientInputs, batches: slice, heads: slice, key_heads: int, sums: dict[int, np.ndarray]
) -> HostScores | None:
    if not inputs.scoring.region:
        return None
    return HostScores(inputs.scoring, batches, heads, key_heads, sums, inputs.lse.dtype)
