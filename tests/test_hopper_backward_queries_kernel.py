"""The Hopper kernel for gradients of queries, executed in numpy with its warps interleaved at random."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
from compare import assert_close
from sample_masks import MASKS
from test_backward_kernels import TOLERANCE, Problem
from test_hopper_backward_kernel import rows_of, synchronization
from test_hopper_kernel import ELEMENT, storage
from xdsl.dialects.builtin import ModuleOp, f16, f32

import compilemask as cm
from compilemask.dialects.semantics.triton_gpu import DeadlockError, KernelError, TensorMap, run_kernel
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_ttg.attention_backward_queries import HopperQueriesConfig, emit_backward_queries
from compilemask.lowering.tiling_to_ttg.attention_backward_queries_frame import kernel_arguments


@lru_cache
def kernel_of(head_dim: int, dtype: torch.dtype, config: HopperQueriesConfig) -> ModuleOp:
    return emit_backward_queries(head_dim, ELEMENT[dtype], config)


def backward(
    problem: Problem, config: HopperQueriesConfig, *, seed: int = 0, kernel: ModuleOp | None = None
) -> torch.Tensor:
    """The gradient of q, in memory that was full of NaN."""
    (batch, heads, queries, dim), dtype = problem.q.shape, problem.q.dtype
    descriptor, key_heads = problem.descriptor, problem.k.shape[1]
    layout = descriptor.layout
    gradient = problem.q.new_full(problem.q.shape, torch.nan)
    shift, delta, _ = rows_of(problem)
    maps = map(storage, (problem.q, problem.k, problem.v, problem.grad, gradient))
    sections = (descriptor.order, descriptor.visits, descriptor.patterns, descriptor.columns)
    values: list[Any] = [
        *map(TensorMap, maps),
        *(shift.reshape(-1), delta.reshape(-1)),
        *(section.contiguous().numpy().reshape(-1) for section in sections),
        *(heads, heads // key_heads, queries, layout.keys, shift.shape[1], layout.query_tiles),
        *(layout.heads if layout.batch > 1 else 0, 1 if layout.heads > 1 else 0),
        batch * heads,
        problem.scale,
    ]
    names = [argument.name for argument in kernel_arguments()]
    kernel = kernel_of(dim, dtype, config) if kernel is None else kernel
    run_kernel(kernel, layout.query_tiles * batch * heads, dict(zip(names, values, strict=True)), seed=seed)
    return gradient


def check(
    mask: cm.Mask,
    queries: int,
    keys: int,
    *,
    heads: tuple[int, int] = (1, 1),
    batch: int = 1,
    head_dim: int = 64,
    dtype: torch.dtype = torch.float16,
    config: HopperQueriesConfig | None = None,
    seed: int = 0,
    scale: float | None = None,
) -> None:
    """The gradient for random inputs, NaN in what nobody may notice, against the oracle's; exactly 0 where that is."""
    problem = Problem(mask, queries, keys, heads, batch, head_dim, dtype, scale)
    problem.poison()
    found = backward(problem, config or HopperQueriesConfig.choose(head_dim, ELEMENT[dtype]), seed=seed)
    expected = problem.expected()[0]
    assert_close(found, expected, TOLERANCE[dtype], "gradient of q")
    assert not found[expected == 0].any(), "the gradient of q is not exactly 0"


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", ["causal", "window", "shared prompt", "scattered", "full"])
def test_masks(name: str, head_dim: int) -> None:
    check(MASKS[name](300, 300), 300, 300, head_dim=head_dim, seed=head_dim)


@pytest.mark.parametrize("name", MASKS)
def test_all_masks_in_batches_and_groups(name: str) -> None:
    per_head = name.endswith("per head")
    check(MASKS[name](300, 300), 300, 300, heads=(4, 2) if per_head else (2, 1), batch=2)


@pytest.mark.parametrize("name", ["causal", "window", "clear", "scattered"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (17, 300), (300, 17), (129, 255), (200, 300), (255, 129)])
def test_lengths(name: str, queries: int, keys: int) -> None:
    check(MASKS[name](queries, keys), queries, keys, head_dim=64 if queries > keys else 128)


@pytest.mark.parametrize("dtype", ELEMENT)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_types_and_head_dims(dtype: torch.dtype, head_dim: int) -> None:
    check(cm.causal() & cm.window(200), 400, 400, head_dim=head_dim, dtype=dtype)


VARIANTS = {
    "scores ahead": HopperQueriesConfig(keys=64, scores_ahead=True),
    "64 keys a step": HopperQueriesConfig(keys=64, stages=2),
    "64 keys ahead": HopperQueriesConfig(keys=64, stages=4),
    "loose": HopperQueriesConfig(pin_rounding=False),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["causal", "shared prompt", "scattered"])
def test_variants(name: str, variant: str) -> None:
    check(MASKS[name](300, 300), 300, 300, heads=(2, 1), config=VARIANTS[variant])


@pytest.mark.parametrize("head_dim", [64, 128])
def test_rows_that_see_nothing_and_keys_that_nobody_sees(head_dim: int) -> None:
    mask = cm.where(lambda q, kv: (q % 3 == 0) & (kv < 150) & (kv % 5 > 1))
    check(mask, 200, 200, heads=(2, 1), head_dim=head_dim)
    check(cm.causal(align="bottom_right"), 300, 140, head_dim=head_dim)
    check(cm.causal(), 140, 300, head_dim=head_dim)
    check(cm.padding(torch.zeros(1, dtype=torch.int32)), 140, 140, head_dim=head_dim)


@pytest.mark.parametrize("lane", range(4))
def test_steps_whose_pairs_are_all_in_one_word(lane: int) -> None:
    """Steps of which nobody sees anything are passed by: all four words of a pattern's rows say so, not some."""
    check(cm.where(lambda q, kv, lane: kv // 2 % 4 == lane, lane=lane), 130, 130)


@pytest.mark.parametrize("scale", [0.0, -0.3, 1.0])
def test_scales(scale: float) -> None:
    check(cm.causal(), 200, 200, scale=scale)


def test_a_tile_that_found_no_room_is_nan() -> None:
    problem = Problem(cm.causal(), 300, 300, head_dim=64, dtype=torch.float16)
    expected = problem.expected()[0]
    problem.own_descriptors()
    order = problem.descriptor.order[0, 0]
    order[(order[:, 0] == 1).nonzero(), 2] = -1
    found = backward(problem, HopperQueriesConfig.choose(64, f16))
    assert found[0, 0, 128:256].isnan().all()
    kept = [*range(128), *range(256, 300)]
    assert_close(found[0, 0, kept], expected[0, 0, kept], TOLERANCE[torch.float16])


def test_what_has_no_kernel() -> None:
    for head_dim, element in ((32, f16), (256, f16), (64, f32)):
        with pytest.raises(LoweringError, match="no Hopper kernel"):
            HopperQueriesConfig.choose(head_dim, element)
    with pytest.raises(LoweringError, match="shared memory"):
        kernel_of(128, torch.float16, HopperQueriesConfig(stages=4))
    for stages in (1, 3):
        with pytest.raises(LoweringError, match="stages"):
            HopperQueriesConfig(stages=stages)
    with pytest.raises(LoweringError, match="keys a step"):
        HopperQueriesConfig(keys=96)


SPARE = 2
"""Waits for the queries, whose copies begin before those of the first keys."""


@pytest.mark.parametrize(("scores_ahead", "queries"), [(False, 128), (True, 256)])
def test_all_synchronization_is_needed(scores_ahead: bool, queries: int) -> None:
    """Without any one wait, arrival, fence or barrier, some order of events is an error. 256 queries are a tile more
    than sees anything."""
    config = HopperQueriesConfig(keys=64, stages=2, scores_ahead=scores_ahead)
    kernel = kernel_of(128, torch.float16, config)
    # Unseen keys in two partial tiles, and two full ones behind them: more steps of both kinds than buffers.
    some = cm.where(lambda q, kv: (kv % 9 != 3) & (kv < 250 + q % 2))
    # Steps of which one warpgroup sees nothing: the first one in the second, the second one in the third.
    some &= cm.where(lambda q, kv: (kv // 64 != 1) | (q >= 64)) & cm.where(lambda q, kv: (kv // 64 != 2) | (q < 64))
    some = some.place((0, 128), (0, 512)) | cm.full().place((0, 128), (256, 512))
    problem = Problem(some, queries, 512, head_dim=128, dtype=torch.float16)
    problem.poison()
    expected = problem.expected()[0]

    def is_found(number: int) -> bool:
        broken = kernel.clone()
        op = synchronization(broken)[number]
        op.detach()
        op.erase()
        for seed in range(2):
            try:
                assert_close(backward(problem, config, seed=seed, kernel=broken), expected, TOLERANCE[torch.float16])
            except (KernelError, DeadlockError, AssertionError):
                return True
        return False

    count = len(synchronization(kernel))
    assert count > 20
    spare = [number for number in range(count) if not is_found(number)]
    assert len(spare) <= SPARE, [f"{number}: {synchronization(kernel)[number].name}" for number in spare]
