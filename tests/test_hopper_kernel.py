"""The Hopper attention kernel, executed in numpy with its warps interleaved at random, against dense attention."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, random_inputs
from sample_masks import MASKS
from xdsl.dialects.builtin import AnyFloat, ModuleOp, bf16, f16, f32

import compilemask
from compilemask.dialects.semantics.triton_gpu import DeadlockError, KernelError, TensorMap, run_kernel
from compilemask.dialects.triton import ttng
from compilemask.errors import LoweringError
from compilemask.language.mask import Mask
from compilemask.lowering.tiling_to_tt.attention import attention_module, attention_op
from compilemask.lowering.tiling_to_ttg.attention import HopperConfig, Schedule, emit
from compilemask.lowering.tiling_to_ttg.attention_config import TILE, kernel_head_dim
from compilemask.lowering.tiling_to_ttg.attention_frame import kernel_arguments
from compilemask.runtime import compile
from compilemask.runtime.descriptor import Descriptor

ELEMENT: dict[torch.dtype, AnyFloat] = {torch.float16: f16, torch.bfloat16: bf16}
ROWS = [64, 128, 192]
PROGRAMS = 3
"""Of a persistent kernel."""


@lru_cache
def kernel_of(head_dim: int, dtype: torch.dtype, config: HopperConfig) -> ModuleOp:
    return emit(attention_op(attention_module(head_dim, ELEMENT[dtype])), config)


def storage(x: torch.Tensor) -> np.ndarray:
    """A view of a tensor's memory as the interpreter takes it."""
    return x.view(torch.int16).numpy().view(np.uint16) if x.dtype == torch.bfloat16 else x.numpy()


def run(
    config: HopperConfig,
    descriptor: Descriptor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    *,
    seed: int = 0,
    heads_together: int = 1,
    kernel: ModuleOp | None = None,
    query_map: TensorMap | None = None,
    **more: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of a kernel, in memory that was full of NaN; `more` are arguments behind all others."""
    batch, heads = q.shape[:2]
    out, lse = q.new_full(q.shape, torch.nan), torch.full(q.shape[:3], torch.nan)
    layout = descriptor.layout
    sections = [descriptor.order, descriptor.visits, descriptor.patterns, descriptor.columns]
    counter = [np.zeros(2, np.int32)] if config.schedule is Schedule.ATOMIC else []
    values: list[Any] = [
        query_map or TensorMap(storage(q)),
        *(TensorMap(storage(x)) for x in (k, v, out)),
        lse.numpy().reshape(-1),
        *(section.contiguous().numpy().reshape(-1) for section in sections),
        *counter,
        *(heads, heads // k.shape[1], layout.queries, layout.keys, layout.query_tiles),
        *(layout.heads if layout.batch > 1 else 0, 1 if layout.heads > 1 else 0),
        *(batch * heads, heads_together, max(heads_together // 2, 1)),
        scale,
    ]
    names = [argument.name for argument in kernel_arguments(config)]
    arguments = dict(zip(names, values, strict=True)) | more
    tiles = layout.query_tiles * batch * heads
    kernel = kernel_of(kernel_head_dim(q.shape[3]) or 0, q.dtype, config) if kernel is None else kernel
    run_kernel(kernel, min(PROGRAMS, tiles) if config.is_persistent else tiles, arguments, seed=seed)
    if counter:
        assert not counter[0].any()
    return out, lse


def check(
    mask: Mask,
    queries: int,
    keys: int,
    *,
    heads: tuple[int, int] = (1, 1),
    batch: int = 1,
    head_dim: int = 64,
    dtype: torch.dtype = torch.float16,
    config: HopperConfig | None = None,
    seed: int = 0,
    heads_together: int = 1,
    rows: int = 128,
) -> None:
    """Attention of random inputs, NaN in all keys and values that nobody sees, against the oracle."""
    config = HopperConfig.choose(kernel_head_dim(head_dim) or 0, ELEMENT[dtype], rows) if config is None else config
    scale = 1 / math.sqrt(head_dim)
    q, k, v = random_inputs(batch, *heads, queries, keys, head_dim, dtype)
    visible = mask.dense(queries, keys)
    unseen = ~visible.flatten(0, 2).any(dim=0)
    k[:, :, unseen], v[:, :, unseen] = torch.nan, torch.nan
    descriptor = compile(mask).descriptor(queries, keys, rows=config.rows).check()
    out, lse = run(config, descriptor, q, k, v, scale, seed=seed, heads_together=heads_together)
    expected, expected_lse = dense_attention(q, k.nan_to_num(), v.nan_to_num(), visible, scale)
    assert_close(out, expected, TOLERANCE[dtype], "out")
    assert_close(lse, expected_lse, 1e-4, "lse")


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["causal", "window", "shared prompt", "scattered", "full"])
def test_masks(name: str, seed: int) -> None:
    check(MASKS[name](300, 300), 300, 300, seed=seed)


@pytest.mark.parametrize("schedule", [Schedule.STATIC, Schedule.ATOMIC])
@pytest.mark.parametrize("rows", ROWS)
def test_values_are_cleaned_when_they_have_come(rows: int, schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile whose visits are all full, and behind it one whose values are cleaned, in the same buffers."""
    monkeypatch.setattr("test_hopper_kernel.PROGRAMS", 1)
    config = HopperConfig.choose(64, f16, rows, schedule)
    full = TILE * config.stages
    mask = compilemask.where(lambda q, kv: ((q < rows) & (kv < full)) | ((q >= rows) & (kv >= full) & (kv < full + 60)))
    for seed in range(25):
        check(mask, 2 * rows, full + 100, config=config, seed=seed, rows=rows)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", MASKS)
def test_all_masks_in_batches_and_groups(name: str, rows: int) -> None:
    heads = (4, 2) if name.endswith("per head") else (2, 1)
    check(MASKS[name](300, 300), 300, 300, heads=heads, batch=2, heads_together=3, rows=rows)


@pytest.mark.parametrize("name", ["causal", "window", "clear", "scattered"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (17, 300), (300, 17), (129, 255), (200, 300)])
@pytest.mark.parametrize("rows", ROWS)
def test_lengths(name: str, rows: int, queries: int, keys: int) -> None:
    check(MASKS[name](queries, keys), queries, keys, rows=rows)


@pytest.mark.parametrize("dtype", ELEMENT)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_types_and_head_dims(dtype: torch.dtype, head_dim: int) -> None:
    mask = compilemask.causal() & compilemask.window(200)
    for rows in ROWS if head_dim == 64 else ROWS[:1]:
        check(mask, 300, 300, head_dim=head_dim, dtype=dtype, rows=rows)


@pytest.mark.parametrize(("head_dim", "rows"), [(8, 128), (40, 128), (40, 192), (96, 128), (96, 64)])
def test_columns_that_the_kernel_has_and_the_tensors_have_not(head_dim: int, rows: int) -> None:
    check(compilemask.causal(), 200, 200, head_dim=head_dim, rows=rows)


@pytest.mark.parametrize("rows", ROWS)
def test_full_tiles_without_partial_ones(rows: int) -> None:
    check(compilemask.full(), 2 * rows, 512, rows=rows)


@pytest.mark.parametrize("rows", ROWS)
def test_rows_that_see_nothing(rows: int) -> None:
    check(compilemask.where(lambda q, kv: (q % 3 == 0) & (kv < 150)), 200, 200, rows=rows)
    check(compilemask.padding(torch.zeros(1, dtype=torch.int32)), 140, 140, rows=rows)


def test_a_tile_that_found_no_room_is_nan() -> None:
    descriptor = compile(compilemask.causal()).descriptor(300, 300).clone()
    descriptor.order[0, 0, 1, 2] = -1
    q, k, v = random_inputs(1, 1, 1, 300, 300, 64, torch.float16)
    config = HopperConfig.choose(64, f16)
    out, lse = run(config, descriptor, q, k, v, 0.125)
    expected, _ = dense_attention(q, k, v, compilemask.causal().dense(300, 300), 0.125)
    assert out[0, 0, 128:256].isnan().all()
    assert lse[0, 0, 128:256].isnan().all()
    outside = torch.cat([torch.arange(128), torch.arange(256, 300)])
    assert_close(out[:, :, outside], expected[:, :, outside], TOLERANCE[torch.float16])


def test_negative_scale_is_a_fault() -> None:
    q, k, v = random_inputs(1, 1, 1, 40, 40, 64, torch.float16)
    descriptor = compile(compilemask.causal()).descriptor(40, 40)
    out, lse = run(HopperConfig.choose(64, f16), descriptor, q, k, v, -1.0)
    assert out.isnan().all()
    assert lse.isnan().all()


def test_what_has_no_kernel() -> None:
    for head_dim, element in ((32, f16), (256, f16), (64, f32)):
        with pytest.raises(LoweringError, match="no Hopper kernel"):
            HopperConfig.choose(head_dim, element)
    with pytest.raises(LoweringError, match="shared memory"):
        kernel_of(128, torch.float16, HopperConfig(stages=4))
    with pytest.raises(LoweringError, match="stages"):
        HopperConfig(stages=1)
    with pytest.raises(LoweringError, match="stages"):
        HopperConfig(consumers=1, stages=0)
    for config in (
        HopperConfig(consumers=1),
        HopperConfig(consumers=1, stages=1, schedule=Schedule.ATOMIC, more_keys=1),
    ):
        with pytest.raises(LoweringError, match="shared memory"):
            kernel_of(128, torch.float16, config)
    with pytest.raises(LoweringError, match="4 consumers"):
        HopperConfig(consumers=4)
    for head_dim, rows in ((128, 192), (64, 32), (64, 256)):
        with pytest.raises(LoweringError, match=f"tiles of {rows} rows"):
            HopperConfig.choose(head_dim, f16, rows)


SYNCHRONIZATION = (
    ttng.WaitBarrierOp,
    ttng.ArriveBarrierOp,
    ttng.BarrierExpectOp,
    ttng.FenceAsyncSharedOp,
    ttng.AsyncTMAStoreWaitOp,
)
SPARE = {64: 15, 128: 15, 192: 16}
"""By rows of a tile. Waits whose phase has ended anyway: for a turn and buffers at the start (3), those that hold the
softmax (4, in tiles of 128 rows), and those of later warpgroups for what an earlier one had waited for before it gave
the turn (6 of the second, or 5 each of the second and third). And arrivals that nobody waits for, at the end of the
values (1 of each warpgroup)."""


@pytest.mark.parametrize("rows", ROWS)
def test_all_synchronization_is_needed(rows: int) -> None:
    """Without any one wait, arrival or fence, some order of events is an error."""
    seen = torch.tensor([820], dtype=torch.int32)
    mask = compilemask.causal() & compilemask.window(700) & compilemask.padding(seen)
    config = HopperConfig() if rows == 128 else HopperConfig.choose(64, f16, rows)
    config = replace(config, stages=min(config.consumers, 2), more_keys=int(rows == 64))
    config = replace(config, named_barriers=False)
    kernel = kernel_of(64, torch.float16, config)
    descriptor = compile(mask).descriptor(1000, 1000, rows=rows)
    q, k, v = random_inputs(1, 1, 1, 1000, 1000, 64, torch.float16)
    expected, _ = dense_attention(q, k, v, mask.dense(1000, 1000), 0.125)
    v[:, :, 820:] = torch.nan

    def is_found(number: int) -> bool:
        broken = kernel.clone()
        [op for op in broken.walk() if isinstance(op, SYNCHRONIZATION)][number].detach()
        for seed in range(6):
            try:
                out, _ = run(config, descriptor, q, k, v, 0.125, seed=seed, kernel=broken)
                assert_close(out, expected, TOLERANCE[torch.float16])
            except (KernelError, DeadlockError, AssertionError):
                return True
        return False

    count = sum(isinstance(op, SYNCHRONIZATION) for op in kernel.walk())
    assert count > 30 * min(config.consumers, 2)
    assert sum(not is_found(number) for number in range(count)) <= SPARE[rows]


ONE, THREE = (HopperConfig.choose(64, f16, rows) for rows in (64, 192))
VARIANTS = {
    "turns by mbarriers": HopperConfig(stages=2, named_barriers=False),
    "static": HopperConfig(stages=2, schedule=Schedule.STATIC),
    "static, turns by mbarriers": HopperConfig(stages=2, schedule=Schedule.STATIC, named_barriers=False),
    "atomic": HopperConfig(stages=2, schedule=Schedule.ATOMIC),
    "three stages": HopperConfig(stages=3, schedule=Schedule.STATIC),
    "overlap left to ptxas": HopperConfig(stages=4, hold_softmax=False, pin_rounding=False),
    "one consumer": ONE,
    "one consumer, one stage": replace(ONE, stages=1),
    "one consumer, keys ahead": replace(ONE, stages=1, more_keys=1),
    "keys ahead": HopperConfig(stages=2, more_keys=1, schedule=Schedule.ATOMIC),
    "one consumer, atomic": replace(ONE, schedule=Schedule.ATOMIC, named_barriers=False),
    "three consumers": THREE,
    "three consumers, turns by mbarriers": replace(THREE, stages=2, named_barriers=False),
    "three consumers, static": replace(THREE, schedule=Schedule.STATIC, hold_softmax=True),
    "three consumers, atomic": replace(THREE, schedule=Schedule.ATOMIC, pin_rounding=False),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["causal", "shared prompt"])
def test_variants(name: str, variant: str, seed: int) -> None:
    check(MASKS[name](300, 300), 300, 300, heads=(2, 1), config=VARIANTS[variant], seed=seed)
