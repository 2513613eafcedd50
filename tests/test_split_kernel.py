"""The split kernel and the one that combines, executed in numpy, against dense attention and the kernel for all keys.

Workspace and outputs are full of NaN before, and so are keys that nobody sees.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, random_inputs
from sample_masks import MASKS
from score_cases import cases, dense_scored, kernel_values
from test_attention_kernel import ELEMENT, LSE_TOLERANCE, memory
from xdsl.dialects.builtin import f32

import compilemask as cm
from compilemask.dialects.semantics.triton import MemoryFault, run_kernel
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt import attention_combine, attention_split_frame
from compilemask.lowering.tiling_to_tt.attention import AttentionConfig, attention_module, attention_op
from compilemask.lowering.tiling_to_tt.attention_combine import emit_combine
from compilemask.lowering.tiling_to_tt.attention_split import emit_split
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.scoring import score_op
from compilemask.score import Score

NARROW = AttentionConfig(16, 64)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    descriptor: Descriptor,
    *,
    splits: int,
    together: int = 1,
    scale: float = 0.25,
    config: AttentionConfig = NARROW,
    score: Score | None = None,
    changed: Mapping[str, int] = MappingProxyType({}),
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of the two kernels; `changed` replaces arguments of the first one by name."""
    batch, heads, queries, head_dim = q.shape
    layout = descriptor.layout
    op = attention_op(
        attention_module(head_dim, ELEMENT[q.dtype], score=None if score is None else score_op(score.plan.text))
    )
    parts = np.full((batch * heads * queries * splits, head_dim), np.nan, np.float32)
    peaks, totals = (np.full(parts.shape[0], np.nan, np.float32) for _ in range(2))
    sections = [descriptor.order, descriptor.visits, descriptor.patterns, descriptor.columns]
    values: list[Any] = [
        *(memory(x) for x in (q, k, v)),
        *(parts.reshape(-1), peaks, totals),
        *(section.contiguous().numpy().reshape(-1) for section in sections),
        *(stride for x in (q, k, v) for stride in x.stride()[:3]),
        *(heads, heads // k.shape[1], layout.queries, layout.keys, layout.query_tiles),
        *(layout.heads if layout.batch > 1 else 0, 1 if layout.heads > 1 else 0),
        *(splits, together, scale),
    ]
    names = [argument.name for argument in attention_split_frame.kernel_arguments(f32, config.aligned)]
    arguments = dict(zip(names, values, strict=True)) | dict(changed)
    if score is not None:
        arguments |= kernel_values(score, op)
    blocks = math.ceil(together * min(queries, 128) / config.block_q)
    grid = (layout.query_tiles * blocks * splits, heads // together, batch)
    run_kernel(emit_split(op, config), grid, arguments, seed=0)
    return combined(q, [parts.reshape(-1), peaks, totals], splits)


def combined(q: torch.Tensor, parts: list[np.ndarray], splits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse, in memory that was full of NaN."""
    out, lse = memory(q.new_full(q.shape, torch.nan)), np.full(q.shape[:3], np.nan, np.float32)
    kernel = emit_combine(q.shape[3], ELEMENT[q.dtype])
    names = [argument.name for argument in attention_combine.kernel_arguments(f32)]
    arguments = dict(zip(names, [*parts, out, lse.reshape(-1), splits], strict=True))
    run_kernel(kernel, (lse.size, 1, 1), arguments, seed=0)
    return torch.from_numpy(out).view(q.dtype).view(q.shape), torch.from_numpy(lse)


def check(
    mask: cm.Mask,
    queries: int,
    keys: int,
    *,
    splits: int = 3,
    heads: tuple[int, int] = (1, 1),
    together: int = 1,
    batch: int = 1,
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    config: AttentionConfig = NARROW,
) -> None:
    """Attention of random inputs against the oracle."""
    q, k, v = random_inputs(batch, *heads, queries, keys, head_dim, dtype)
    if head_dim % 8:
        config = replace(config, aligned=False)
    visible = mask.dense(queries, keys)
    unseen = ~visible.flatten(0, 2).any(dim=0)
    k[:, :, unseen], v[:, :, unseen] = torch.nan, torch.nan
    descriptor = cm.compile(mask).descriptor(queries, keys).check()
    out, lse = attend(q, k, v, descriptor, splits=splits, together=together, config=config)
    expected, expected_lse = dense_attention(q, k.nan_to_num(), v.nan_to_num(), visible, 0.25)
    assert_close(out, expected, TOLERANCE[dtype], "out")
    assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")


def cached(rows: int, *lengths: int) -> cm.Mask:
    """The last rows of sequences of some lengths, in a cache that may be longer."""
    table = torch.tensor(lengths, dtype=torch.int32)[:, None]
    return cm.where(lambda q, kv, length: kv <= q + length[0] - rows, length=table)


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    heads = (4, 2) if name.endswith("per head") else (2, 1)
    batch = 2 if name.endswith("per batch") else 1
    check(MASKS[name](5, 700), 5, 700, heads=heads, batch=batch)
    check(MASKS[name](137, 400), 137, 400, heads=heads, batch=batch, splits=2, config=AttentionConfig(64, 64))


@pytest.mark.parametrize("queries", [1, 2, 7, 16, 17, 130])
@pytest.mark.parametrize("name", ["causal from the end", "window", "scattered", "full"])
def test_lengths(name: str, queries: int) -> None:
    for keys in (1, 129, 640):
        check(MASKS[name](queries, keys), queries, keys)


@pytest.mark.parametrize("splits", [1, 2, 4, 5, 64, 200])
def test_splits(splits: int) -> None:
    """More of them than visits, too, and more than are combined at a time (with D = 256)."""
    check(cached(3, 700), 3, 700, splits=splits)
    check(cm.full() - cm.cols(256, 300), 3, 900, splits=splits, head_dim=256 if splits == 64 else 16)


@pytest.mark.parametrize("dtype", ELEMENT)
@pytest.mark.parametrize("head_dim", [1, 24, 64, 200])
def test_types_and_head_dims(dtype: torch.dtype, head_dim: int) -> None:
    check(cached(2, 300), 2, 400, head_dim=head_dim, dtype=dtype, heads=(2, 1), together=2)


@pytest.mark.parametrize("block_q", [16, 32, 64, 128])
@pytest.mark.parametrize("block_kv", [16, 32, 64, 128])
def test_blocks(block_q: int, block_kv: int) -> None:
    config = AttentionConfig(block_q, block_kv)
    check(cm.window(150), 70, 300, config=config)
    check(cached(9, 300), 9, 384, config=config, heads=(6, 2), together=3)


@pytest.mark.parametrize("queries", [1, 3, 5, 16, 50, 129, 200])
@pytest.mark.parametrize("name", ["causal from the end", "causal", "sink and window", "scattered"])
def test_heads_that_share_keys_are_rows_of_one_block(name: str, queries: int) -> None:
    check(MASKS[name](queries, 300), queries, 300, heads=(8, 2), together=4, batch=2)


def test_lengths_of_batches_below_the_capacity() -> None:
    check(cached(4, 4, 130, 700, 383), 4, 700, batch=4, heads=(4, 1), together=4)
    check(cm.padding(torch.tensor([0, 1, 128, 700])[:, None].int()), 4, 700, batch=4, heads=(2, 1), together=2)


def test_rows_that_see_nothing() -> None:
    check(cm.where(lambda q, kv: (q % 3 == 0) & (kv < 450)), 7, 600, heads=(2, 1), together=2)
    check(cm.padding(torch.zeros(1, dtype=torch.int32)), 3, 300)


def test_shares_begin_and_end_inside_of_runs() -> None:
    """Runs of two full tiles, and a partial one at the start."""
    mask = cm.where(lambda q, kv: (kv // 128) % 3 != 2) - cm.cols(5, 70)
    for splits in (2, 7, 31):
        check(mask, 2, 128 * 3 * 40, splits=splits)


def test_more_runs_than_are_looked_at_together() -> None:
    mask = cm.where(lambda q, kv: (kv // 128) % 2 == 0)
    descriptor = cm.compile(mask).descriptor(1, 128 * 600)
    assert descriptor.order[0, 0, 0, 2:5].tolist() == [0, 300, 300]
    for splits in (1, 4, 299):
        check(mask, 1, 128 * 600, splits=splits)


def test_a_tile_that_found_no_room_is_nan() -> None:
    descriptor = cm.compile(cm.full()).descriptor(130, 300).clone()
    descriptor.order[0, 0, 0, 2] = -1
    lost = int(descriptor.order[0, 0, 0, 0])
    q, k, v = random_inputs(1, 2, 1, 130, 300, 16)
    out, lse = attend(q, k, v, descriptor, splits=3, together=2)
    rows = torch.arange(130) // 128 == lost
    assert out[:, :, rows].isnan().all()
    assert lse[:, :, rows].isnan().all()
    expected, expected_lse = dense_attention(q, k, v, torch.ones(1, 1, 130, 300, dtype=torch.bool), 0.25)
    assert_close(out[:, :, ~rows], expected[:, :, ~rows], 2e-5)
    assert_close(lse[:, :, ~rows], expected_lse[:, :, ~rows], 1e-5)


def test_nan_stays_in_the_rows_that_see_it() -> None:
    q, k, v = random_inputs(1, 1, 1, 4, 600, 16)
    descriptor = cm.compile(cached(4, 600)).descriptor(4, 600)
    clean, _ = attend(q, k, v, descriptor, splits=3)
    k[0, 0, 598] = torch.nan
    out, lse = attend(q, k, v, descriptor, splits=3)
    assert torch.equal(out[0, 0, :2], clean[0, 0, :2])
    assert out[0, 0, 2:].isnan().all()
    assert lse[0, 0, 2:].isnan().all()


def test_large_scores() -> None:
    q, k, v = random_inputs(1, 1, 1, 3, 600, 16)
    visible = torch.ones(1, 1, 3, 600, dtype=torch.bool)
    descriptor = cm.compile(cm.full()).descriptor(3, 600)
    out, lse = attend(q * 1e15, k * 1e15, v, descriptor, splits=4, scale=1.0)
    expected, expected_lse = dense_attention(q * 1e15, k * 1e15, v, visible, 1.0)
    assert_close(out, expected, 1e-2)
    assert_close(lse, expected_lse, 1e-5)


def test_scales() -> None:
    q, k, v = random_inputs(1, 1, 1, 3, 300, 16)
    visible = torch.ones(1, 1, 3, 300, dtype=torch.bool)
    descriptor = cm.compile(cm.full()).descriptor(3, 300)
    for scale in (0.0, -0.3, 3.0):
        config = AttentionConfig(16, 64, negative_scale=True)
        out, _ = attend(q, k, v, descriptor, splits=2, scale=scale, config=config)
        assert_close(out, dense_attention(q, k, v, visible, scale)[0], 2e-5)
    out, lse = attend(q, k, v, descriptor, splits=2, scale=-1.0)
    assert out.isnan().all()
    assert lse.isnan().all()


SCORES = {name: case for name, case in cases(2, 4).items() if not case.pointwise}


@pytest.mark.parametrize("name", SCORES)
def test_scores(name: str) -> None:
    case = SCORES[name]
    for mask, queries, keys in ((cached(3, 3, 400), 3, 500), (MASKS["scattered"](130, 300), 130, 300)):
        q, k, v = random_inputs(2, 4, 2, queries, keys, 16)
        descriptor = cm.compile(mask).descriptor(queries, keys)
        out, lse = attend(q, k, v, descriptor, splits=6, score=case.score)
        expected, expected_lse = dense_scored(case, q, k, v, mask.dense(queries, keys), 0.25)
        assert_close(out, expected, 2e-5, "out")
        assert_close(lse, expected_lse, 1e-5, "lse")


def test_pointwise_weights_are_not_split() -> None:
    op = attention_op(attention_module(16, f32, score=score_op(cm.score.silu().plan.text)))
    with pytest.raises(LoweringError, match="pointwise"):
        emit_split(op, NARROW)


@pytest.mark.parametrize("name", [f"{tensor}_{dim}" for tensor in "qkv" for dim in "bh"])
def test_offsets_of_heads_and_batches_are_64_bit(name: str) -> None:
    """A stride of 2**32 elements leads out of memory; with 32 bits it would be 0."""
    q, k, v = random_inputs(2, 2, 2, 5, 5, 16)
    descriptor = cm.compile(cm.causal()).descriptor(5, 5)
    with pytest.raises(MemoryFault):
        attend(q, k, v, descriptor, splits=1, changed={name: 2**32})


def test_parts_that_saw_nothing_are_not_read() -> None:
    """The others are joined exactly: weights are powers of two here."""
    q = torch.zeros(1, 1, 1, 16)
    parts = np.full((5, 16), np.nan, np.float32)
    parts[1], parts[3] = 3.0, 1.0
    peaks = np.array([-np.inf, 2.0, -np.inf, 3.0, -np.inf], np.float32)
    totals = np.array([0.0, 2.0, 0.0, 1.0, 0.0], np.float32)
    out, lse = combined(q, [parts.reshape(-1), peaks, totals], 5)
    assert torch.equal(out, torch.full_like(out, 1.25))
    assert_close(lse, torch.full_like(lse, 4 * math.log(2)), 1e-6)
