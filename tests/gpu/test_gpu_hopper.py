"""The Hopper attention kernel on the GPU against the dense oracle and the portable kernel."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, random_inputs
from sample_masks import MASKS, random_offsets

import compilemask
from compilemask.errors import DescriptorError
from compilemask.lowering.tiling_to_ttg.attention import HopperConfig, Schedule
from compilemask.runtime import compile
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.gpu.attention_cuda import ELEMENTS, attention_cuda
from compilemask.runtime.gpu.hopper import attention_gpu, attention_hopper, best_rows, has_hopper_kernel

if torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs sm_90", allow_module_level=True)

TYPES = [torch.float16, torch.bfloat16]
HEADLINES = ["causal", "hstu", "shared prompt", "clear"]
SIZES = [(1, 1), (17, 17), (128, 128), (1000, 1000), (1024, 1024), (4096, 4096)]
SIZES += [(777, 777), (333, 1111), (1111, 333), (1, 1000), (129, 4095)]
HEADS = [(8, 8), (9, 3), (12, 2)]
VARIANTS = {
    "grid": (Schedule.GRID, True),
    "turns by mbarriers": (Schedule.GRID, False),
    "static": (Schedule.STATIC, True),
    "static, turns by mbarriers": (Schedule.STATIC, False),
    "atomic": (Schedule.ATOMIC, True),
}
"""Schedule, and whether turns are taken by named barriers."""
DIMS_AND_ROWS = [(64, 64), (64, 128), (64, 192), (128, 64), (128, 128)]
LAUNCHES = 500


def variant(name: str, dim: int, dtype: torch.dtype, rows: int = 128) -> HopperConfig:
    from dataclasses import replace

    schedule, named_barriers = VARIANTS[name]
    return replace(HopperConfig.choose(dim, ELEMENTS[dtype], rows, schedule), named_barriers=named_barriers)


@lru_cache(maxsize=4)
def dense(name: str, queries: int, keys: int) -> torch.Tensor:
    return MASKS[name](queries, keys).dense(queries, keys).cuda()


def hopper(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, descriptor: Descriptor, config: HopperConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel itself, without a way back to the portable one."""
    assert has_hopper_kernel(q, k, v)
    return attention_hopper(q, k, v, descriptor, q.shape[-1] ** -0.5, config)


def poison(like: torch.Tensor) -> None:
    """Fill the memory that the next outputs will get with NaN."""
    blocks = [torch.full_like(like, torch.nan) for _ in range(3)]
    blocks.append(torch.full(like.shape[:3], torch.nan, device=like.device))
    del blocks


def check(
    name: str,
    heads: tuple[int, int],
    queries: int,
    keys: int,
    dim: int,
    dtype: torch.dtype,
    batch: int = 1,
    config: HopperConfig | None = None,
    rows: int = 128,
) -> None:
    """Attention over memory full of NaN, with NaN where nobody looks, against the oracle and the portable kernel."""
    q, k, v = random_inputs(batch, *heads, queries, keys, dim, dtype, "cuda")
    visible = dense(name, queries, keys)
    unseen = ~visible.flatten(0, 2).any(dim=0)
    k[:, :, unseen], v[:, :, unseen] = torch.nan, torch.nan
    config = variant("grid", dim, dtype, rows) if config is None else config
    compiled = compile(MASKS[name](queries, keys))
    descriptor = compiled.descriptor(queries, keys, q.device, rows=config.rows)
    poison(q)
    out, lse = hopper(q, k, v, descriptor, config)
    expected, expected_lse = dense_attention(q, k.nan_to_num(), v.nan_to_num(), visible)
    assert_close(out, expected, TOLERANCE[dtype], "out")
    assert_close(lse, expected_lse, 1e-4, "lse")
    portable, portable_lse = attention_cuda(q, k, v, compiled.descriptor(queries, keys, q.device), dim**-0.5)
    assert_close(out, portable, TOLERANCE[dtype], "out beside the portable kernel's")
    assert_close(lse, portable_lse, 1e-5, "lse beside the portable kernel's")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("dim", "rows"), DIMS_AND_ROWS)
@pytest.mark.parametrize("name", HEADLINES)
@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_headline_grid(name: str, queries: int, keys: int, dim: int, rows: int, dtype: torch.dtype) -> None:
    for heads in HEADS:
        check(name, heads, queries, keys, dim, dtype, rows=rows)


@pytest.mark.parametrize(("dim", "rows"), DIMS_AND_ROWS)
@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str, dim: int, rows: int) -> None:
    for queries, keys in ((17, 17), (137, 300), (300, 200), (1000, 1000), (2048, 2048)):
        check(name, (4, 2), queries, keys, dim, torch.bfloat16, batch=2, rows=rows)


@pytest.mark.parametrize("dim", [8, 32, 80, 96, 120])
def test_head_dims_between(dim: int) -> None:
    config = variant("atomic", 64 if dim < 64 else 128, torch.float16)
    for name in ("causal", "shared prompt"):
        check(name, (4, 2), 300, 300, dim, torch.float16, batch=2, config=config)


@pytest.mark.parametrize(("dim", "rows"), DIMS_AND_ROWS)
@pytest.mark.parametrize("chosen", VARIANTS)
@pytest.mark.parametrize("name", ["causal", "shared prompt", "full"])
def test_variants(name: str, chosen: str, dim: int, rows: int) -> None:
    config = variant(chosen, dim, torch.bfloat16, rows)
    for queries, keys in ((200, 300), (1024, 1024), (4096, 4096)):
        check(name, (8, 4), queries, keys, dim, torch.bfloat16, batch=2, config=config)


@pytest.mark.parametrize("dim", [64, 128])
def test_strides(dim: int) -> None:
    """TMA reads [B, S, H, D], rows with gaps and packed qkv where they lie."""
    mask = compile(compilemask.causal()).descriptor(300, 300, "cuda")
    config = variant("grid", dim, torch.float16)
    q, k, v = random_inputs(2, 4, 4, 300, 300, dim, torch.float16, "cuda")
    expected, _ = hopper(q, k, v, mask, config)
    swapped = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    wide = [torch.cat([x, x.new_full((2, 4, 300, 8), torch.nan)], dim=-1)[..., :dim] for x in (q, k, v)]
    packed = list(torch.stack([x.transpose(1, 2) for x in (q, k, v)], dim=2).unbind(2))
    packed = [x.transpose(1, 2) for x in packed]
    for q, k, v in (swapped, wide, packed):
        assert torch.equal(hopper(q, k, v, mask, config)[0], expected)


def test_rows_that_attention_takes() -> None:
    """With D = 64 tiles have 192 rows if there are more than processors; a descriptor has its own."""
    mask = compilemask.causal()
    compiled = compile(mask)
    q, k, v = random_inputs(2, 8, 4, 2500, 2500, 64, torch.bfloat16, "cuda")
    expected, _ = dense_attention(q, k, v, mask.dense(2500, 2500))
    assert best_rows(q, k, v) == 192
    assert best_rows(q[:, :, :100], k, v) == 64
    high, low = (compiled.descriptor(2500, 2500, "cuda", rows=rows) for rows in (192, None))
    found = [compilemask.attention(q, k, v, given) for given in (mask, high, low)]
    assert torch.equal(found[0], found[1])
    for out in found:
        assert_close(out, expected, TOLERANCE[torch.bfloat16])


def test_rows_that_the_portable_kernel_has_not() -> None:
    descriptor = compile(compilemask.causal()).descriptor(200, 200, "cuda", rows=192)
    for dim, dtype in ((64, torch.float32), (128, torch.float16), (256, torch.float16)):
        q, k, v = random_inputs(1, 2, 2, 200, 200, dim, dtype, "cuda")
        with pytest.raises(DescriptorError, match="tiles of 192 query rows; for these inputs expected 128"):
            compilemask.attention(q, k, v, descriptor)


def test_what_tma_cannot_read_takes_the_portable_kernel() -> None:
    mask = compilemask.causal()
    descriptor = compile(mask).descriptor(200, 200, "cuda")
    q, k, v = random_inputs(2, 4, 2, 200, 200, 64, torch.float16, "cuda")
    expected, _ = dense_attention(q, k, v, mask.dense(200, 200))
    columns = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]
    shifted = [torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape) for x in (q, k, v)]
    for q, k, v in (columns, shifted):
        assert not has_hopper_kernel(q, k, v)
        assert_close(attention_gpu(q, k, v, descriptor, 0.125)[0], expected, TOLERANCE[torch.float16])


@pytest.mark.parametrize("chosen", VARIANTS)
@pytest.mark.parametrize(("dim", "rows"), [(64, 192), (128, 128)])
def test_launches_are_equal_bit_by_bit(dim: int, rows: int, chosen: str) -> None:
    q, k, v = random_inputs(2, 8, 4, 1100, 1100, dim, torch.bfloat16, "cuda")
    descriptor = compile(MASKS["shared prompt"](1100, 1100)).descriptor(1100, 1100, q.device, rows=rows)
    config = variant(chosen, dim, torch.bfloat16, rows)
    first = hopper(q, k, v, descriptor, config)
    differences = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(LAUNCHES):
        for a, b in zip(first, hopper(q, k, v, descriptor, config), strict=True):
            differences += (a != b).sum()
    assert not int(differences)


@pytest.mark.parametrize("chosen", ["grid", "atomic"])
def test_captured_with_lengths_changed_in_place(chosen: str) -> None:
    length = 1000
    offsets = random_offsets(length, 5).cuda()
    compiled = compile(compilemask.shared_prompt(offsets))
    config = variant(chosen, 64, torch.float16)
    q, k, v = random_inputs(1, 2, 2, length, length, 64, torch.float16, "cuda")

    def call() -> torch.Tensor:
        return hopper(q, k, v, compiled.descriptor(length, length, "cuda"), config)[0]

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    for prompt in (10, 400, 999):
        new = torch.tensor([0, prompt, prompt, 999, 999, length], dtype=torch.int32)
        offsets.copy_(new)
        graph.replay()
        expected, _ = dense_attention(q, k, v, compilemask.shared_prompt(new).dense(length, length))
        assert_close(out, expected, TOLERANCE[torch.float16])


@pytest.mark.parametrize("dim", [64, 128])
def test_a_tile_that_found_no_room_is_nan(dim: int) -> None:
    descriptor = compile(compilemask.causal()).descriptor(300, 300, "cuda").clone()
    descriptor.order[0, 0, 1, 2] = -1
    q, k, v = random_inputs(1, 1, 1, 300, 300, dim, torch.float16, "cuda")
    out, lse = hopper(q, k, v, descriptor, variant("grid", dim, torch.float16))
    assert out[0, 0, 128:256].isnan().all()
    assert lse[0, 0, 128:256].isnan().all()
    assert not out[0, 0, :128].isnan().any()
    assert not out[0, 0, 256:].isnan().any()


def test_streams_and_threads_do_not_share_arguments() -> None:
    from concurrent.futures import ThreadPoolExecutor

    descriptor = compile(compilemask.causal()).descriptor(500, 500, "cuda")
    config = variant("grid", 64, torch.float16)
    inputs = [random_inputs(1, 2, 2, 500, 500, 64, torch.float16, "cuda", seed) for seed in range(8)]
    expected = [hopper(*x, descriptor, config)[0] for x in inputs]
    torch.cuda.synchronize()

    def work(index: int) -> bool:
        with torch.cuda.stream(torch.cuda.Stream()):
            results = [hopper(*inputs[index], descriptor, config)[0] for _ in range(50)]
            torch.cuda.current_stream().synchronize()
            return all(torch.equal(result, expected[index]) for result in results)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
