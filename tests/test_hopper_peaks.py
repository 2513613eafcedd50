"""The Hopper kernel whose rows keep their first peak, and which computes again what that makes inexact."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, random_inputs
from sample_masks import MASKS
from test_hopper_kernel import kernel_of, run, storage
from xdsl.dialects.builtin import bf16

import compilemask as cm
from compilemask.dialects.semantics.triton_gpu import TensorMap
from compilemask.dialects.triton.ttg_types import TensorDescType
from compilemask.errors import LoweringError
from compilemask.language.mask import Mask
from compilemask.lowering.tiling_to_tt.attention import attention_module, attention_op
from compilemask.lowering.tiling_to_ttg.attention import HopperConfig, Schedule, emit
from compilemask.runtime import compile
from compilemask.runtime.scoring import score_op

SCHEDULES = [Schedule.GRID, Schedule.STATIC, Schedule.ATOMIC]


class CountedMap(TensorMap):
    """A tensor map that knows how often each box was loaded."""

    def __init__(self, array: np.ndarray) -> None:
        super().__init__(array)
        self.loads: Counter[tuple[int, ...]] = Counter()

    def load(self, coordinates: Sequence[int], type_: TensorDescType) -> np.ndarray:
        self.loads[tuple(int(x) for x in coordinates)] += 1
        return super().load(coordinates, type_)


class Attention:
    """Attention by a kernel that keeps peaks, which is correct."""

    def __init__(
        self,
        mask: Mask,
        *inputs: torch.Tensor,
        rows: int = 128,
        schedule: Schedule = Schedule.GRID,
        seed: int = 0,
        scale: float | None = None,
    ) -> None:
        q, k, v = inputs
        head_dim = q.shape[3]
        scale = 1 / math.sqrt(head_dim) if scale is None else scale
        config = HopperConfig.choose(head_dim, bf16, rows, schedule)
        assert config.keeps_peaks
        descriptor = compile(mask).descriptor(q.shape[2], k.shape[2], rows=rows)
        counted = CountedMap(storage(q))
        self.out, self.lse = run(config, descriptor, q, k, v, scale, seed=seed, query_map=counted)
        tiles, boxes = descriptor.layout.query_tiles, counted.loads.items()
        times = {((box[0] * q.shape[1] + box[1]) * tiles + box[2] // rows, count) for box, count in boxes}
        assert {count for _, count in times} <= {1, 2}
        self.again = sorted(tile for tile, count in times if count == 2)
        """Tiles of all heads that were computed again."""
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
    assert not Attention(MASKS[name](300, 300), q, k, v, rows=rows).again


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rows_that_see_nothing_are_no_reason(schedule: Schedule) -> None:
    mask = cm.where(lambda q, kv: (q % 3 == 0) & (kv < 150))
    assert not Attention(mask, *inputs(200, 200), schedule=schedule).again


def test_rows_that_see_nothing_in_their_first_visit() -> None:
    """Their peak is 0, and the weights of all that they see are small, or large."""
    mask = cm.causal() & cm.document([0, 200, 300])
    assert not Attention(mask, *inputs(300, 300)).again


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("factor", [40.0, -40.0])
def test_scores_far_above_the_first_peak(factor: float, schedule: Schedule) -> None:
    """In one head keys of a tile that is not visited first are the queries times a factor."""
    q, k, v = inputs(384, 384, heads=2)
    q[:, 1] = q[:, 1, :1]
    k[:, 1, 128:256] = factor * q[:, 1, :1]
    attention = Attention(cm.full(), q, k, v, schedule=schedule)
    assert attention.again == ([3, 4, 5] if factor > 0 else [])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("rows", [64, 128, 192])
def test_some_rows_of_many_tiles(rows: int, schedule: Schedule, seed: int) -> None:
    """Few rows are inexact, each in one warpgroup of a tile or more; programs compute many tiles again."""
    random = np.random.default_rng()
    heads, length = 3, 700
    q, k, v = random_inputs(1, heads, heads, length, length, 64, torch.bfloat16)
    chosen = [(int(random.integers(heads)), int(row)) for row in random.permutation(range(300, length))[:9]]
    for key, (head, row) in enumerate(chosen):
        q[:, head, row] = 4 * torch.sign(q[:, head, row])
        k[:, head, 10 * key] = 12 * torch.sign(q[:, head, row])
    attention = Attention(cm.causal(), q, k, v, rows=rows, schedule=schedule, seed=seed)
    tiles = -(-length // rows)
    assert {head * tiles + row // rows for head, row in chosen} <= set(attention.again)


def test_a_last_tile_with_few_rows() -> None:
    """The second warpgroup has no rows, or one."""
    for length in (129, 193):
        q, k, v = inputs(length, length)
        q[:, :, -1], k[:, :, 5] = 20.0, 20.0
        assert Attention(cm.causal(), q, k, v).again == [1]


def test_head_dim_128() -> None:
    q, k, v = inputs(300, 300, head_dim=128, heads=2)
    q[:, 1, 280], k[:, 1, 3] = 8.0, 16.0
    for schedule in SCHEDULES:
        assert Attention(cm.causal(), q, k, v, schedule=schedule).again == [5]


def test_nan_reaches_the_rows_that_see_it() -> None:
    q, k, v = inputs(300, 300)
    k[:, :, 200] = torch.nan
    config = HopperConfig.choose(64, bf16)
    out, lse = run(config, compile(cm.causal()).descriptor(300), q, k, v, 0.125)
    assert out[:, :, 200:].isnan().all()
    assert lse[:, :, 200:].isnan().all()
    visible = cm.causal().dense(200, 200)
    expected, expected_lse = dense_attention(q[:, :, :200], k[:, :, :200], v[:, :, :200], visible, 0.125)
    assert_close(out[:, :, :200], expected, TOLERANCE[torch.bfloat16], "out")
    assert_close(lse[:, :, :200], expected_lse, 1e-4, "lse")


def test_scores_that_all_lie_far_below_zero() -> None:
    """Rows that see nothing in their first visit, and then scores of which all weights vanish."""
    mask = cm.where(lambda q, kv: (kv >= 128) | (q >= 64)) - cm.where(lambda q, kv: (kv == 200) & (q < 300))
    q, k, v = inputs(128, 300)
    k[:, :, 128:] = -30 * q[:, :, :1]
    q[:, :, :64] = q[:, :, :1]
    assert Attention(mask, q, k, v).again == [0]


def test_full_tiles_that_lie_far_below_zero() -> None:
    """Rows see nothing in the first visit, a partial tile, and then a full one."""
    mask = cm.where(lambda q, kv: (kv >= 128) | (q < 64))
    q, k, v = inputs(128, 256)
    k[:, :, 128:] = -30 * q[:, :, :1]
    q[:, :, 64:] = q[:, :, :1]
    assert Attention(mask, q, k, v).again == [0]


@pytest.mark.parametrize("exponent", [-100, 0])
def test_small_weights_and_small_values(exponent: int) -> None:
    """Weights of 2^-55 beside a peak that rows did not see: products with small values would vanish."""
    mask = cm.where(lambda q, kv: (kv >= 128) | (q >= 4))
    q, k, v = inputs(128, 256)
    k[:, :, 128:] = -55 * math.log(2) * 8 / 64
    q[:] = 1.0
    v *= 2.0**exponent
    assert Attention(mask, q, k, v).again == [0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nobody_sees_nan_in_the_second_pass(schedule: Schedule) -> None:
    mask = cm.causal() - cm.cols(200, 250)
    q, k, v = inputs(600, 600, heads=2)
    k[:, :, 200:250], v[:, :, 200:250] = torch.nan, torch.nan
    q[:, 0, 100], q[:, 1, 300], q[:, 1, 500], k[:, :, 3] = 8.0, 8.0, 8.0, 16.0
    assert Attention(mask, q, k, v, schedule=schedule).again == [7, 8]


def test_values_too_large_for_large_weights() -> None:
    q, k, v = inputs(128, 256)
    k[:, :, 128:] = 2 * q[:, :, :1]
    q[:, :, :] = q[:, :, :1]
    v *= 2.0**115
    assert Attention(cm.full(), q, k, v).again == [0]


def test_what_cannot_keep_peaks() -> None:
    op = attention_op(attention_module(64, bf16, score=score_op(cm.score.softcap(3.0).plan.text)))
    with pytest.raises(LoweringError, match="modified scores"):
        emit(op, HopperConfig(keeps_peaks=True))
    with pytest.raises(LoweringError, match="peaks for f16"):
        kernel_of(64, torch.float16, HopperConfig(keeps_peaks=True))
    assert kernel_of(64, torch.bfloat16, HopperConfig(keeps_peaks=True)) is not None
