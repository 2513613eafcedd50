"""Attention on the GPU against the dense oracle."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, random_inputs
from sample_masks import MASKS, random_offsets

import compilemask
from compilemask.runtime import attention, compile, compiled_kernels

TYPES = [torch.float32, torch.float16, torch.bfloat16]
HEADLINES = ["causal", "hstu", "shared prompt", "clear"]
SIZES = [(1, 1), (17, 17), (128, 128), (1000, 1000), (1024, 1024), (4096, 4096)]
SIZES += [(777, 777), (333, 1111), (1111, 333), (1, 1000), (129, 4095)]
HEADS = [(8, 8), (9, 3), (12, 2)]


@lru_cache(maxsize=4)
def dense(name: str, queries: int, keys: int) -> torch.Tensor:
    return MASKS[name](queries, keys).dense(queries, keys).cuda()


def check(
    name: str, heads: tuple[int, int], queries: int, keys: int, dim: int, dtype: torch.dtype, batch: int = 1
) -> None:
    """Attention over memory full of NaN against the oracle."""
    q, k, v = random_inputs(batch, *heads, queries, keys, dim, dtype, "cuda")
    poison(q)
    out, lse = attention(q, k, v, MASKS[name](queries, keys), return_lse=True)
    expected, expected_lse = dense_attention(q, k, v, dense(name, queries, keys))
    assert out.dtype == dtype
    assert_close(out, expected, TOLERANCE[dtype], "out")
    assert_close(lse, expected_lse, 1e-5 if dtype == torch.float32 else 1e-4, "lse")


def poison(like: torch.Tensor) -> None:
    """Fill the memory that the next outputs will get with NaN."""
    blocks = [torch.full_like(like, torch.nan) for _ in range(3)]
    blocks.append(torch.full(like.shape[:3], torch.nan, device=like.device))
    del blocks


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", HEADLINES)
@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_headline_grid(name: str, queries: int, keys: int, dim: int, dtype: torch.dtype) -> None:
    for heads in HEADS:
        check(name, heads, queries, keys, dim, dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str, dtype: torch.dtype) -> None:
    for queries, keys in ((17, 17), (137, 300), (300, 200), (1000, 1000), (2048, 2048)):
        check(name, (4, 2), queries, keys, 64, dtype, batch=2)


@pytest.mark.parametrize("name", ["hstu", "shared prompt", "clear", "causal documents per batch"])
@pytest.mark.parametrize("dim", [64, 128])
def test_headline_masks_long(name: str, dim: int) -> None:
    check(name, (4, 4), 4096, 4096, dim, torch.bfloat16, batch=2)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", [1, 16, 40, 72, 96, 192, 256])
def test_other_head_dims(dim: int, dtype: torch.dtype) -> None:
    check("causal", (2, 1), 333, 333, dim, dtype)


def test_strided_and_misaligned_inputs() -> None:
    mask = MASKS["causal"](200, 200)
    q, k, v = random_inputs(2, 4, 2, 200, 200, 64, torch.float16, "cuda")
    expected, _ = dense_attention(q, k, v, mask.dense(200, 200))
    transposed = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert_close(attention(*transposed, mask=mask), expected, TOLERANCE[torch.float16])
    columns = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]
    assert_close(attention(*columns, mask=mask), expected, TOLERANCE[torch.float16])
    shifted = [torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape) for x in (q, k, v)]
    assert_close(attention(*shifted, mask=mask), expected, TOLERANCE[torch.float16])


def test_empty_sequences() -> None:
    for queries, keys in ((0, 10), (10, 0), (0, 0)):
        q, k, v = random_inputs(2, 4, 2, queries, keys, 64, torch.float16, "cuda")
        out, lse = attention(q, k, v, compilemask.causal(), return_lse=True)
        assert out.shape == q.shape
        assert not out.any()
        assert (lse == -torch.inf).all()


@pytest.mark.parametrize("name", ["documents", "causal", "window", "hstu", "shared prompt"])
def test_keys_that_no_row_sees_are_not_read(name: str) -> None:
    mask = MASKS[name](600, 900)
    q, k, v = random_inputs(1, 2, 2, 600, 900, 64, torch.float16, "cuda")
    expected = attention(q, k, v, mask)
    unseen = ~dense(name, 600, 900)[0, 0].any(dim=0)
    k[:, :, unseen], v[:, :, unseen] = torch.nan, torch.nan
    assert torch.equal(attention(q, k, v, mask), expected)


def test_runs_are_equal_bit_by_bit() -> None:
    q, k, v = random_inputs(2, 4, 2, 1000, 1000, 128, torch.bfloat16, "cuda")
    mask = MASKS["shared prompt"](1000, 1000)
    first = attention(q, k, v, mask, return_lse=True)
    second = attention(q, k, v, mask, return_lse=True)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_new_lengths_and_masks_compile_no_attention() -> None:
    q, k, v = random_inputs(1, 2, 2, 300, 300, 64, torch.float16, "cuda")
    for name in MASKS:
        if not name.endswith(("batch", "head")):
            attention(q, k, v, MASKS[name](300, 300))
    before = compiled_kernels()
    for length in (1, 200, 1025):
        q, k, v = random_inputs(1, 2, 2, length, length, 64, torch.float16, "cuda")
        for name in ("hstu", "shared prompt", "window"):
            attention(q, k, v, MASKS[name](length, length))
    assert compiled_kernels() == before


def test_captured_with_lengths_changed_in_place() -> None:
    length = 1000
    offsets = random_offsets(length, 5).cuda()
    compiled = compile(compilemask.shared_prompt(offsets))
    q, k, v = random_inputs(1, 2, 2, length, length, 64, torch.float16, "cuda")
    compiled.attention(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = compiled.attention(q, k, v)
    for prompt in (10, 400, 999):
        new = torch.tensor([0, prompt, prompt, 999, 999, length], dtype=torch.int32)
        offsets.copy_(new)
        graph.replay()
        expected, _ = dense_attention(q, k, v, compilemask.shared_prompt(new).dense(length, length))
        assert_close(out, expected, TOLERANCE[torch.float16])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_on_another_device_than_the_current_one() -> None:
    mask = MASKS["hstu"](500, 500)
    q, k, v = random_inputs(1, 2, 2, 500, 500, 64, torch.float16, "cuda:1")
    assert torch.cuda.current_device() == 0
    for _ in range(2):
        out = attention(q, k, v, mask)
        assert out.device == q.device
        assert_close(out, dense_attention(q, k, v, mask.dense(500, 500))[0], TOLERANCE[torch.float16])
        assert_close(attention(q.to("cuda:0"), k.to("cuda:0"), v.to("cuda:0"), mask), out, 1e-6)


def test_other_streams() -> None:
    mask = MASKS["labels"](700, 700)
    q, k, v = random_inputs(1, 2, 2, 700, 700, 64, torch.float16, "cuda")
    expected = attention(q, k, v, mask)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        out = attention(q, k, v, mask)
    stream.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", TYPES)
def test_negative_scale(dtype: torch.dtype) -> None:
    q, k, v = random_inputs(1, 4, 2, 300, 300, 64, dtype, "cuda")
    mask = compilemask.causal()
    out, lse = compilemask.attention(q, k, v, mask, scale=-0.2, return_lse=True)
    expected, expected_lse = dense_attention(q, k, v, mask.dense(300, 300), -0.2)
    assert_close(out, expected, TOLERANCE[dtype], "out")
    assert_close(lse, expected_lse, 1e-4, "lse")
