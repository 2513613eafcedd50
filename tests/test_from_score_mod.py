"""FlexAttention's score_mods, unchanged, against FlexAttention's own eager attention."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_close, random_inputs
from torch.nn.attention.flex_attention import flex_attention

import compilemask as cm

BATCH, HEADS, LENGTH = 2, 4, 137
torch.manual_seed(0)
SLOPES, CAP = torch.rand(HEADS), torch.tensor(3.0)
BIAS, TABLE = torch.randn(BATCH, HEADS, LENGTH, LENGTH), torch.randn(HEADS, 2 * LENGTH, dtype=torch.bfloat16)
DOCUMENT, IS_KEPT = torch.arange(LENGTH) // 40, torch.rand(LENGTH) > 0.5

MODS: dict[str, Callable[..., torch.Tensor]] = {
    "alibi": lambda score, b, h, q, kv: score + (kv - q) * SLOPES[h],
    "softcap": lambda score, b, h, q, kv: 20.0 * torch.tanh(score / 20),
    "dense bias": lambda score, b, h, q, kv: score + BIAS[b, h, q, kv],
    "relative bias": lambda score, b, h, q, kv: score + TABLE[h, q - kv + LENGTH],
    "causal": lambda score, b, h, q, kv: torch.where(q >= kv, score, -float("inf")),
    "documents": lambda score, b, h, q, kv: torch.where(
        DOCUMENT[q] == DOCUMENT[kv], score * 0.5, score - torch.abs(q - kv).float() * 0.1
    ),
    "truth values": lambda score, b, h, q, kv: score * (IS_KEPT[q] | (q > kv)) - IS_KEPT[kv].float(),
    "functions": lambda score, b, h, q, kv: (score.sigmoid() * CAP + torch.exp(-(q - kv).abs() / 10)).clamp(max=2.5),
    "more functions": lambda score, b, h, q, kv: (
        torch.nn.functional.silu(score) + 1 / (1 + score.square()) + torch.rsqrt(kv + 1.0) - score.abs()
    ),
    "signs": lambda score, b, h, q, kv: score + torch.sign(score * 0.1) + torch.sign(q - kv) * torch.floor(score),
    "batch and head": lambda score, b, h, q, kv: score * (h + 1) + b / 2,
    "constants": lambda score, b, h, q, kv: score + torch.tensor(0.5) * (kv % 7) - torch.maximum(score, q * 0.01),
    "identity": lambda score, b, h, q, kv: score,
}


def eager(*args: Any, **named: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return flex_attention(*args, **named)


@pytest.mark.parametrize("name", MODS)
def test_score_mods(name: str) -> None:
    q, k, v = random_inputs(BATCH, HEADS, HEADS, LENGTH, LENGTH, 16)
    flex: Any = cm.flex_attention
    out, lse = flex(q, k, v, score_mod=MODS[name], return_lse=True)
    expected, expected_lse = eager(q, k, v, score_mod=MODS[name], return_lse=True)
    assert_close(out, expected, 1e-5, "out")
    assert_close(lse, expected_lse, 1e-5, "lse")


def test_with_a_mask() -> None:
    q, k, v = random_inputs(BATCH, HEADS, HEADS, LENGTH, LENGTH, 16)
    mod = MODS["alibi"]
    out = cm.attention(q, k, v, cm.causal(), score=cm.from_score_mod(mod))
    expected = eager(q, k, v, score_mod=lambda s, b, h, q, kv: torch.where(q >= kv, mod(s, b, h, q, kv), -torch.inf))
    assert_close(out, expected, 1e-5)


def test_captured_tensors_are_read_when_attention_runs() -> None:
    q, k, v = random_inputs(1, 2, 2, 50, 50, 16)
    cap = torch.tensor(2.0)
    score = cm.from_score_mod(lambda score, b, h, q, kv: cap * torch.tanh(score / cap))
    before = cm.attention(q, k, v, cm.full(), score=score)
    cap.fill_(30.0)
    assert_close(
        cm.attention(q, k, v, cm.full(), score=score),
        cm.attention(q, k, v, cm.full(), score=cm.score.softcap(30.0)),
        1e-5,
    )
    assert not torch.equal(before, cm.attention(q, k, v, cm.full(), score=score))


def test_tables_for_more_heads_than_there_are() -> None:
    q, k, v = random_inputs(1, 2, 2, 50, 50, 16)
    assert cm.flex_attention(q, k, v, score_mod=MODS["alibi"], enable_gqa=True).shape == q.shape  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(cm.ScoreError, match="SLOPES of the score has heads 4, q has 2"):
        cm.attention(q, k, v, cm.full(), score=cm.from_score_mod(MODS["alibi"]))


def test_an_unused_table_is_no_parameter() -> None:
    score = cm.from_score_mod(
        lambda score, b, h, q, kv: torch.where(q >= 0, score, score + BIAS[b, h, q, kv]) * SLOPES[h]
    )
    assert [table.name for table in score.plan.captured] == ["BIAS", "SLOPES"]
    score = cm.from_score_mod(lambda score, b, h, q, kv: torch.where(torch.tensor(True), score, BIAS[b, h, q, kv]))
    assert not score.plan.captured


REFUSED: list[tuple[Callable[..., Any] | int, str]] = [
    (lambda s, b, h, q, kv: s if s > 0 else -s, "asks for the value"),
    (lambda s, b, h, q, kv: s // 2, "floordiv of floats"),
    (lambda s, b, h, q, kv: s[None].repeat(2), "calls repeat"),
    (lambda s, b, h, q, kv: torch.stack([s, s]), r"returns a tensor of shape \[2\]"),
    (lambda s, b, h, q, kv: torch.lgamma(s), "calls lgamma, .* scores are made of arithmetic"),
    (lambda s, b, h, q, kv: BIAS[s, 0, 0, 0], "float where an integer"),
    (lambda s, b, h, q, kv: s.int(), "converts a float to an integer"),
    (lambda s, b, h, q, kv: s.to(torch.int32), "float where an integer"),
    (lambda s, b, h, q, kv: s.type(torch.int64) * 0.5, "float where an integer"),
    (lambda s, b, h, q, kv: s.to(torch.int16), "float where an integer"),
    (lambda s, b, h, q, kv: s.add_(1), "in place"),
    (lambda s, b, h, q, kv: s + torch.rand(1), "random"),
    (lambda s, b, h, q, kv: s + 1 / 0, "ZeroDivisionError"),
    (3, "got int"),
]


@pytest.mark.parametrize(("mod", "message"), REFUSED)
def test_what_is_refused(mod: Any, message: str) -> None:
    with pytest.raises(cm.ScoreError, match=message) as caught:
        cm.from_score_mod(mod)
    assert "mask_mod" not in str(caught.value).split("(at ")[0]


def test_a_table_with_fewer_entries_than_positions_is_refused() -> None:
    bias, plane = torch.randn(30), torch.randn(30, 40)
    scores = {
        "bias of the score has entries for 30 queries, got 40": lambda s, b, h, q, kv: s + bias[q],
        "bias of the score has entries for 30 keys, got 35": lambda s, b, h, q, kv: s + bias[kv],
        "plane of the score has entries for 30 keys, got 35": lambda s, b, h, q, kv: s + plane[kv, q],
    }
    q, k = torch.randn(1, 1, 40, 16), torch.randn(1, 1, 35, 16)
    for message, mod in scores.items():
        score = cm.from_score_mod(mod)
        cm.attention(q[:, :, :30], k[:, :, :30], k[:, :, :30], cm.full(), score=score)
        with pytest.raises(cm.ScoreError, match=message):
            cm.attention(q, k, k, cm.full(), score=score)


def test_what_is_written_to_the_base_of_a_view_counts() -> None:
    bias = torch.randn(30, 40, requires_grad=True)
    score = cm.from_score_mod(lambda s, b, h, q, kv: s + bias.T[q, kv])
    q, k, v = torch.randn(1, 1, 40, 16), torch.randn(1, 1, 30, 16), torch.randn(1, 1, 30, 16)
    for _ in range(2):
        out = cm.attention(q, k, v, cm.full(), score=score)
        expected = ((q @ k.mT) / 4 + bias.T).softmax(-1) @ v
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
        gradient = torch.randn_like(out)
        (own,), (wanted,) = (torch.autograd.grad(x, bias, gradient) for x in (out, expected))
        torch.testing.assert_close(own, wanted, atol=1e-5, rtol=1e-5)
        with torch.no_grad():
            bias.add_(torch.randn_like(bias))
