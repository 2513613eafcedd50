"""The attention kernel, executed in numpy over descriptors built on the CPU, against dense attention in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, random_inputs
from sample_masks import MASKS
from xdsl.dialects.builtin import AnyFloat, ModuleOp, bf16, f16, f32
from xdsl.parser import Parser

import compilemask
from compilemask.dialects.registry import make_context
from compilemask.dialects.semantics.triton import MemoryFault, run_kernel
from compilemask.errors import LoweringError
from compilemask.language.mask import Mask
from compilemask.lowering.tiling_to_tt.attention import AttentionConfig, attention_module, attention_op, emit
from compilemask.lowering.tiling_to_tt.attention_frame import kernel_arguments
from compilemask.runtime import compile
from compilemask.runtime.descriptor import Descriptor

ELEMENT: dict[torch.dtype, AnyFloat] = {torch.float16: f16, torch.bfloat16: bf16, torch.float32: f32}
WIDE = AttentionConfig(128, 128)
LSE_TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-4, torch.bfloat16: 1e-4}


def run(
    kernel: ModuleOp,
    config: AttentionConfig,
    descriptor: Descriptor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    **changed: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of a kernel, in memory that was full of NaN; `changed` replaces arguments by name."""
    batch, heads = q.shape[:2]
    out, lse = q.new_full(q.shape, torch.nan), torch.full(q.shape[:3], torch.nan)
    layout = descriptor.layout
    sections = [descriptor.order, descriptor.visits, descriptor.patterns, descriptor.columns]
    values: list[Any] = [
        *(memory(x) for x in (q, k, v, out)),
        lse.numpy().reshape(-1),
        *(section.contiguous().numpy().reshape(-1) for section in sections),
        *(stride for x in (q, k, v, out) for stride in x.stride()[:3]),
        *(heads, heads // k.shape[1], layout.queries, layout.keys, layout.query_tiles),
        *(layout.heads if layout.batch > 1 else 0, 1 if layout.heads > 1 else 0),
        scale,
    ]
    names = [argument.name for argument in kernel_arguments(f32, config.aligned)]
    arguments = dict(zip(names, values, strict=True)) | changed
    run_kernel(kernel, (layout.query_tiles * config.programs_per_tile, heads, batch), arguments, seed=0)
    return torch.from_numpy(arguments["out"]).view(out.dtype).view(out.shape), lse


def memory(x: torch.Tensor) -> np.ndarray:
    """The memory behind a tensor, copied, as the interpreter takes it: bf16 as its bits."""
    flat = torch.as_strided(x, (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0).clone()
    return flat.view(torch.int16).numpy().view(np.uint16) if x.dtype == torch.bfloat16 else flat.numpy()


def kernel_of(dtype: torch.dtype, head_dim: int, config: AttentionConfig) -> ModuleOp:
    return emit(attention_op(attention_module(head_dim, ELEMENT[dtype])), config)


def check(
    mask: Mask,
    queries: int,
    keys: int,
    *,
    heads: tuple[int, int] = (1, 1),
    batch: int = 1,
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    config: AttentionConfig = WIDE,
    scale: float | None = None,
) -> None:
    """Attention of random inputs, NaN in all keys that nobody sees, against the oracle."""
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    if head_dim % 8:
        config = replace(config, aligned=False)
    q, k, v = random_inputs(batch, *heads, queries, keys, head_dim, dtype)
    visible = mask.dense(queries, keys)
    unseen = ~visible.flatten(0, 2).any(dim=0)
    k[:, :, unseen], v[:, :, unseen] = torch.nan, torch.nan
    descriptor = compile(mask).descriptor(queries, keys).check()
    out, lse = run(kernel_of(dtype, head_dim, config), config, descriptor, q, k, v, scale)
    expected, expected_lse = dense_attention(q, k.nan_to_num(), v.nan_to_num(), visible, scale)
    assert_close(out, expected, TOLERANCE[dtype], "out")
    assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    per_head = name.endswith("per head")
    batch = 2 if name.endswith("per batch") else 1
    check(MASKS[name](300, 300), 300, 300, heads=(4, 2) if per_head else (2, 1), batch=batch)


@pytest.mark.parametrize("block_q", [32, 64, 128])
@pytest.mark.parametrize("block_kv", [16, 32, 64, 128])
def test_blocks(block_q: int, block_kv: int) -> None:
    config = AttentionConfig(block_q, block_kv)
    check(compilemask.causal() & compilemask.window(150), 200, 200, config=config)
    check(compilemask.full(), 100, 260, config=config)


@pytest.mark.parametrize("name", ["causal", "window", "clear", "scattered"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (17, 300), (300, 17), (129, 255), (200, 300)])
def test_lengths(name: str, queries: int, keys: int) -> None:
    check(MASKS[name](queries, keys), queries, keys)


def test_rows_that_see_nothing() -> None:
    empty = compilemask.where(lambda q, kv: (q % 3 == 0) & (kv < 150))
    check(empty, 200, 200)
    check(compilemask.padding(torch.zeros(1, dtype=torch.int32)), 140, 140)


@pytest.mark.parametrize("dtype", ELEMENT)
@pytest.mark.parametrize("head_dim", [1, 24, 64])
def test_types_and_head_dims(dtype: torch.dtype, head_dim: int) -> None:
    check(compilemask.causal(), 200, 200, head_dim=head_dim, dtype=dtype)


def test_grouped_heads_and_batches() -> None:
    check(compilemask.causal(), 150, 150, heads=(9, 3), batch=2)
    check(MASKS["hstu per batch"](200, 200), 200, 200, heads=(3, 1), batch=2)


@pytest.mark.parametrize("scale", [0.0, -0.3, 3.0])
def test_scales(scale: float) -> None:
    check(compilemask.causal(), 200, 200, scale=scale, config=AttentionConfig(128, 128, negative_scale=True))


def test_negative_scale_is_a_fault_of_variants_without_it() -> None:
    out, lse = _attend(*random_inputs(1, 1, 1, 40, 40, 16), scale=-1.0)
    assert out.isnan().all()
    assert lse.isnan().all()


def test_large_scores() -> None:
    q, k, v = random_inputs(1, 1, 1, 200, 200, 16)
    mask = compilemask.causal()
    out, lse = _attend(q * 1e15, k * 1e15, v, mask=mask)
    expected, expected_lse = dense_attention(q * 1e15, k * 1e15, v, mask.dense(200, 200), 1.0)
    assert_close(out, expected, 1e-2)
    assert_close(lse, expected_lse, 1e-5)


def test_nan_and_infinity_stay_in_the_rows_that_see_them() -> None:
    q, k, v = random_inputs(1, 1, 1, 300, 300, 16)
    clean, _ = _attend(q, k, v, mask=compilemask.causal())
    k[0, 0, 280] = torch.nan
    out, lse = _attend(q, k, v, mask=compilemask.causal())
    assert torch.equal(out[0, 0, :280], clean[0, 0, :280])
    assert out[0, 0, 280:].isnan().all()
    assert lse[0, 0, 280:].isnan().all()


def test_a_tile_that_found_no_room_is_nan() -> None:
    descriptor = compile(compilemask.causal()).descriptor(300, 300).clone()
    descriptor.order[0, 0, 1, 2] = -1
    q, k, v = random_inputs(1, 1, 1, 300, 300, 16)
    expected, _ = _attend(q, k, v, mask=compilemask.causal())
    out, lse = run(kernel_of(q.dtype, 16, WIDE), WIDE, descriptor, q, k, v, 1.0)
    assert out[0, 0, 128:256].isnan().all()
    assert lse[0, 0, 128:256].isnan().all()
    outside = torch.cat([torch.arange(128), torch.arange(256, 300)])
    assert torch.equal(out[0, 0, outside], expected[0, 0, outside])


def test_strides_are_those_of_the_arguments() -> None:
    q, k, v = random_inputs(2, 4, 2, 140, 140, 16)
    expected, _ = _attend(q, k, v, mask=compilemask.causal())
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    out, _ = _attend(*strided, mask=compilemask.causal())
    assert torch.equal(out, expected)


@pytest.mark.parametrize("name", [f"{tensor}_{dim}" for tensor in "qkvo" for dim in "bh"])
def test_offsets_of_heads_and_batches_are_64_bit(name: str) -> None:
    """A stride of 2**32 elements leads out of memory; with 32 bits it would be 0."""
    q, k, v = random_inputs(2, 2, 2, 5, 5, 16)
    descriptor = compile(compilemask.causal()).descriptor(5, 5)
    with pytest.raises(MemoryFault):
        run(kernel_of(q.dtype, 16, WIDE), WIDE, descriptor, q, k, v, 1.0, **{name: 2**32})


def test_strides_without_alignment() -> None:
    config = AttentionConfig(128, 128, aligned=False)
    q, k, v = (x[..., :13] for x in random_inputs(1, 2, 1, 140, 140, 15))
    out, _ = _attend(q, k, v, mask=compilemask.causal(), config=config)
    expected, _ = dense_attention(q, k, v, compilemask.causal().dense(140, 140), 1.0)
    assert_close(out, expected, TOLERANCE[torch.float32])


SCORED = """
func.func @attention(%q: TENSOR, %k: TENSOR, %v: TENSOR, %d: !tiling.descriptor, %scale: f32) {
  %out, %lse = tiling.attention %q, %k, %v following %d scale %scale precision ieee weights softmax {
  ^bb0(%score: f32, %b: i32, %h: i32, %row: i32, %kv: i32):
    %slope = arith.constant 5.000000e-02 : f32
    %distance = arith.subi %kv, %row : i32
    %number = arith.sitofp %distance : i32 to f32
    %bias = arith.mulf %number, %slope : f32
    %far = arith.constant -30 : i32
    %is_near = arith.cmpi sgt, %distance, %far : i32
    %biased = arith.addf %score, %bias : f32
    %capped = math.tanh %biased : f32
    %1 = arith.select %is_near, %capped, %biased : f32
    tiling.yield %1
  } : TENSOR, TENSOR, TENSOR -> TENSOR, tensor<?x?x?xf32>
  func.return
}
""".replace("TENSOR", "tensor<?x?x?x16xf32>")


@pytest.mark.parametrize("config", [WIDE, AttentionConfig(64, 32)])
def test_score_region(config: AttentionConfig) -> None:
    op = attention_op(Parser(make_context(), SCORED).parse_module())
    q, k, v = random_inputs(1, 1, 1, 200, 200, 16)
    mask = compilemask.causal()
    descriptor = compile(mask).descriptor(200, 200)
    out, lse = run(emit(op, config), config, descriptor, q, k, v, -0.5)
    distance = torch.arange(200)[None, :] - torch.arange(200)[:, None]
    scores = -0.5 * (q[0, 0].double() @ k[0, 0].double().T) + 0.05 * distance
    scores = torch.where(distance > -30, scores.tanh(), scores)
    scores = scores.masked_fill(~mask.dense(200, 200)[0, 0], -torch.inf)
    assert_close(out[0, 0], scores.softmax(-1) @ v[0, 0].double(), 2e-5, "out")
    assert_close(lse[0, 0], scores.logsumexp(-1), 1e-5, "lse")


def test_score_regions_are_elementwise() -> None:
    text = SCORED.replace("arith.addf %score, %bias : f32", '"tt.get_program_id"() <{axis = 0 : i32}> : () -> f32')
    with pytest.raises(LoweringError, match="no form in a kernel"):
        emit(attention_op(Parser(make_context(), text).parse_module()), WIDE)


def test_configurations() -> None:
    for target in ("cuda:80", "cuda:86", "cuda:89", "cuda:90", "cuda:100", "cuda:103", "cuda:120", "hip:gfx942"):
        for element in (f16, bf16, f32):
            for head_dim in (1, 64, 65, 128, 129, 256):
                config = AttentionConfig.choose(head_dim, element, target)
                assert config.programs_per_tile * config.block_q == 128
                assert config.steps_per_tile * config.block_kv == 128
    for head_dim, target in ((0, "cuda:90"), (257, "cuda:90"), (64, "cuda:70"), (64, "sm_90")):
        with pytest.raises(LoweringError):
            AttentionConfig.choose(head_dim, f16, target)
    for sizes in ((96, 64, 4, 2), (64, 256, 4, 2), (8, 64, 4, 2), (64, 64, 3, 2), (64, 64, 4, 0)):
        with pytest.raises(LoweringError):
            AttentionConfig(block_q=sizes[0], block_kv=sizes[1], num_warps=sizes[2], num_stages=sizes[3])


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: Mask | None = None,
    scale: float = 1.0,
    config: AttentionConfig = WIDE,
) -> tuple[torch.Tensor, torch.Tensor]:
    descriptor = compile(compilemask.full() if mask is None else mask).descriptor(q.shape[2], k.shape[2])
    return run(kernel_of(q.dtype, q.shape[3], config), config, descriptor, q, k, v, scale)
