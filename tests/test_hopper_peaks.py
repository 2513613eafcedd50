"""The Hopper kernel that keeps a row's first peak, and the one that redoes tiles of which that makes rows inexact."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, random_inputs
from sample_masks import MASKS
from test_hopper_kernel import kernel_of, run
from xdsl.dialects.builtin import bf16

import compilemask as cm
from compilemask.errors import LoweringError
from compilemask.language.mask import Mask
from compilemask.lowering.tiling_to_tt.attention import attention_module, attention_op
from compilemask.lowering.tiling_to_ttg.attention import HopperConfig, Schedule, emit
from compilemask.runtime import compile
from compilemask.runtime.scoring import score_op

SCHEDULES = [Schedule.GRID, Schedule.STATIC, Schedule.ATOMIC]


class Attention:
    """One attention by both kernels, one behind the other."""

    def __init__(self, mask: Mask, *inputs: torch.Tensor, rows: int = 128, schedule: Schedule = Schedule.GRID) -> None:
        q, k, v = inputs
        head_dim, scale = q.shape[3], 1 / math.sqrt(q.shape[3])
        chosen = HopperConfig.choose(head_dim, bf16, rows, Schedule.ATOMIC)
        keeping, redoing = replace(chosen, schedule=schedule, keeps_peaks=True), replace(chosen, redoes=True)
        descriptor = compile(mask).descriptor(q.shape[2], k.shape[2], rows=rows)
        redo = np.zeros(1 + q.shape[0] * q.shape[1] * descriptor.layout.query_tiles, np.int32)
        results = run(keeping, descriptor, q, k, v, scale, redo=redo)
        self.named = redo[1:].nonzero()[0].tolist()
        """Tiles of all heads that are computed again."""
        assert redo[0] == bool(self.named)
        self.out, self.lse = run(redoing, descriptor, q, k, v, scale, redo=redo, results=results)
        assert not redo.any()
        visible = mask.dense(q.shape[2], k.shape[2])
        expected, expected_lse = dense_attention(q, k, v, visible, scale)
        assert_close(self.out, expected, TOLERANCE[torch.bfloat16], "out")
        assert_close(self.lse, expected_lse, 1e-4, "lse")


def inputs(queries: int, keys: int, head_dim: int = 64, heads: int = 1) -> tuple[torch.Tensor, ...]:
    return random_inputs(1, heads, heads, queries, keys, head_dim, torch.bfloat16)


@pytest.mark.parametrize("rows", [64, 128, 192])
@pytest.mark.parametrize("name", MASKS)
def test_ordinary_scores_are_computed_once(name: str, rows: int) -> None:
    heads = 4 if name.endswith("per head") else 1
    q, k, v = random_inputs(2, heads, heads, 300, 300, 64, torch.bfloat16)
    assert not Attention(MASKS[name](300, 300), q, k, v, rows=rows).named


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rows_that_see_nothing_are_no_reason(schedule: Schedule) -> None:
    mask = cm.where(lambda q, kv: (q % 3 == 0) & (kv < 150))
    assert not Attention(mask, *inputs(200, 200), schedule=schedule).named


def test_rows_that_see_nothing_in_their_first_visit() -> None:
    """Their peak is 0, and the weights of all that they see are small, or large."""
    mask = cm.causal() & cm.document([0, 200, 300])
    assert not Attention(mask, *inputs(300, 300)).named


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("factor", [40.0, -40.0])
def test_scores_far_above_the_first_peak(factor: float, schedule: Schedule) -> None:
    """In one head keys of a tile that is not visited first are the queries times a factor."""
    q, k, v = inputs(384, 384, heads=2)
    q[:, 1] = q[:, 1, :1]
    k[:, 1, 128:256] = factor * q[:, 1, :1]
    attention = Attention(cm.full(), q, k, v, schedule=schedule)
    assert attention.named == ([3, 4, 5] if factor > 0 else [])


def test_scores_that_all_lie_far_below_zero() -> None:
    """Rows that see nothing in their first visit, and then scores of which all weights vanish."""
    mask = cm.where(lambda q, kv: (kv >= 128) | (q >= 64)) - cm.where(lambda q, kv: (kv == 200) & (q < 300))
    q, k, v = inputs(128, 300)
    k[:, :, 128:] = -30 * q[:, :, :1]
    q[:, :, :64] = q[:, :, :1]
    assert Attention(mask, q, k, v).named == [0]


def test_values_too_large_for_large_weights() -> None:
    q, k, v = inputs(128, 256)
    k[:, :, 128:] = 2 * q[:, :, :1]
    q[:, :, :] = q[:, :, :1]
    v *= 2.0**115
    assert Attention(cm.full(), q, k, v).named == [0]


def test_what_cannot_keep_peaks() -> None:
    op = attention_op(attention_module(64, bf16, score=score_op(cm.score.softcap(3.0).plan.text)))
    with pytest.raises(LoweringError, match="modified scores"):
        emit(op, HopperConfig(keeps_peaks=True))
    with pytest.raises(LoweringError, match="peaks for f16"):
        kernel_of(64, torch.float16, HopperConfig(keeps_peaks=True))
    with pytest.raises(LoweringError, match="redone"):
        HopperConfig(redoes=True)
    assert kernel_of(64, torch.bfloat16, HopperConfig(keeps_peaks=True)) is not None
