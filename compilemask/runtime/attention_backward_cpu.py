"""The gradient of attention on the CPU, as kernels compute it: that of queries along the descriptor, those of keys and
values along its transpose. By compiled functions where there are such, else by operations of PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.gradient_inputs import GradientInputs, Gradients, no_gradients
from compilemask.runtime.gradient_memory import gradient_like
from compilemask.runtime.visits import key_heads, pieces, shares


def attention_backward_cpu(inputs: GradientInputs) -> Gradients:
    """Gradients of query, key and value in their type.

    Exactly 0 for queries that see no key and keys that no query sees, whatever they hold; NaN in tiles that found no
    room in the descriptor.
    """
    if inputs.is_empty:
        return no_gradients(inputs)
    work = inputs.lse.dtype
    blind = inputs.lse == -torch.inf
    grad = inputs.grad_out.to(work).masked_fill(blind[..., None], 0)
    delta = (grad * inputs.out.to(work)).sum(dim=-1)
    if inputs.grad_lse is not None:
        delta = delta - inputs.grad_lse.to(work)
    rows = _Rows(inputs.query.to(work), grad, inputs.lse.masked_fill(blind, torch.inf), delta)
    keys = (inputs.key.to(work), inputs.value.to(work))
    grad_query = _of_queries(rows, *keys, inputs.descriptor, inputs.scale)
    grad_key, grad_value = _of_keys(rows, *keys, inputs.transposed, inputs.scale)
    found = ((inputs.query, grad_query), (inputs.key, grad_key), (inputs.value, grad_value))
    return Gradients(*(gradient_like(x).copy_(gradient) for x, gradient in found), tables=[])


@dataclass(frozen=True)
class _Rows:
    """What belongs to query rows [B, Hq, Sq]; gradients have 0 in rows that see nothing, and lse +inf."""

    query: torch.Tensor
    grad: torch.Tensor
    lse: torch.Tensor
    delta: torch.Tensor
    """The gradient along the row's output, less that of its lse."""

    def of(self, batches: slice, heads: slice, key_heads: int) -> _Rows:
        """Some batches and heads, as [B, Hkv, Hq / Hkv, Sq]."""
        parts = (x[batches, heads] for x in (self.query, self.grad, self.lse, self.delta))
        return _Rows(*(x.unflatten(1, (key_heads, -1)) for x in parts))

    def at(self, rows: slice | torch.Tensor) -> _Rows:
        """Some rows."""
        return _Rows(*(x[:, :, :, rows] for x in (self.query, self.grad, self.lse, self.delta)))


def _weights_and_slopes(
    rows: _Rows, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor | None, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and gradients of products, [B, Hkv, G, R, n], for keys and values [B, Hkv, 1, n, D]."""
    weights = torch.exp(scale * (rows.query @ key.mT) - rows.lse[..., None])
    slopes = scale * weights * (rows.grad @ value.mT - rows.delta[..., None])
    if visible is not None:
        weights, slopes = (x.masked_fill(~visible, 0) for x in (weights, slopes))
    return weights, slopes


def _of_queries(
    every: _Rows, key: torch.Tensor, value: torch.Tensor, descriptor: Descriptor, scale: float
) -> torch.Tensor:
    result = torch.zeros_like(every.query)
    layout, group = descriptor.layout, every.query.shape[1] // key.shape[1]
    for b, batches in shares(layout.batch, key.shape[0]):
        for h, heads in shares(layout.heads, every.query.shape[1]):
            k, v = (x[batches, key_heads(heads, group), None] for x in (key, value))
            part = every.of(batches, heads, k.shape[1])
            for m in range(layout.query_tiles):
                tile = slice(m * layout.rows, min((m + 1) * layout.rows, layout.queries))
                found = pieces(descriptor, b, h, m, tile.stop - tile.start)
                if found is None:
                    result[batches, heads, tile] = torch.nan
                    continue
                rows = part.at(tile)
                for keys, visible in found:
                    _, slopes = _weights_and_slopes(rows, k[..., keys, :], v[..., keys, :], visible, scale)
                    result[batches, heads, tile] += (slopes @ k[..., keys, :]).flatten(1, 2)
    return result


def _of_keys(
    every: _Rows, key: torch.Tensor, value: torch.Tensor, transposed: Descriptor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_key, grad_value = torch.zeros_like(key), torch.zeros_like(value)
    layout, group = transposed.layout, every.query.shape[1] // key.shape[1]
    for b, batches in shares(layout.batch, key.shape[0]):
        for h, heads in shares(layout.heads, every.query.shape[1]):
            kv = (batches, key_heads(heads, group))
            k, v = key[kv][:, :, None], value[kv][:, :, None]
            part = every.of(batches, heads, k.shape[1])
            for n in range(layout.query_tiles):
                tile = slice(n * layout.rows, min((n + 1) * layout.rows, layout.queries))
                found = pieces(transposed, b, h, n, tile.stop - tile.start)
                if found is None:
                    grad_key[*kv, tile] = grad_value[*kv, tile] = torch.nan
                    continue
                for queries, visible in found:
                    rows = part.at(queries)
                    seen = None if visible is None else visible.mT
                    weights, slopes = _weights_and_slopes(rows, k[..., tile, :], v[..., tile, :], seen, scale)
                    grad_key[*kv, tile] += (slopes.mT @ rows.query).sum(dim=2)
                    grad_value[*kv, tile] += (weights.mT @ rows.grad).sum(dim=2)
    return grad_key, grad_value
