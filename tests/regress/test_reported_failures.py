"""Failures that users of mask attention reported against other products, each with the right answer. Forward only."""

from __future__ import annotations

import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, random_inputs

import compilemask
from compilemask.errors import DescriptorError, ShapeError
from compilemask.language.mask import Mask
from compilemask.runtime import Descriptor, attention, compile

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


def test_a_moved_mask_stays_the_same() -> None:
    # xformers#1185: a block-diagonal causal mask lost "causal" on its way to another device
    mask = compilemask.causal() & compilemask.document([0, 2, 4])
    descriptor = compile(mask).descriptor(4)
    moved = Descriptor.from_buffer(descriptor.buffer.clone())
    q, k, v = random_inputs(1, 1, 1, 4, 4, 8)
    assert torch.equal(attention(q, k, v, moved), attention(q, k, v, descriptor))
    assert_close(attention(q, k, v, moved), dense_attention(q, k, v, mask.dense(4, 4))[0], TOLERANCE[torch.float32])


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
