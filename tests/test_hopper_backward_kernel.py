"""The Hopper backward kernel, executed in numpy with its warps interleaved at random, against the oracle."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from compare import assert_close, dense_attention
from sample_masks import MASKS
from test_backward_kernels import TOLERANCE, Problem
from test_hopper_kernel import ELEMENT, storage
from xdsl.dialects.builtin import ModuleOp, f16, f32
from xdsl.ir import Operation

import compilemask as cm
from compilemask.dialects.semantics import triton as portable
from compilemask.dialects.semantics.triton_gpu import DeadlockError, KernelError, TensorMap, run_kernel
from compilemask.dialects.triton import ttg, ttng
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt import attention_backward_rows, attention_backward_total
from compilemask.lowering.tiling_to_tt.sum_blocks import SIDE, WORDS, blocks_of
from compilemask.lowering.tiling_to_ttg.attention_backward import HopperBackwardConfig, emit_backward
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import kernel_arguments

TILE = 128


@lru_cache
def kernel_of(head_dim: int, dtype: torch.dtype, config: HopperBackwardConfig) -> ModuleOp:
    return emit_backward(head_dim, ELEMENT[dtype], config)


def rows_of(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`shift` and `delta` [B * Hq, NQ * 128], and cleared blocks of the sum of the gradient of queries."""
    batch, heads, queries, dim = problem.q.shape
    stored = stored_rows(queries)
    kernel = attention_backward_rows.emit_rows(
        dim, ELEMENT[problem.q.dtype], aligned=True, with_grad_lse=True, clears_sums=True
    )
    shift, delta = (np.full(batch * heads * stored, np.nan, np.float32) for _ in range(2))
    sums = poisoned_sums(batch * heads, stored, dim)
    tensors = (problem.out, problem.grad)
    values = [
        *(storage(x).reshape(-1) for x in tensors),
        *(problem.lse.numpy().ravel(), problem.grad_lse.numpy().ravel(), shift, delta, sums.reshape(-1)),
        *(stride for x in tensors for stride in x.stride()[:3]),
        *(heads, queries, stored),
    ]
    portable.run_kernel(kernel, (stored // attention_backward_rows.ROWS, heads, batch), values, seed=0)
    return shift.reshape(-1, stored), delta.reshape(-1, stored), sums


def backward(
    problem: Problem, config: HopperBackwardConfig, *, seed: int = 0, kernel: ModuleOp | None = None
) -> list[torch.Tensor]:
    """Gradients of k and v, in memory that was full of NaN, and that of q if the kernel sums it."""
    (batch, heads, queries, dim), dtype = problem.q.shape, problem.q.dtype
    descriptor = problem.descriptor.transposed
    assert descriptor is not None
    layout, key_heads = descriptor.layout, problem.k.shape[1]
    *numbers, sums = rows_of(problem)
    gradients = [x.new_full(x.shape, torch.nan) for x in (problem.k, problem.v)]
    maps = [*map(storage, (problem.q, problem.k, problem.v, problem.grad)), *numbers]
    maps += map(storage, gradients)
    sections = (descriptor.tiles, descriptor.order, descriptor.visits, descriptor.patterns, descriptor.columns)
    values: list[Any] = [
        *map(TensorMap, maps),
        *([sums.reshape(-1)] if config.sums_queries else []),
        *(section.contiguous().numpy().reshape(-1) for section in sections),
        *(heads, heads // key_heads, queries, layout.queries, layout.query_tiles),
        *(layout.heads if layout.batch > 1 else 0, 1 if layout.heads > 1 else 0),
        batch * key_heads,
        problem.scale,
    ]
    names = [argument.name for argument in kernel_arguments(config)]
    kernel = kernel_of(dim, dtype, config) if kernel is None else kernel
    run_kernel(kernel, layout.query_tiles * batch * key_heads, dict(zip(names, values, strict=True)), seed=seed)
    return [*gradients, *([total(problem, sums)] if config.sums_queries else [])]


def stored_rows(queries: int) -> int:
    """Rows of whole tiles."""
    return -(-queries // TILE) * TILE


def poisoned_sums(heads: int, rows: int, dim: int) -> np.ndarray:
    """The blocks of the sum of the gradient of queries, of so many heads, before they are cleared."""
    return np.full((heads * blocks_of(rows, dim), WORDS), np.nan, np.float32)


def total(problem: Problem, sums: np.ndarray) -> torch.Tensor:
    """The gradient of queries from its sum."""
    (batch, heads, queries, dim), transposed = problem.q.shape, problem.descriptor.transposed
    assert transposed is not None
    grad_q = problem.q.new_full(problem.q.shape, torch.nan)
    status = transposed.header[14:15].numpy()
    values = [
        *(sums.reshape(-1), storage(grad_q).reshape(-1), status),
        *grad_q.stride()[:3],
        *(heads, queries, stored_rows(queries) // SIDE, problem.scale),
    ]
    kernel = attention_backward_total.emit_total(dim, ELEMENT[problem.q.dtype])
    portable.run_kernel(kernel, (-(-queries // attention_backward_total.ROWS), heads, batch), values, seed=0)
    return grad_q


def chosen(head_dim: int, dtype: torch.dtype = torch.float16, *, sums_queries: bool = True) -> HopperBackwardConfig:
    """The kernel's variant."""
    return HopperBackwardConfig.choose(head_dim, ELEMENT[dtype], sums_queries=sums_queries)


def check(
    mask: cm.Mask,
    queries: int,
    keys: int,
    *,
    heads: tuple[int, int] = (1, 1),
    batch: int = 1,
    head_dim: int = 64,
    dtype: torch.dtype = torch.float16,
    config: HopperBackwardConfig | None = None,
    seed: int = 0,
    scale: float | None = None,
) -> None:
    """Gradients of random inputs, NaN in what nobody may notice, against the oracle's; exactly 0 where those are."""
    problem = Problem(mask, queries, keys, heads, batch, head_dim, dtype, scale)
    problem.poison()
    config = config or HopperBackwardConfig.choose(head_dim, ELEMENT[dtype])
    grad_q, grad_k, grad_v = problem.expected()
    expected = {"k": grad_k, "v": grad_v} | ({"q": grad_q} if config.sums_queries else {})
    for (name, reference), found in zip(expected.items(), backward(problem, config, seed=seed), strict=True):
        assert_close(found, reference, TOLERANCE[dtype], f"gradient of {name}")
        assert not found[reference == 0].any(), f"gradient of {name} is not exactly 0"


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", ["causal", "window", "shared prompt", "scattered", "full"])
def test_masks(name: str, head_dim: int) -> None:
    config = chosen(head_dim)
    check(MASKS[name](300, 300), 300, 300, head_dim=head_dim, config=config, seed=head_dim)


@pytest.mark.parametrize("name", MASKS)
def test_all_masks_in_batches_and_groups(name: str) -> None:
    per_head = name.endswith("per head")
    config = chosen(64)
    check(MASKS[name](300, 300), 300, 300, heads=(4, 2) if per_head else (2, 1), batch=2, config=config)


@pytest.mark.parametrize("name", ["causal", "window", "clear", "scattered"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (17, 300), (300, 17), (129, 255), (200, 300), (255, 129)])
def test_lengths(name: str, queries: int, keys: int) -> None:
    head_dim = 64 if queries > keys else 128
    check(MASKS[name](queries, keys), queries, keys, head_dim=head_dim, config=chosen(head_dim))


@pytest.mark.parametrize("sums_queries", [True, False])
@pytest.mark.parametrize("dtype", ELEMENT)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_types_and_head_dims(dtype: torch.dtype, head_dim: int, sums_queries: bool) -> None:
    config = chosen(head_dim, dtype, sums_queries=sums_queries)
    check(cm.causal() & cm.window(200), 400, 400, head_dim=head_dim, dtype=dtype, config=config)


def test_full_tiles_without_partial_ones() -> None:
    check(cm.full(), 512, 256)


@pytest.mark.parametrize("sums_queries", [True, False])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_many_steps(head_dim: int, sums_queries: bool) -> None:
    """More than 64, of full tiles behind partial ones of two heads."""
    mask = cm.where(lambda q, kv: (q // 128 % 2 == 1) | ((q + kv) % 5 != 1))
    config = chosen(head_dim, sums_queries=sums_queries)
    queries = 33 * config.queries
    check(mask, queries, 128, heads=(2, 1), head_dim=head_dim, config=config)


def test_what_is_not_finite_in_another_batch() -> None:
    """What lies in a slot of slopes before the first step is multiplied with keys, but goes nowhere."""
    problem = Problem(cm.full(), 128, 128, batch=2, head_dim=64, dtype=torch.float16)
    grad_q, grad_k, grad_v = (x[0] for x in problem.expected())
    problem.k[1, 0, 5] = problem.out[1] = problem.lse[1] = torch.nan
    for found, reference in zip(backward(problem, chosen(64)), (grad_k, grad_v, grad_q), strict=True):
        assert found[1].isnan().any()
        assert_close(found[0], reference, TOLERANCE[torch.float16])


@pytest.mark.parametrize("head_dim", [64, 128])
def test_missing_keys_of_full_tiles_reach_nobody(head_dim: int) -> None:
    """Their scores are 0, so that their weights overflow where all scores of a row are far below."""
    problem = Problem(cm.full(), 256, 200, head_dim=head_dim, dtype=torch.bfloat16, scale=8.0)
    problem.q[:] = 1 + problem.q.abs()
    problem.k[:] = -problem.k.abs() - 1
    problem = replaced_forward(problem)
    assert problem.lse.max() < -200
    grad_q, grad_k, grad_v = problem.expected()
    config = chosen(head_dim, torch.bfloat16)
    for found, reference in zip(backward(problem, config), (grad_k, grad_v, grad_q), strict=True):
        assert found.isfinite().all()
        assert_close(found, reference, 5e-2)


def replaced_forward(problem: Problem) -> Problem:
    """The same problem with the forward results of its inputs."""
    out, lse = dense_attention(problem.q, problem.k, problem.v, problem.visible, problem.scale)
    problem.out, problem.lse = out.to(problem.q.dtype), lse.float()
    return problem


@pytest.mark.parametrize("head_dim", [64, 128])
def test_rows_that_see_nothing_and_keys_that_nobody_sees(head_dim: int) -> None:
    mask, config = cm.where(lambda q, kv: (q % 3 == 0) & (kv < 150) & (kv % 5 > 1)), chosen(head_dim)
    check(mask, 200, 200, heads=(2, 1), head_dim=head_dim, config=config)
    check(cm.causal(align="bottom_right"), 300, 140, head_dim=head_dim, config=config)
    check(cm.padding(torch.zeros(1, dtype=torch.int32)), 140, 140, head_dim=head_dim, config=config)


@pytest.mark.parametrize("lane", range(4))
def test_steps_whose_pairs_are_all_in_one_word(lane: int) -> None:
    """Steps of which nobody sees anything are passed by: all four words of a pattern's rows say so, not some."""
    mask = cm.where(lambda q, kv, lane: q // 2 % 4 == lane, lane=lane)
    check(mask, 130, 130, config=chosen(64))


@pytest.mark.parametrize("scale", [0.0, -0.3, 1.0])
def test_scales(scale: float) -> None:
    check(cm.causal(), 200, 200, scale=scale)


def test_a_tile_that_found_no_room_is_nan() -> None:
    problem = Problem(cm.causal(), 300, 300, head_dim=64, dtype=torch.float16)
    _, grad_k, grad_v = problem.expected()
    transposed = problem.own_descriptors()
    transposed.tiles[0, 0, 2, 1] = -1
    order = transposed.order[0, 0]
    order[order[:, 0] == 2, 2] = -1
    transposed.header[14] = 1
    *found, grad_q = backward(problem, HopperBackwardConfig.choose(64, f16))
    assert grad_q.isnan().all()
    for gradient, reference in zip(found, (grad_k, grad_v), strict=True):
        assert gradient[0, 0, 256:].isnan().all()
        assert_close(gradient[0, 0, :256], reference[0, 0, :256], TOLERANCE[torch.float16])


VARIANTS = {
    "moved by ptxas": HopperBackwardConfig(queries=128, hold_weights=False, pin_rounding=False),
    "held": HopperBackwardConfig(queries=128, hold_weights=True),
    "two stages, left": HopperBackwardConfig(queries=64, sums_queries=False),
    "four stages, left": HopperBackwardConfig(queries=64, stages=4, sums_queries=False),
    "128 queries, left": HopperBackwardConfig(queries=128, stages=3, sums_queries=False),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["causal", "shared prompt"])
def test_variants(name: str, variant: str) -> None:
    check(MASKS[name](300, 300), 300, 300, heads=(2, 1), config=VARIANTS[variant])


@pytest.mark.parametrize(("head_dim", "stages"), [(64, 2), (128, 2), (128, 3)])
@pytest.mark.parametrize("heads", [(1, 1), (2, 1)])
def test_fewer_steps_than_stages(heads: tuple[int, int], head_dim: int, stages: int) -> None:
    """Behind the last step scores of a next one are computed, in a place where nothing may have been."""
    config = replace(chosen(head_dim), stages=stages)
    for mask in (cm.full(), cm.window(100), cm.where(lambda q, kv: (q < 1000) & (kv != 300))):
        check(mask, 128, 128, heads=heads, head_dim=head_dim, config=config)
    # Tiles that nobody sees, and in masked steps alone.
    for queries, keys in ((64, 200), (129, 384)):
        check(cm.causal(), queries, keys, heads=heads, head_dim=head_dim, config=config, seed=queries)


def test_what_has_no_kernel() -> None:
    for head_dim, element in ((32, f16), (256, f16), (64, f32)):
        with pytest.raises(LoweringError, match="no Hopper kernel"):
            HopperBackwardConfig.choose(head_dim, element)
    with pytest.raises(LoweringError, match="shared memory"):
        kernel_of(128, torch.float16, HopperBackwardConfig(queries=128))
    with pytest.raises(LoweringError, match="one block for each warpgroup"):
        kernel_of(64, torch.float16, HopperBackwardConfig(queries=64))
    with pytest.raises(LoweringError, match="stages"):
        HopperBackwardConfig(stages=1)
    with pytest.raises(LoweringError, match="queries a step"):
        HopperBackwardConfig(queries=96)


SYNCHRONIZATION = (
    ttng.WaitBarrierOp,
    ttng.ArriveBarrierOp,
    ttng.BarrierExpectOp,
    ttng.FenceAsyncSharedOp,
    ttng.AsyncTMAStoreWaitOp,
)
SPARE = 4
"""Waits whose phase has ended anyway: those that hold the weights."""
SPARE_OF_SUMS = 5
"""And the fence behind cleaned queries: whoever reads them makes another one before, between slopes and their products,
and any on the way from the writer to the reader is enough (PTX, proxies in the memory consistency model)."""


def synchronization(kernel: ModuleOp) -> list[Operation]:
    """Waits, arrivals, fences and named barriers."""
    return [
        op
        for op in kernel.walk()
        if isinstance(op, SYNCHRONIZATION)
        or (isinstance(op, ttg.ElementwiseInlineAsmOp) and op.asm_string.data.startswith("bar."))
    ]


@pytest.mark.parametrize(("sums_queries", "groups"), [(True, (1, 2)), (False, (1,))])
def test_all_synchronization_is_needed(sums_queries: bool, groups: tuple[int, ...]) -> None:
    """Without any one wait, arrival, fence or barrier, some order of events is an error.

    The third tile of keys is seen by nobody. In a group, masked visits come behind full ones.
    """
    config = replace(chosen(128, sums_queries=sums_queries), stages=2)
    kernel = kernel_of(128, torch.float16, config)
    # Unseen keys, rows that see nothing in some steps and not in others, and full tiles behind them.
    some = cm.where(lambda q, kv: ((q % 50 != 7) | (q // 64 % 2 == 0)) & (kv <= q + 100) & (kv < 190) & (kv % 9 != 3))
    # Three steps in a row of which one warpgroup sees nothing, then two of which the other one does not.
    some &= cm.where(lambda q, kv: (q < 64) | (q >= 256) | (kv >= 64))
    some &= cm.where(lambda q, kv: (q < 256) | (q >= 384) | (kv < 64))
    mask = some.place((0, 512), (0, 256)) | cm.full().place((512, 640), (0, 128))
    problems = [Problem(mask, 640, 384, (group, 1), head_dim=128, dtype=torch.float16) for group in groups]
    for problem in problems:
        problem.poison()
    expected = [problem.expected() for problem in problems]

    def is_found(number: int) -> bool:
        broken = kernel.clone()
        op = synchronization(broken)[number]
        op.detach()
        op.erase()
        for (problem, (grad_q, *others)), seed in product(zip(problems, expected, strict=True), range(4)):
            try:
                gradients = backward(problem, config, seed=seed, kernel=broken)
                references = [*others, *([grad_q] if sums_queries else [])]
                for found, reference in zip(gradients, references, strict=True):
                    assert_close(found, reference, TOLERANCE[torch.float16])
            except (KernelError, DeadlockError, AssertionError):
                return True
        return False

    count = len(synchronization(kernel))
    assert count > (40 if sums_queries else 25)
    spare = [number for number in range(count) if not is_found(number)]
    names = [f"{number}: {synchronization(kernel)[number].name}" for number in spare]
    assert len(spare) <= (SPARE_OF_SUMS if sums_queries else SPARE), names
