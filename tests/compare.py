"""Comparisons in which a NaN never passes, and the dense attention to compare with."""

from __future__ import annotations

import math

import torch

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 5e-3}
"""Largest relative error, by norm, of an attention in a dtype."""


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float, what: str = "result") -> None:
    """Assert |actual - expected| <= tolerance * |expected| by norm. Infinities must agree; a NaN fails."""
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    actual, expected = actual.detach().double().cpu(), expected.detach().double().cpu()
    for side, values in (("the result", actual), ("the reference", expected)):
        assert not values.isnan().any(), f"{what}: {int(values.isnan().sum())} NaN in {side}"
    assert torch.equal(actual.isinf(), expected.isinf()), f"{what}: infinities differ"
    infinite = expected.isinf()
    assert torch.equal(actual[infinite], expected[infinite]), f"{what}: signs of infinities differ"
    difference = (actual[~infinite] - expected[~infinite]).norm()
    size = expected[~infinite].norm()
    assert difference <= tolerance * size, (
        f"{what}: relative error {float(difference / size):.2e}, allowed {tolerance:.0e}"
    )


def dense_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The oracle: out and lse in float64, from bool `visible` [B or 1, Hq or 1, Sq, Skv]; one head at a time."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    group = q.shape[1] // max(k.shape[1], 1)
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    lse = torch.full(q.shape[:3], -torch.inf, dtype=torch.float64, device=q.device)
    visible = visible.to(q.device)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            seen = visible[min(b, visible.shape[0] - 1), min(h, visible.shape[1] - 1)]
            scores = scale * (q[b, h].double() @ k[b, h // group].double().T)
            scores = scores.masked_fill(~seen, -torch.inf)
            lse[b, h] = torch.logsumexp(scores, dim=-1) if seen.shape[1] else -torch.inf
            weights = torch.exp(scores - lse[b, h].masked_fill(lse[b, h] == -torch.inf, 0)[:, None])
            # A key that nobody sees may hold anything, NaN too.
            out[b, h] = weights @ v[b, h // group].double().masked_fill(~seen.any(dim=0)[:, None], 0)
    return out, lse


def dense_gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visible: torch.Tensor,
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The oracle of gradients in float64, one head at a time: those of q, k and v for gradients of out and lse."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    group = q.shape[1] // max(k.shape[1], 1)
    of_q, of_k, of_v = (torch.zeros_like(x, dtype=torch.float64) for x in (q, k, v))
    visible = visible.to(q.device)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            seen = visible[min(b, visible.shape[0] - 1), min(h, visible.shape[1] - 1)]
            query, key, value = q[b, h].double(), k[b, h // group].double(), v[b, h // group].double()
            scores = (scale * (query @ key.T)).masked_fill(~seen, -torch.inf)
            weights = torch.where(seen, scores.softmax(dim=-1), 0)
            grad = grad_out[b, h].double()
            slopes = grad @ value.T
            slopes = slopes - (weights * slopes).sum(dim=-1, keepdim=True)
            if grad_lse is not None:
                slopes = slopes + grad_lse[b, h].double()[:, None]
            slopes = scale * weights * slopes
            of_q[b, h] = slopes @ key
            of_k[b, h // group] += slopes.T @ query
            of_v[b, h // group] += weights.T @ grad
    return of_q, of_k, of_v


def random_inputs(
    batch: int,
    heads: int,
    key_heads: int,
    queries: int,
    keys: int,
    head_dim: int,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v of standard normal numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, heads, queries, head_dim), (batch, key_heads, keys, head_dim), (batch, key_heads, keys, head_dim)]
    q, k, v = (torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)
    return q, k, v
