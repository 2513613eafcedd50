"""A few rows over many keys, which several programs share, against the dense oracle and one program per tile."""

from __future__ import annotations

import io

import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, dense_gradients, random_inputs
from sample_masks import MASKS
from score_cases import cases, dense_scored

import compilemask as cm
from compilemask.runtime import compiled_kernels
from compilemask.runtime.gpu import split_keys

TYPES = [torch.float32, torch.float16, torch.bfloat16]
LSE_TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-4, torch.bfloat16: 5e-4}
HEADS = [(8, 8), (9, 3), (32, 4)]


def cached(rows: int, lengths: torch.Tensor) -> cm.Mask:
    """The last rows of sequences of some lengths, in a cache that may be longer."""
    return cm.where(lambda q, kv, length: kv <= q + length[0] - rows, length=lengths[:, None])


def poison(splits: int, q: torch.Tensor) -> None:
    """Fill the memory that the next outputs and the next workspace will get with NaN."""
    blocks = [torch.full_like(q, torch.nan) for _ in range(3)]
    blocks.append(torch.full(q.shape[:3], torch.nan, device=q.device))
    blocks.append(torch.full((q[..., 0].numel() * splits * (q.shape[3] + 2),), torch.nan, device=q.device))
    del blocks


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: cm.Mask | cm.Compiled, splits: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse, in memory that was full of NaN, by so many splits, or as many as are chosen."""
    poison(64 if splits is None else splits, q)
    if splits is None:
        return cm.attention(q, k, v, mask, return_lse=True)
    with split_keys.forced(splits):
        return cm.attention(q, k, v, mask, return_lse=True)


def check(
    mask: cm.Mask,
    rows: int,
    keys: int,
    heads: tuple[int, int] = (8, 2),
    dim: int = 64,
    dtype: torch.dtype = torch.bfloat16,
    batch: int = 1,
    splits: int | None = None,
) -> None:
    """Random inputs, NaN in all keys that nobody sees, against the oracle and against one program per tile."""
    q, k, v = random_inputs(batch, *heads, rows, keys, dim, dtype, "cuda")
    visible = mask.dense(rows, keys)
    unseen = ~visible.flatten(0, 2).any(dim=0)
    k[:, :, unseen], v[:, :, unseen] = torch.nan, torch.nan
    out, lse = attend(q, k, v, mask, splits)
    whole, whole_lse = attend(q, k, v, mask, 0)
    expected, expected_lse = dense_attention(q, k.nan_to_num(), v, visible)
    assert out.dtype == dtype
    assert_close(out, expected, TOLERANCE[dtype], "out")
    assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")
    assert_close(out, whole, TOLERANCE[dtype], "out beside that of one program per tile")
    assert_close(lse, whole_lse, LSE_TOLERANCE[dtype], "lse beside that of one program per tile")


def launches(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: cm.Mask) -> set[str]:
    """Kernels that attention launches."""
    stream = io.StringIO()
    with cm.debug(launches=True, stream=stream):
        cm.attention(q, k, v, mask)
    torch.cuda.synchronize()
    return {line.split()[2] for line in stream.getvalue().splitlines() if line.startswith("// launch")}


def test_few_rows_are_split_and_many_are_not() -> None:
    q, k, v = random_inputs(1, 8, 2, 200, 8192, 64, torch.bfloat16, "cuda")
    parts = {"attention_split", "attention_combine"}
    assert launches(q[:, :, :4], k, v, cm.full()) >= parts
    assert not launches(q, k, v, cm.full()) & parts
    assert not launches(q[:, :, :4], k[:, :, :500], v[:, :, :500], cm.full()) & parts


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("keys", [4096, 10_007, 100_000])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 13, 16])
def test_the_last_rows_of_a_sequence(rows: int, keys: int, dtype: torch.dtype) -> None:
    for heads in HEADS:
        check(cm.causal(align="bottom_right"), rows, keys, heads, 128, dtype)


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_a_million_keys(rows: int) -> None:
    check(cm.causal(align="bottom_right"), rows, 1_000_000, (4, 1), 64)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", [1, 16, 40, 96, 192, 256])
def test_head_dims(dim: int, dtype: torch.dtype) -> None:
    check(cm.causal(align="bottom_right"), 3, 5000, (4, 2), dim, dtype)
    check(cm.causal(align="bottom_right"), 60, 5000, (2, 1), dim, dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_lengths_of_batches_below_the_capacity(dtype: torch.dtype) -> None:
    lengths = torch.tensor([4, 130, 9000, 100_000], dtype=torch.int32)
    for heads in HEADS:
        check(cached(4, lengths), 4, 100_000, heads, 64, dtype, batch=4)
        check(cm.padding(lengths[:, None]), 4, 100_000, heads, 64, dtype, batch=4)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("rows", [1, 7, 16, 100])
def test_masks(name: str, rows: int) -> None:
    heads = (4, 2)
    for splits in (None, 3):
        check(MASKS[name](rows, 9000), rows, 9000, heads, batch=2, splits=splits)


@pytest.mark.parametrize("name", ["causal", "clear", "shared prompt", "hstu", "labels"])
def test_many_query_tiles(name: str) -> None:
    for splits in (1, 5):
        check(MASKS[name](1000, 1000), 1000, 1000, batch=2, splits=splits)


@pytest.mark.parametrize("splits", [1, 2, 7, 64, 512])
def test_splits(splits: int) -> None:
    """More of them than visits, too."""
    for keys in (1, 129, 5000, 40_000):
        check(cm.causal(align="bottom_right"), 2, keys, splits=splits)


def test_rows_that_see_nothing() -> None:
    check(cm.where(lambda q, kv: (q % 3 == 0) & (kv < 7000)), 7, 9000)
    q, k, v = random_inputs(2, 4, 2, 3, 9000, 64, torch.bfloat16, "cuda")
    out, lse = attend(q, k, v, cm.padding(torch.zeros(2, 1, dtype=torch.int32)))
    assert not out.any()
    assert (lse == -torch.inf).all()


def test_blocks_that_were_chosen() -> None:
    """Thousands of runs of one tile."""
    check(cm.where(lambda q, kv: (kv // 128) % 2 == 0), 1, 700_000)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", [name for name, case in cases(2, 4).items() if not case.pointwise])
def test_scores(name: str, dtype: torch.dtype) -> None:
    case = cases(2, 4, "cuda")[name]
    mask = cm.causal(align="bottom_right")
    q, k, v = random_inputs(2, 4, 2, 5, 9000, 64, dtype, "cuda")
    poison(64, q)
    out, lse = cm.attention(q, k, v, mask, score=case.score, return_lse=True)
    expected, expected_lse = dense_scored(case, q, k, v, mask.dense(5, 9000))
    # A float32 score is known to 2^-24 of its size, and its weight to as much as it: ALiBi gives scores of thousands.
    unknown = 2.0**-24 * float(expected_lse.abs().max())
    assert_close(out, expected, TOLERANCE[dtype] + unknown, "out")
    assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")


def test_pointwise_weights() -> None:
    case = cases(2, 4, "cuda")["silu over a length"]
    q, k, v = random_inputs(2, 4, 2, 5, 9000, 64, torch.float16, "cuda")
    out = cm.attention(q, k, v, cm.full(), score=case.score)
    visible = torch.ones(1, 1, 5, 9000, dtype=torch.bool)
    assert_close(out, dense_scored(case, q, k, v, visible)[0], TOLERANCE[torch.float16])


def test_strided_and_misaligned_inputs() -> None:
    mask = cm.causal(align="bottom_right")
    q, k, v = random_inputs(2, 8, 2, 3, 9000, 64, torch.float16, "cuda")
    expected, _ = dense_attention(q, k, v, mask.dense(3, 9000))
    swapped = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    columns = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]
    shifted = [torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape) for x in (q, k, v)]
    cache = [torch.cat([x, torch.full_like(x, torch.nan)], dim=2)[:, :, : x.shape[2]] for x in (q, k, v)]
    for given in (swapped, columns, shifted, cache):
        assert_close(cm.attention(*given, mask=mask), expected, TOLERANCE[torch.float16])
    assert_close(cm.attention(-q, k, v, mask, scale=-0.125), expected, TOLERANCE[torch.float16])


@pytest.mark.parametrize("rows", [1, 16])
def test_runs_are_equal_bit_by_bit(rows: int) -> None:
    q, k, v = random_inputs(2, 8, 2, rows, 30_000, 128, torch.bfloat16, "cuda")
    mask = cm.compile(cm.causal(align="bottom_right") & cm.where(lambda q, kv: (kv // 1000) % 3 != 1))
    first = attend(q, k, v, mask)
    for _ in range(20):
        assert all(torch.equal(a, b) for a, b in zip(first, attend(q, k, v, mask), strict=True))


def test_captured_with_lengths_changed_in_place() -> None:
    """New tokens are appended to a cache, and lengths grow on the device: a graph is captured once."""
    capacity, rows = 50_000, 2
    lengths = torch.tensor([rows, 49_000], dtype=torch.int32, device="cuda")
    compiled = cm.compile(cached(rows, lengths))
    q, k, v = random_inputs(2, 8, 2, rows, capacity, 128, torch.bfloat16, "cuda")
    compiled.attention(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = compiled.attention(q, k, v)
    for new in ([5, 49_001], [128, 3000], [129, 50_000], [4096, 2], [20_000, 777]):
        lengths.copy_(torch.tensor(new, dtype=torch.int32))
        out.fill_(torch.nan)
        graph.replay()
        visible = cached(rows, torch.tensor(new, dtype=torch.int32)).dense(rows, capacity)
        assert_close(out, dense_attention(q, k, v, visible)[0], TOLERANCE[torch.bfloat16])


def test_new_lengths_compile_nothing() -> None:
    q, k, v = random_inputs(1, 8, 2, 4, 30_000, 64, torch.float16, "cuda")
    mask = cm.compile(cm.causal(align="bottom_right"))
    mask.attention(q, k, v)
    before = compiled_kernels()
    for rows, keys in ((1, 4096), (2, 9000), (4, 29_999)):
        mask.attention(q[:, :, :rows], k[:, :, :keys], v[:, :, :keys])
    assert compiled_kernels() == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients(dtype: torch.dtype) -> None:
    mask = cm.causal(align="bottom_right")
    q, k, v = (x.requires_grad_() for x in random_inputs(1, 8, 2, 5, 9000, 64, dtype, "cuda"))
    out, lse = cm.attention(q, k, v, mask, return_lse=True)
    grad, grad_lse = torch.randn_like(out), torch.randn_like(lse)
    found = torch.autograd.grad((out, lse), (q, k, v), (grad, grad_lse))
    expected = dense_gradients(q.detach(), k.detach(), v.detach(), mask.dense(5, 9000), grad, grad_lse)
    for gradient, reference, name in zip(found, expected, "qkv", strict=True):
        assert_close(gradient, reference, 1e-4 if dtype == torch.float32 else 8e-3, f"gradient of {name}")


def test_a_tile_that_found_no_room_is_nan() -> None:
    q, k, v = random_inputs(1, 8, 2, 3, 9000, 64, torch.bfloat16, "cuda")
    descriptor = cm.compile(cm.full()).descriptor(3, 9000, "cuda").clone()
    descriptor.order[0, 0, 0, 2] = -1
    out, lse = cm.attention(q, k, v, descriptor, return_lse=True)
    assert out.isnan().all()
    assert lse.isnan().all()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_on_another_device_than_the_current_one() -> None:
    q, k, v = random_inputs(1, 8, 2, 3, 9000, 64, torch.float16, "cuda:1")
    mask = cm.causal(align="bottom_right")
    expected, _ = dense_attention(q, k, v, mask.dense(3, 9000))
    assert_close(cm.attention(q, k, v, mask), expected, TOLERANCE[torch.float16])


def test_other_streams() -> None:
    q, k, v = random_inputs(1, 8, 2, 3, 9000, 64, torch.float16, "cuda")
    mask = cm.causal(align="bottom_right")
    expected = cm.attention(q, k, v, mask)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        out = cm.attention(q, k, v, mask)
    stream.synchronize()
    assert torch.equal(out, expected)
