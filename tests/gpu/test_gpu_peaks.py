"""The Hopper kernel whose rows keep their first peak, on the GPU: where that is inexact, tiles are computed again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, random_inputs
from sample_masks import MASKS
from test_gpu_hopper import DIMS_AND_ROWS, dense, hopper, poison, variant

import compilemask as cm
from compilemask.runtime import compile
from compilemask.runtime.gpu.attention_cuda import attention_cuda

if torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs sm_90", allow_module_level=True)

SCHEDULES = ["grid", "static", "atomic"]
FRACTIONS = [0.001, 0.02, 1.0]
"""Of rows that have a key with a score far above all others."""
LAUNCHES = 100
LIMIT = 0.05
"""Of a row's largest difference, beside its largest value."""


def with_peaks(
    heads: tuple[int, int], length: int, dim: int, fraction: float, batch: int = 1
) -> tuple[torch.Tensor, ...]:
    """bf16 inputs; some queries are long, and so are two of the first keys, and the same or the opposite."""
    q, k, v = random_inputs(batch, *heads, length, length, dim, torch.bfloat16, "cuda")
    long = torch.rand(q.shape[:3], device="cuda") < fraction
    direction = torch.sign(torch.randn(dim, device="cuda", dtype=torch.bfloat16))
    q[long] = 12 * direction
    k[:, :, 1], k[:, :, min(77, length - 1)] = 12 * direction, -12 * direction
    return q, k, v


def check(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, schedule: str, rows: int) -> None:
    """The kernel in memory full of NaN, against the oracle and, row by row, against one that looks for peaks."""
    length = q.shape[2]
    config = replace(variant(schedule, q.shape[3], q.dtype, rows), keeps_peaks=True)
    descriptor = compile(MASKS[name](length, length)).descriptor(length, length, q.device, rows=rows)
    poison(q)
    out, lse = hopper(q, k, v, descriptor, config)
    expected, expected_lse = dense_attention(q, k, v, dense(name, length, length))
    assert_close(out, expected, TOLERANCE[torch.bfloat16], "out")
    assert_close(lse, expected_lse, 1e-4, "lse")
    looking = hopper(q, k, v, descriptor, replace(config, keeps_peaks=False))[0]
    # A few wrong rows would be lost in the norm of all.
    difference = (out.float() - looking.float()).abs().amax(dim=-1)
    assert (difference <= LIMIT * looking.float().abs().amax(dim=-1).clamp(min=0.1)).all()


@pytest.mark.parametrize("fraction", FRACTIONS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("dim", "rows"), DIMS_AND_ROWS)
@pytest.mark.parametrize("name", ["causal", "shared prompt", "hstu"])
def test_scores_far_above_the_first_peak(name: str, dim: int, rows: int, schedule: str, fraction: float) -> None:
    for length in (300, 2048, 4001):
        q, k, v = with_peaks((4, 2), length, dim, fraction, batch=2)
        check(name, q, k, v, schedule, rows)


@pytest.mark.parametrize("dim", [64, 128])
def test_the_operator(dim: int) -> None:
    q, k, v = with_peaks((8, 2), 8192, dim, 0.01)
    mask = cm.causal() & cm.document([0, 3000, 8192])
    out, lse = cm.attention(q, k, v, mask, return_lse=True)
    portable, portable_lse = attention_cuda(q, k, v, compile(mask).descriptor(8192, 8192, q.device), dim**-0.5)
    assert_close(out, portable, TOLERANCE[torch.bfloat16], "out")
    assert_close(lse, portable_lse, 1e-5, "lse")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("dim", "rows"), [(128, 128), (64, 192)])
def test_launches_are_equal_bit_by_bit(dim: int, rows: int, schedule: str) -> None:
    q, k, v = with_peaks((8, 2), 3000, dim, 0.02)
    config = replace(variant(schedule, dim, q.dtype, rows), keeps_peaks=True)
    descriptor = compile(cm.causal()).descriptor(3000, 3000, q.device, rows=rows)
    first, first_lse = hopper(q, k, v, descriptor, config)
    assert first.isfinite().all()
    for _ in range(LAUNCHES):
        poison(q)
        out, lse = hopper(q, k, v, descriptor, config)
        assert torch.equal(out, first)
        assert torch.equal(lse, first_lse)


def test_values_too_large_for_large_weights() -> None:
    q, k, v = with_peaks((4, 4), 1024, 128, 0.1)
    v *= 2.0**115
    out, _ = cm.attention(q, k, v, cm.causal(), return_lse=True)
    expected, _ = dense_attention(q, k, v * 2.0**-115, cm.causal().dense(1024, 1024).cuda())
    assert_close(out.double() * 2.0**-115, expected, TOLERANCE[torch.bfloat16], "out")


def test_nan_reaches_the_rows_that_see_it() -> None:
    q, k, v = random_inputs(1, 4, 4, 5000, 5000, 128, torch.bfloat16, "cuda")
    k[:, :, 3000] = torch.nan
    out, lse = cm.attention(q, k, v, cm.causal(), return_lse=True)
    assert out[:, :, 3000:].isnan().all()
    assert lse[:, :, 3000:].isnan().all()
    assert out[:, :, :3000].isfinite().all()
    assert lse[:, :, :3000].isfinite().all()
