"""Attention kernels with modified scores, executed in numpy, against dense attention in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from compare import TOLERANCE, assert_close, random_inputs
from sample_masks import MASKS
from score_cases import Case, cases, dense_scored, kernel_values
from test_attention_kernel import ELEMENT, LSE_TOLERANCE, run

import compilemask as cm
from compilemask.language.mask import Mask
from compilemask.lowering.tiling_to_tt.attention import AttentionConfig, attention_module, attention_op, emit
from compilemask.runtime.scoring import score_op
from compilemask.score import Score

WIDE = AttentionConfig(128, 128)
NAMES = list(cases(1, 1))


def attend(
    score: Score, config: AttentionConfig, mask: Mask, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of the kernel of a modification."""
    module = attention_module(q.shape[3], ELEMENT[q.dtype], score=score_op(score.plan.text))
    op = attention_op(module)
    descriptor = cm.compile(mask).descriptor(q.shape[2], k.shape[2]).check()
    values: dict[str, Any] = kernel_values(score, op)
    return run(emit(op, config), config, descriptor, q, k, v, scale, **values)


def check(
    case: Case,
    mask: Mask,
    queries: int,
    keys: int,
    *,
    dtype: torch.dtype = torch.float32,
    config: AttentionConfig = WIDE,
    scale: float = 0.25,
) -> None:
    """Random inputs, NaN in all keys that nobody sees, against the oracle."""
    q, k, v = random_inputs(2, 2, 1, queries, keys, 16, dtype)
    visible = mask.dense(queries, keys)
    unseen = ~visible.flatten(0, 2).any(dim=0)
    k[:, :, unseen], v[:, :, unseen] = torch.nan, torch.nan
    out, lse = attend(case.score, config, mask, q, k, v, scale)
    expected, expected_lse = dense_scored(case, q, k.nan_to_num(), v.nan_to_num(), visible, scale)
    assert_close(out, expected, TOLERANCE[dtype], "out")
    if not case.pointwise:
        assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")


@pytest.mark.parametrize("mask", ["causal", "hstu", "shared prompt", "clear", "scattered"])
@pytest.mark.parametrize("name", NAMES)
def test_masks(name: str, mask: str) -> None:
    check(cases(2, 2)[name], MASKS[mask](200, 200), 200, 200)


@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_types(name: str, dtype: torch.dtype, approximate: bool) -> None:
    config = replace(WIDE, approximate=approximate)
    check(cases(2, 2, dtype=dtype)[name], MASKS["causal"](137, 137), 137, 137, dtype=dtype, config=config)


@pytest.mark.parametrize("name", NAMES)
def test_blocks_and_lengths(name: str) -> None:
    check(cases(2, 2)[name], MASKS["window"](150, 300), 150, 300, config=AttentionConfig(64, 32))
    check(cases(2, 2)[name], cm.full(), 17, 260, scale=0.5)


@pytest.mark.parametrize("name", ["softcap", "alibi", "silu"])
def test_a_negative_scale(name: str) -> None:
    check(cases(2, 2)[name], cm.causal(), 140, 140, scale=-0.5)


def test_rows_that_see_nothing() -> None:
    for name in ("sink", "softcap", "silu over a length"):
        check(cases(2, 2)[name], cm.where(lambda q, kv: (q % 3 == 0) & (kv < 100)), 140, 140)


@pytest.mark.parametrize("cap", [0.01, 1.0, 1e4])
def test_tanh_is_exact_for_small_and_large_caps(cap: float) -> None:
    case = Case(cm.score.softcap(cap), lambda s, _: cap * torch.tanh(s / cap))
    check(case, cm.causal(), 140, 140, scale=1.0)


def test_an_index_outside_of_a_table_reads_its_nearest_entry() -> None:
    """Memory outside of the tables is not touched: the interpreter would say so."""
    table = torch.randn(2, 3)
    case = Case(cm.score.relative_bias(table), lambda s, d: s + table.double()[:, (d + 1).clamp(0, 2)])
    check(case, cm.full(), 140, 300)
