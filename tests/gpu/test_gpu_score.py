"""Score modifications on the GPU against dense attention in float64."""

from __future__ import annotations

import pytest
import torch
from compare import TOLERANCE, assert_close, random_inputs
from sample_masks import MASKS
from score_cases import Case, cases, dense_scored

import compilemask as cm
from compilemask.runtime import compiled_kernels

TYPES = [torch.float32, torch.float16, torch.bfloat16]
HEADLINES = ["causal", "hstu", "shared prompt", "clear"]
NAMES = list(cases(1, 1))
SIZES = [(137, 137), (1000, 1000), (1024, 1024), (333, 1111)]
# The hardware's tanh is exact to 2^-11, which is what scores in half precision are.
LSE_TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-4, torch.bfloat16: 5e-4}


def check(case: Case, mask_name: str, queries: int, keys: int, dim: int, dtype: torch.dtype) -> None:
    """Attention over memory full of NaN against the oracle."""
    mask = MASKS[mask_name](queries, keys)
    q, k, v = random_inputs(2, 4, 2, queries, keys, dim, dtype, "cuda")
    poison = [torch.full_like(q, torch.nan) for _ in range(3)]
    del poison
    lse = None
    if case.pointwise:
        out = cm.attention(q, k, v, mask, score=case.score)
    else:
        out, lse = cm.attention(q, k, v, mask, score=case.score, return_lse=True)
    expected, expected_lse = dense_scored(case, q, k, v, mask.dense(queries, keys))
    assert out.dtype == dtype
    assert_close(out, expected, TOLERANCE[dtype], "out")
    if lse is not None:
        assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("mask", HEADLINES)
@pytest.mark.parametrize("name", NAMES)
def test_headline_masks(name: str, mask: str, dim: int, dtype: torch.dtype) -> None:
    for queries, keys in SIZES:
        check(cases(2, 4, "cuda")[name], mask, queries, keys, dim, dtype)


@pytest.mark.parametrize("dim", [16, 72, 256])
@pytest.mark.parametrize("name", NAMES)
def test_other_head_dims(name: str, dim: int) -> None:
    check(cases(2, 4, "cuda")[name], "causal", 333, 333, dim, torch.float16)


@pytest.mark.parametrize("parameters", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["alibi", "relative bias per batch", "sink per batch"])
def test_types_of_parameters(name: str, parameters: torch.dtype) -> None:
    check(cases(2, 4, "cuda", parameters)[name], "causal", 300, 300, 64, torch.float16)


def test_rows_that_see_nothing() -> None:
    q, k, v = random_inputs(1, 2, 1, 300, 300, 64, torch.float16, "cuda")
    mask = cm.padding(torch.zeros(1, dtype=torch.int32, device="cuda"))
    logits = torch.tensor([0.5, -torch.inf], device="cuda")
    out, lse = cm.attention(q, k, v, mask, score=cm.score.sink(logits), return_lse=True)
    assert not out.any()
    assert_close(lse, logits[None, :, None].expand_as(lse), 1e-6)
    assert not cm.attention(q, k, v, mask, score=cm.score.silu()).any()
    _, lse = cm.attention(q, k, v, mask, score=cm.score.softcap(3.0), return_lse=True)
    assert (lse == -torch.inf).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_score_mods(dtype: torch.dtype) -> None:
    q, k, v = random_inputs(2, 4, 4, 300, 300, 64, dtype, "cuda")
    bias = torch.randn(2, 4, 300, 300, device="cuda")
    ids = torch.arange(300, device="cuda") // 70

    def mod(score, b, h, q, kv):
        return torch.where(ids[q] == ids[kv], score + bias[b, h, q, kv], -float("inf"))

    out = cm.flex_attention(q, k, v, score_mod=mod)
    assert isinstance(out, torch.Tensor)
    scores = (q.double() @ k.double().mT) / 8 + bias.double()
    scores = scores.masked_fill(ids[:, None] != ids[None, :], -torch.inf)
    assert_close(out, scores.softmax(-1) @ v.double(), TOLERANCE[dtype])


def test_new_values_compile_nothing() -> None:
    q, k, v = random_inputs(1, 4, 4, 300, 300, 64, torch.float16, "cuda")
    for cap in (2.0, 50.0):
        cm.attention(q, k, v, cm.causal(), score=cm.score.softcap(cap))
        if cap == 2.0:
            before = compiled_kernels()
    assert compiled_kernels() == before


def test_tables_may_be_strided_and_integers_wide() -> None:
    q, k, v = random_inputs(2, 4, 4, 137, 137, 64, torch.float16, "cuda")
    table = torch.randn(65, 4, device="cuda").T
    out = cm.attention(q, k, v, cm.causal(), score=cm.score.relative_bias(table))
    assert torch.equal(out, cm.attention(q, k, v, cm.causal(), score=cm.score.relative_bias(table.contiguous())))
    ids = torch.arange(137, device="cuda") // 7
    score = cm.from_score_mod(lambda score, b, h, q, kv: score + (ids[q] == ids[kv]).float())
    narrow = ids.int()
    other = cm.from_score_mod(lambda score, b, h, q, kv: score + (narrow[q] == narrow[kv]).float())
    assert torch.equal(cm.attention(q, k, v, cm.causal(), score=score), cm.attention(q, k, v, cm.causal(), score=other))


def test_a_score_in_a_graph() -> None:
    """Values are read when a captured graph runs."""
    q, k, v = random_inputs(1, 4, 4, 300, 300, 64, torch.float16, "cuda")
    logits = torch.zeros(4, device="cuda")
    descriptor = cm.compile(cm.causal()).descriptor(300, 300, q.device)
    score = cm.score.alibi(logits) >> cm.score.sink(logits)
    cm.attention(q, k, v, descriptor, score=score)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = cm.attention(q, k, v, descriptor, score=score)
    logits.fill_(0.25)
    graph.replay()
    assert torch.equal(out, cm.attention(q, k, v, descriptor, score=score))


def test_errors() -> None:
    q, k, v = random_inputs(1, 4, 4, 30, 30, 64, torch.float16, "cuda")
    for parameter, message in (
        (torch.zeros(4), "on cpu"),
        (torch.zeros(4, device="cuda", dtype=torch.float64), "float64"),
        (torch.zeros(3, device="cuda"), "heads 3"),
    ):
        with pytest.raises(cm.ScoreError, match=message):
            cm.attention(q, k, v, cm.causal(), score=cm.score.sink(parameter))
