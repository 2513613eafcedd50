"""Score modifications beside what they mean, and dense attention in float64 with modified scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from test_attention_kernel import memory

import compilemask as cm
from compilemask.dialects.tiling import AttentionOp
from compilemask.lowering.tiling_to_tt.attention_score import score_arguments
from compilemask.runtime.scoring import Scoring
from compilemask.score import Score


@dataclass(frozen=True)
class Case:
    """A modification, and its meaning: of scores [B, H, Sq, Skv] in float64, and of kv - q [Sq, Skv]."""

    score: Score
    modify: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    sink: torch.Tensor | None = None
    """Logits that broadcast to [B, H, 1]."""
    pointwise: bool = False


def cases(batch: int, heads: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> dict[str, Case]:
    """A case for each kind of modification and of parameter; tensors in `dtype`."""
    generator = torch.Generator().manual_seed(batch * 100 + heads)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    slopes = cm.score.alibi_slopes(heads).to(device, dtype)
    table, own_tables = random(65), random(batch, heads, 40)
    logits, own_logits, cap = random(heads), 2 * random(batch, heads), random(heads).abs() + 0.5
    lengths = random(batch, 1).abs() + 1

    def of_head(x: torch.Tensor) -> torch.Tensor:
        return x.double()[..., None, None]

    def alibi(s: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
        return s + of_head(slopes) * distance

    def softcap(s: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return 2.0 * torch.tanh(s / 2.0)

    def relative(s: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
        return s + own_tables.double()[:, :, (distance + 30).clamp(0, 39)]

    unchanged = lambda s, _: s  # noqa: E731
    silu = torch.nn.functional.silu
    return {
        "softcap": Case(cm.score.softcap(2.0), softcap),
        "softcap per head": Case(cm.score.softcap(cap), lambda s, _: of_head(cap) * torch.tanh(s / of_head(cap))),
        "alibi": Case(cm.score.alibi(slopes), alibi),
        "symmetric alibi": Case(cm.score.alibi(slopes, symmetric=True), lambda s, d: s - of_head(slopes) * d.abs()),
        "relative bias": Case(cm.score.relative_bias(table), lambda s, d: s + table.double()[(d + 32).clamp(0, 64)]),
        "relative bias per batch": Case(cm.score.relative_bias(own_tables, zero=30), relative),
        "sink": Case(cm.score.sink(logits), unchanged, logits),
        "sink per batch": Case(cm.score.sink(own_logits), unchanged, own_logits),
        "no sink": Case(cm.score.sink(torch.full_like(logits, -torch.inf)), unchanged, logits - torch.inf),
        "softcap of alibi, and a sink": Case(
            cm.score.alibi(slopes) >> cm.score.softcap(2.0) >> cm.score.sink(logits),
            lambda s, d: softcap(alibi(s, d), d),
            logits,
        ),
        "silu": Case(cm.score.silu(), lambda s, _: silu(s), pointwise=True),
        "silu over a length": Case(cm.score.silu(300), lambda s, _: silu(s) / 300, pointwise=True),
        "silu over lengths, of a relative bias": Case(
            cm.score.relative_bias(own_tables, zero=30) >> cm.score.silu(lengths),
            lambda s, d: silu(relative(s, d)) / of_head(lengths),
            pointwise=True,
        ),
    }


@dataclass(frozen=True)
class Learned:
    """A modification with parameters that have gradients."""

    parameters: tuple[torch.Tensor, ...]
    make: Callable[..., Case]
    """The case of such parameters."""


def learned(batch: int, heads: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> dict[str, Learned]:
    """A case for each kind of modification and of parameter."""
    generator = torch.Generator().manual_seed(batch * 100 + heads)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    def of_head(x: torch.Tensor) -> torch.Tensor:
        return x.double()[..., None, None]

    def capped(s: torch.Tensor, cap: torch.Tensor) -> torch.Tensor:
        return of_head(cap) * torch.tanh(s / of_head(cap))

    def softcap(cap: torch.Tensor) -> Case:
        return Case(cm.score.softcap(cap), lambda s, _: capped(s, cap))

    def alibi(slopes: torch.Tensor) -> Case:
        return Case(cm.score.alibi(slopes), lambda s, d: s + of_head(slopes) * d)

    def symmetric(slopes: torch.Tensor) -> Case:
        return Case(cm.score.alibi(slopes, symmetric=True), lambda s, d: s - of_head(slopes) * d.abs())

    def relative(table: torch.Tensor) -> Case:
        return Case(
            cm.score.relative_bias(table, zero=5),
            lambda s, d: s + table.double()[..., (d + 5).clamp(0, table.shape[-1] - 1)],
        )

    def sink(logits: torch.Tensor) -> Case:
        return Case(cm.score.sink(logits), lambda s, _: s, logits)

    def silu(lengths: torch.Tensor) -> Case:
        silu = torch.nn.functional.silu
        return Case(cm.score.silu(lengths), lambda s, _: silu(s) / of_head(lengths), pointwise=True)

    def together(slopes: torch.Tensor, cap: torch.Tensor, logits: torch.Tensor) -> Case:
        score = cm.score.alibi(slopes) >> cm.score.softcap(cap) >> cm.score.sink(logits)
        return Case(score, lambda s, d: capped(s + of_head(slopes) * d, cap), logits)

    def twice(slopes: torch.Tensor) -> Case:
        one = cm.score.alibi(slopes)
        return Case(
            one >> cm.score.softcap(3.0) >> one,
            lambda s, d: 3 * torch.tanh((s + of_head(slopes) * d) / 3) + of_head(slopes) * d,
        )

    def mod(scale: torch.Tensor, bias: torch.Tensor) -> Case:
        score = cm.from_score_mod(
            lambda s, b, h, q, kv: torch.where(kv > q, s * scale, torch.exp(bias[h, kv % 7] - s * s))
        )
        return Case(
            score,
            lambda s, d: torch.where(
                d > 0,
                s * scale.double(),
                torch.exp(bias.double()[:, None, torch.arange(s.shape[-1], device=s.device) % 7] - s * s),
            ),
        )

    return {
        "softcap": Learned((random(heads).abs() + 0.5,), softcap),
        "alibi": Learned((random(heads),), alibi),
        "symmetric alibi per batch": Learned((random(batch, heads),), symmetric),
        "relative bias": Learned((random(11),), relative),
        "relative bias per batch": Learned((random(batch, heads, 12),), relative),
        "sink": Learned((random(heads),), sink),
        "sink per batch": Learned((2 * random(batch, heads),), sink),
        "silu over lengths": Learned((random(batch, 1).abs() + 1,), silu),
        "softcap of alibi, and a sink": Learned((random(heads), random(heads).abs() + 0.5, random(heads)), together),
        "alibi twice": Learned((random(heads),), twice),
        "score_mod": Learned((random(), random(heads, 7)), mod),
    }


def dense_scored(
    case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The oracle: out and lse in float64, from bool `visible` [B or 1, Hq or 1, Sq, Skv]; of weights, lse is 0."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    visible = visible.to(q.device)
    row, key = (torch.arange(x.shape[2], device=q.device) for x in (q, k))
    scores = case.modify(scale * (q @ k.mT), key[None, :] - row[:, None])
    if case.pointwise:
        return scores.masked_fill(~visible, 0.0) @ v, torch.zeros(q.shape[:3], dtype=q.dtype, device=q.device)
    scores = scores.masked_fill(~visible, -torch.inf)
    if case.sink is not None:
        scores = torch.cat([scores, case.sink.double()[..., None, None].expand(*q.shape[:3], 1)], dim=-1)
        v = torch.cat([v, torch.zeros_like(v[:, :, :1])], dim=2)
    lse = scores.logsumexp(dim=-1)
    return torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]) @ v, lse


def kernel_values(score: Score, op: AttentionOp) -> dict[str, Any]:
    """The arguments of a kernel that a modification adds, by name, for the interpreters."""
    scoring = Scoring(score.plan.text, [table.data for table in score.plan.captured], score.plan.numbers)
    values: list[Any] = []
    for value in scoring.captured():
        values += [*_table(value, True)] if isinstance(value, torch.Tensor) else [value]
    if scoring.sink is not None:
        values += _table(scoring.sink, False)
    return dict(zip([argument.name for argument in score_arguments(op)], values, strict=True))


def _table(table: torch.Tensor, with_entries: bool) -> list[Any]:
    """The memory of a table, its entries, and its strides."""
    kept = table.contiguous()
    batches, heads, entries = kept.shape
    strides = [entries * heads if batches > 1 else 0, entries if heads > 1 else 0]
    return [memory(kept), *([entries] if with_entries else []), *strides]
