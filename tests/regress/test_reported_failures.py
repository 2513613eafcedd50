"""Failures that users of mask attention reported against other products, each with the right answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, dense_gradients, random_inputs

import compilemask
from compilemask.errors import DescriptorError, MaskError, ShapeError
from compilemask.language.mask import Mask
from compilemask.runtime import Descriptor, attention, compile
from compilemask.runtime.cpu import build_cpu

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
device = pytest.mark.parametrize("where", DEVICES)


def check(
    mask: Mask, heads: tuple[int, int], queries: int, keys: int, head_dim: int, where: str, batch: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention against the dense oracle; returns out and lse."""
    q, k, v = random_inputs(batch, *heads, queries, keys, head_dim, device=where)
    out, lse = attention(q, k, v, mask, return_lse=True)
    expected, expected_lse = dense_attention(q, k, v, mask.dense(queries, keys))
    assert_close(out, expected, TOLERANCE[torch.float32], "out")
    assert_close(lse, expected_lse, 1e-5, "lse")
    return out, lse


@device
@pytest.mark.parametrize("keys", [200, 1000, 129, 257])
def test_key_lengths_that_are_no_multiple_of_a_tile(keys: int, where: str) -> None:
    # pytorch#159247
    check(compilemask.causal(), (2, 2), keys, keys, 32, where)
    check(compilemask.full(), (2, 2), 100, keys, 32, where)


@device
def test_rows_of_a_ragged_last_tile(where: str) -> None:
    # attention-gym#50: rows 128 to 136 of 137 were wrong
    check(compilemask.causal(), (2, 2), 137, 137, 64, where)
    check(compilemask.window(left=20, right=20), (2, 2), 137, 137, 64, where)


@device
def test_decoding_one_query_in_the_middle_of_a_cache(where: str) -> None:
    # pytorch#163314, attention-gym#60: the query at position 1000 sees exactly keys 0 to 1000
    q, k, v = random_inputs(1, 2, 2, 1, 2048, 32, device=where)
    out = attention(q, k, v, compilemask.band(None, 1000))
    expected, _ = dense_attention(q, k[:, :, :1001], v[:, :, :1001], torch.ones(1, 1, 1, 1001, dtype=torch.bool))
    assert_close(out, expected, TOLERANCE[torch.float32])


@device
def test_a_descriptor_for_longer_inputs_is_refused(where: str) -> None:
    # pytorch#136232
    descriptor = compile(compilemask.causal()).descriptor(4096, device=where)
    q, k, v = random_inputs(1, 1, 1, 1000, 1000, 32, device=where)
    with pytest.raises(DescriptorError, match="4096"):
        attention(q, k, v, descriptor)
    check(compilemask.causal(), (1, 1), 1000, 1000, 32, where)


@device
def test_a_mask_for_longer_inputs_is_refused_or_cropped(where: str) -> None:
    # pytorch#136232: block masks of 4096 positions on shorter inputs gave gradients that were not finite
    offsets = torch.tensor([0, 700, 2500, 4096])
    mask = compilemask.causal() & compilemask.document(offsets)
    inputs = [x.requires_grad_() for x in random_inputs(1, 1, 1, 1000, 1000, 32, device=where)]
    with pytest.raises(MaskError, match="last offset is 4096; for 1000 queries"):
        attention(*inputs, mask=mask)
    shorter = compilemask.causal() & compilemask.document(offsets.clamp(max=1000))
    assert torch.equal(shorter.dense(1000, 1000), mask.dense(1000, 1000))
    visible = shorter - compilemask.rows(900, 1000)  # also rows that see nothing
    out, lse = attention(*inputs, mask=visible, return_lse=True)
    weights = torch.ones_like(lse).masked_fill(lse == -torch.inf, 0)
    found = torch.autograd.grad((out, lse), inputs, (torch.ones_like(out), weights))
    dense = visible.dense(1000, 1000)
    q, k, v = (x.detach().cpu() for x in inputs)
    reference = dense_gradients(q, k, v, dense, torch.ones(1, 1, 1000, 32), weights.cpu())
    for gradient, expected in zip(found, reference, strict=True):
        assert gradient.isfinite().all()
        assert_close(gradient, expected, TOLERANCE[torch.float32])


@device
@pytest.mark.parametrize("heads", [(12, 2), (28, 4), (5, 1), (9, 3)])
def test_one_query_and_any_group_of_heads(heads: tuple[int, int], where: str) -> None:
    # pytorch#151359, attention-gym#81
    check(compilemask.causal(align="bottom_right"), heads, 1, 4096, 64, where)


@device
def test_forty_heads_on_four(where: str) -> None:
    # flash-attention#2300
    check(compilemask.causal(), (40, 4), 512, 512, 128, where)


@device
def test_nothing_behind_the_valid_keys_is_read(where: str) -> None:
    # flash-attention#2374
    lengths = [32, 64, 96, 48]
    mask = compilemask.padding(torch.tensor(lengths))
    q, k, v = random_inputs(4, 2, 2, 128, 128, 32, device=where)
    expected, _ = dense_attention(q, k, v, mask.dense(128, 128))
    for b, length in enumerate(lengths):
        k[b, :, length:], v[b, :, length:] = torch.nan, torch.nan
    out = attention(q, k, v, mask)
    assert_close(out, expected, TOLERANCE[torch.float32])


@device
def test_rows_that_see_no_key_are_zero(where: str) -> None:
    # flash-attention#2199, pytorch#109517
    out, lse = check(compilemask.window(left=32, right=64), (2, 2), 129, 40, 64, where)
    nothing = ~compilemask.window(left=32, right=64).dense(129, 40)[0, 0].any(dim=-1)
    assert nothing[80:].all()
    assert not out[:, :, nothing].any()
    assert (lse[:, :, nothing] == -torch.inf).all()


@device
def test_packed_lengths_with_empty_documents(where: str) -> None:
    # flash-attention#1537: q lengths [0, 1, 0, 1], k lengths [0, 3, 0, 5]
    visible = torch.zeros(1, 1, 2, 8, dtype=torch.bool)
    visible[..., 0, :3], visible[..., 1, 3:] = True, True
    first = compilemask.rows(0, 1) & compilemask.cols(0, 3)
    mask = first | (compilemask.rows(1, 2) & compilemask.cols(3, 8))
    q, k, v = random_inputs(1, 9, 3, 2, 8, 64, device=where)
    out = attention(q, k, v, mask)
    assert torch.equal(mask.dense(2, 8), visible)
    assert out.shape == (1, 9, 2, 64)
    assert_close(out, dense_attention(q, k, v, visible)[0], TOLERANCE[torch.float32])
    check(compilemask.document([0, 0, 1, 1, 2]), (9, 3), 2, 2, 64, where)


@device
def test_a_moved_mask_stays_the_same(where: str) -> None:
    # xformers#1185: a block-diagonal causal mask lost "causal" on its way to another device
    mask = compilemask.causal() & compilemask.document([0, 2, 4])
    descriptor = compile(mask).descriptor(4)
    moved = Descriptor.from_buffer(descriptor.buffer.to(where, copy=True))
    q, k, v = random_inputs(1, 1, 1, 4, 4, 8)
    expected, _ = dense_attention(q, k, v, mask.dense(4, 4))
    assert_close(attention(q, k, v, descriptor), expected, TOLERANCE[torch.float32])
    q, k, v = (x.to(where) for x in (q, k, v))
    assert_close(attention(q, k, v, moved), expected, TOLERANCE[torch.float32])
    assert_close(attention(q, k, v, mask), expected, TOLERANCE[torch.float32])


@device
def test_long_zeros_stay_zero(where: str) -> None:
    # xformers#719
    length = 33728 if where == "cuda" else 4388
    q = torch.zeros(1, 1, length, 16, device=where)
    out, lse = attention(q, q, q, compilemask.causal(), return_lse=True)
    assert torch.equal(out, torch.zeros_like(out))
    assert_close(lse[0, 0], torch.arange(1, length + 1).double().log(), 1e-6)


@device
def test_no_state_is_left_over(where: str) -> None:
    # flashinfer#1028: a custom mask, then causal, through the same object
    inputs = random_inputs(1, 2, 2, 200, 200, 32, device=where)
    mask = compilemask.document(torch.tensor([0, 70, 200]))
    compiled = compile(mask)
    first = compiled.attention(*inputs)
    other = compiled.bind(compilemask.document(torch.tensor([0, 140, 200]))).attention(*inputs)
    expected, _ = dense_attention(*inputs, compilemask.causal().dense(200, 200))
    assert_close(attention(*inputs, compilemask.causal()), expected, TOLERANCE[torch.float32])
    assert torch.equal(compiled.attention(*inputs), first)
    assert not torch.equal(first, other)


@device
def test_block_context_causal(where: str) -> None:
    # pytorch#141126
    mask = compilemask.where(lambda q, kv: (kv < 96) | ((q // 48 == kv // 48) & (kv <= q)))
    check(mask, (2, 2), 300, 300, 32, where)


@device
def test_the_order_of_keys_changes_only_rounding(where: str) -> None:
    # pytorch#182593
    q, k, v = random_inputs(1, 2, 2, 256, 384, 32, device=where)
    order = torch.randperm(384, generator=torch.Generator().manual_seed(1))
    ends = compilemask.band(None, 128)
    permuted = compilemask.where(lambda q, kv, positions: positions[kv] <= q + 128, positions=order.to(torch.int32))
    out = attention(q, k, v, ends)
    assert_close(attention(q, k[:, :, order], v[:, :, order], permuted), out, 1e-5)


def all_tiles_partial(mask: Mask, size: int, monkeypatch: pytest.MonkeyPatch) -> Descriptor:
    """A descriptor in which full tiles are declared partial, with patterns of ones."""
    compiled = compile(mask)
    layout = compiled.program.layout(compiled.parameters, size, size)
    room = layout.masks * layout.query_tiles * layout.key_tiles
    layout = replace(layout, pair_capacity=2 * room, pattern_capacity=room)
    classify = build_cpu._classify

    def declared(layout: object, rows: build_cpu.RowsOfMask, with_words: bool) -> object:
        tiles = classify(layout, rows, with_words)  # type: ignore[arg-type]
        seen = np.nonzero(tiles.classes)
        words = np.concatenate(build_cpu._words_of(layout, rows, *seen))  # type: ignore[arg-type]
        return replace(tiles, classes=np.minimum(tiles.classes, build_cpu.PARTIAL), words=words)

    with monkeypatch.context() as patch:
        patch.setattr(build_cpu, "_classify", declared)
        return compiled.program.build_on_cpu(layout, compiled.parameters)


@device
@pytest.mark.parametrize("size", [384, 500])
def test_full_tiles_declared_partial_change_only_rounding(
    size: int, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytorch#182593
    mask = compilemask.hstu(size - 100, size - 120)
    partial = all_tiles_partial(mask, size, monkeypatch)
    assert not partial.tiles[..., 2].any()
    assert compile(mask).descriptor(size).tiles[..., 2].any()
    q, k, v = random_inputs(1, 2, 2, size, size, 32, device=where)
    moved = Descriptor.from_buffer(partial.buffer.to(where))
    assert_close(attention(q, k, v, moved), attention(q, k, v, mask), 1e-5)


@device
def test_documents_do_not_touch_each_other(where: str) -> None:
    # nanoVLM#204
    q, k, v = random_inputs(1, 2, 2, 300, 300, 32, device=where)
    mask = compilemask.causal() & compilemask.document([0, 137, 300])
    before = attention(q, k, v, mask)
    for x in (q, k, v):
        x[:, :, :137] = 3.0
    assert torch.equal(attention(q, k, v, mask)[:, :, 137:], before[:, :, 137:])


@device
def test_ranges_past_the_end_are_refused(where: str) -> None:
    # MagiAttention#147
    q, k, v = random_inputs(1, 1, 1, 100, 100, 32, device=where)
    with pytest.raises(ValueError, match="101"):
        attention(q, k, v, compile(compilemask.causal()).descriptor(101, 100, device=where))
    with pytest.raises(ShapeError):
        compile(compilemask.causal()).descriptor(-1)
    for mask in (
        compilemask.slices([[90, 101]], [[0, 10]], [0]),
        compilemask.full().place((0, 101), (0, 10)),
        compilemask.concatenate([compilemask.causal()], [0, 101]),
        compilemask.document([0, 101]),
    ):
        with pytest.raises(ValueError, match="101"):
            attention(q, k, v, mask)


@device
def test_document_ids_as_long_as_the_sequence(where: str) -> None:
    # transformer_nuggets#45: the table ends with the last position, the last tile is ragged
    length = 200
    ids = (torch.arange(length) // 66).to(torch.int32)
    mask = compilemask.where(lambda q, kv, ids: ids[q] == ids[kv], ids=ids)
    check(mask, (2, 2), length, length, 32, where)


@device
def test_draft_tree(where: str) -> None:
    # FastDeploy#3514: not every tile below the diagonal is full
    parents = [-1, 0, 0, 1, 2]
    visible = torch.eye(5, dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            visible[node] |= visible[parent]
    table = visible.to(torch.int32).reshape(-1)
    mask = compilemask.where(lambda q, kv, seen: seen[q * 5 + kv] == 1, seen=table)
    assert torch.equal(mask.dense(5, 5)[0, 0], visible)
    check(mask, (2, 2), 5, 5, 16, where)


@device
@pytest.mark.parametrize("heads", [(12, 4), (14, 2), (5, 1), (9, 3)])
def test_gradients_of_groups_that_are_no_power_of_two(heads: tuple[int, int], where: str) -> None:
    # native-sparse-attention-triton#27: dk and dv missed heads of their group
    size, mask = 200, compilemask.causal() & compilemask.document([0, 77, 200])
    inputs = [x.requires_grad_() for x in random_inputs(2, *heads, size, size, 32, device=where)]
    out, lse = attention(*inputs, mask=mask, return_lse=True)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(5))
    found = torch.autograd.grad(out, inputs, weights.to(where))
    q, k, v = (x.detach().cpu() for x in inputs)
    expected = dense_gradients(q, k, v, mask.dense(size, size), weights, torch.zeros(lse.shape))
    for name, gradient, reference in zip("qkv", found, expected, strict=True):
        assert_close(gradient, reference, TOLERANCE[torch.float32], f"gradient of {name}")


@device
@pytest.mark.parametrize("offset", [0, 1])
def test_columns_at_the_diagonal(offset: int, where: str) -> None:
    # Paddle flash-attention#48: masked rows start at j, or at j + 1
    mask = compilemask.band(-offset + 1, None)
    dense = mask.dense(200, 200)[0, 0]
    assert dense[10, 10].item() == (offset == 1)
    check(mask, (2, 2), 200, 200, 32, where)


@pytest.mark.parametrize("side", ["the result", "the reference"])
def test_a_nan_fails_a_comparison(side: str) -> None:
    # cubecl#1070
    numbers, broken = torch.ones(4), torch.tensor([1.0, float("nan"), 1.0, 1.0])
    actual, expected = (broken, numbers) if side == "the result" else (numbers, broken)
    with pytest.raises(AssertionError, match=f"NaN in {side}"):
        assert_close(actual, expected, 1e3)
    with pytest.raises(AssertionError):
        assert_close(broken, broken, 1e3)
