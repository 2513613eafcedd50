"""Score modifications on the CPU against dense attention in float64, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compare import TOLERANCE, assert_close, random_inputs
from sample_masks import MASKS
from score_cases import Case, cases, dense_scored

import compilemask as cm
from compilemask.errors import CompileMaskError, ScoreError

HEADLINES = ["causal", "hstu", "shared prompt", "clear"]
NAMES = list(cases(1, 1))
LSE_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-4, torch.bfloat16: 1e-4}
SIZES = [(137, 137), (200, 333)]


def check(case: Case, mask: Any, queries: int, keys: int, dtype: torch.dtype, batch: int = 2) -> None:
    q, k, v = random_inputs(batch, 4, 2, queries, keys, 16, dtype)
    visible = mask.dense(queries, keys)
    lse = None
    if case.pointwise:
        out = cm.attention(q, k, v, mask, score=case.score)
    else:
        out, lse = cm.attention(q, k, v, mask, score=case.score, return_lse=True)
    expected, expected_lse = dense_scored(case, q, k, v, visible)
    assert out.dtype == dtype
    assert_close(out, expected, TOLERANCE[dtype], "out")
    if lse is not None:
        assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mask", HEADLINES)
@pytest.mark.parametrize("name", NAMES)
def test_headline_masks(name: str, mask: str, dtype: torch.dtype) -> None:
    case = cases(2, 4, dtype=torch.float64 if dtype == torch.float64 else torch.float32)[name]
    for queries, keys in SIZES:
        check(case, MASKS[mask](queries, keys), queries, keys, dtype)


@pytest.mark.parametrize("parameters", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["alibi", "relative bias per batch", "sink per batch"])
def test_types_of_parameters(name: str, parameters: torch.dtype) -> None:
    check(cases(2, 4, dtype=parameters)[name], cm.causal(), 137, 137, torch.float32)


@pytest.mark.parametrize("mask", ["padding per head", "causal documents per batch"])
@pytest.mark.parametrize("name", ["alibi", "sink per batch", "relative bias per batch"])
def test_masks_per_batch_and_head(name: str, mask: str) -> None:
    check(cases(2, 4)[name], MASKS[mask](137, 137), 137, 137, torch.float32)


def test_rows_that_see_nothing() -> None:
    q, k, v = random_inputs(1, 2, 1, 140, 140, 16)
    mask = cm.padding(torch.zeros(1, dtype=torch.int32))
    logits = torch.tensor([0.5, -torch.inf])
    out, lse = cm.attention(q, k, v, mask, score=cm.score.sink(logits), return_lse=True)
    assert not out.any()
    assert torch.equal(lse, logits[None, :, None].expand_as(lse))
    out, lse = cm.attention(q, k, v, mask, score=cm.score.softcap(3.0), return_lse=True)
    assert not out.any()
    assert (lse == -torch.inf).all()
    assert not cm.attention(q, k, v, mask, score=cm.score.silu()).any()


def test_values_are_read_when_attention_runs() -> None:
    q, k, v = random_inputs(1, 2, 1, 50, 50, 16)
    logits = torch.zeros(2)
    score = cm.score.sink(logits)
    before = cm.attention(q, k, v, cm.causal(), score=score)
    logits += 1.0
    after = cm.attention(q, k, v, cm.causal(), score=score)
    assert not torch.equal(before, after)
    expected, _ = dense_scored(Case(score, lambda s, _: s, logits), q, k, v, cm.causal().dense(50, 50))
    assert_close(after, expected, TOLERANCE[torch.float32])


def test_structure_does_not_depend_on_values() -> None:
    for a, b in (
        (cm.score.softcap(2.0), cm.score.softcap(30.0)),
        (cm.score.silu(5.0), cm.score.silu(7)),
        (cm.score.alibi(torch.ones(4)), cm.score.alibi(torch.zeros(2, 8))),
        (cm.score.relative_bias(torch.ones(5), zero=3), cm.score.relative_bias(torch.ones(2, 9), zero=3)),
    ):
        assert a.plan.text == b.plan.text


def test_one_tensor_is_one_argument() -> None:
    slopes = torch.ones(4)
    first = cm.score.alibi(slopes)
    assert len((first >> first).plan.captured) == 1
    assert len((first >> cm.score.alibi(torch.ones(4))).plan.captured) == 2


def test_compiled_models_trace_scores() -> None:
    q, k, v = random_inputs(1, 2, 1, 137, 137, 16)
    descriptor = cm.compile(cm.causal()).descriptor(137, 137)
    for name in ("softcap of alibi, and a sink", "silu over a length"):
        score = cases(1, 2)[name].score
        traced = torch.compile(
            lambda q, k, v, score=score: cm.attention(q, k, v, descriptor, score=score),
            fullgraph=True,
            backend="aot_eager",
        )
        assert torch.equal(traced(q, k, v), cm.attention(q, k, v, descriptor, score=score))


def test_alibi_slopes_are_those_of_the_paper() -> None:
    assert torch.equal(cm.score.alibi_slopes(8), 0.5 ** torch.arange(1.0, 9.0))
    assert torch.allclose(cm.score.alibi_slopes(6), 2 ** torch.tensor([-2.0, -4, -6, -8, -1, -3]))


make: Any = cm.score
BAD = [
    lambda: make.softcap(0.0),
    lambda: make.softcap(-1),
    lambda: make.softcap(float("inf")),
    lambda: make.softcap(1e39),
    lambda: make.softcap(10**400),
    lambda: make.softcap(True),
    lambda: make.softcap("30"),
    lambda: make.softcap(torch.ones(2, 3, 4, 5)),
    lambda: make.softcap(torch.tensor(3)),
    lambda: make.alibi(0.5),
    lambda: make.alibi(["a"]),
    lambda: make.alibi([[1.0], [1.0, 2.0]]),
    lambda: make.alibi(torch.ones(0)),
    lambda: make.alibi(torch.ones(2, dtype=torch.complex64)),
    lambda: make.alibi_slopes(0),
    lambda: make.relative_bias(torch.ones(4)),
    lambda: make.relative_bias(torch.ones(5), zero=5),
    lambda: make.relative_bias(torch.ones(5), zero=1.0),
    lambda: make.relative_bias(torch.tensor(1.0)),
    lambda: make.relative_bias(torch.ones(3, 0)),
    lambda: make.sink(torch.ones(1, 1, 1)),
    lambda: make.sink(torch.ones(2, dtype=torch.int32)),
    lambda: make.sink(torch.ones(2)) >> make.sink(torch.ones(2)),
    lambda: make.sink(torch.ones(2)) >> make.silu(),
    lambda: make.silu() >> make.softcap(3.0),
    lambda: make.silu() >> make.sink(torch.ones(2)),
    lambda: make.silu(0),
    lambda: make.silu(float("nan")),
]


@pytest.mark.parametrize("make", BAD)
def test_bad_parameters(make: Any) -> None:
    with pytest.raises(ScoreError):
        make()


def test_scores_that_do_not_fit() -> None:
    q, k, v = random_inputs(2, 4, 2, 20, 20, 16)
    wrong: list[tuple[Any, str]] = [
        (cm.score.sink(torch.zeros(3)), "heads 3, q has 4"),
        (cm.score.alibi(torch.zeros(3, 4)), "batch 3, q has 2"),
        (cm.score.sink(torch.zeros(4, device="meta")), "on meta, q on cpu"),
        ("softcap", "score is a str"),
        (lambda score, b, h, q_idx, kv_idx: score, "score is a function"),
    ]
    for score, message in wrong:
        with pytest.raises(ScoreError, match=message):
            cm.attention(q, k, v, cm.causal(), score=score)
    with pytest.raises(ScoreError, match="no log-sum-exp"):
        cm.attention(q, k, v, cm.causal(), score=cm.score.silu(), return_lse=True)
    with pytest.raises(TypeError):
        _ = cm.score.softcap(2.0) >> 3  # pyright: ignore[reportOperatorIssue]
    assert issubclass(ScoreError, CompileMaskError)
