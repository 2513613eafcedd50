"""flex_attention and from_block_mask against FlexAttention itself, on the CPU."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from compare import assert_close, dense_gradients, random_inputs
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask

import compilemask as cm

LENGTHS = torch.tensor([150, 70])


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """kv <= q."""
    return q_idx >= kv_idx


def padded(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Causal, up to each batch's length."""
    return causal(b, h, q_idx, kv_idx) & (kv_idx < LENGTHS[b])


def block_mask(mask_mod: Any, batches: int | None = None, queries: int = 200, keys: int = 200) -> BlockMask:
    """A BlockMask on the CPU."""
    return create_block_mask(mask_mod, batches, None, queries, keys, device="cpu")


def reference(*args: Any, **kwargs: Any) -> Any:
    """FlexAttention without torch.compile, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return flex.flex_attention(*args, **kwargs)


@pytest.mark.parametrize(("mask_mod", "batches"), [(causal, None), (padded, 2), (None, None)])
def test_equals_flex_attention(mask_mod: Any, batches: int | None) -> None:
    q, k, v = random_inputs(2, 4, 2, 200, 200, 16)
    given = None if mask_mod is None else block_mask(mask_mod, batches)
    expected, lse = reference(q, k, v, block_mask=given, scale=0.3, enable_gqa=True, return_lse=True)
    out, own_lse = cm.flex_attention(q, k, v, None, given, 0.3, True, True, {"BLOCK_M": 64})
    assert isinstance(out, torch.Tensor)
    assert isinstance(own_lse, torch.Tensor)
    assert_close(out, expected, 2e-5, "out")
    assert_close(own_lse, lse, 2e-5, "lse")
    if mask_mod is not None:
        direct = cm.flex_attention(q, k, v, mask_mod=mask_mod, scale=0.3, enable_gqa=True)
        assert torch.equal(direct, out)  # type: ignore[arg-type]


@pytest.mark.parametrize("queries", [200, 90])
@pytest.mark.parametrize("mask_mod", [causal, padded])
def test_gradients_with_a_block_mask(mask_mod: Any, queries: int) -> None:
    q, k, v = random_inputs(2, 4, 2, queries, 200, 16)
    visible, gradient = flex.create_mask(mask_mod, 2, 1, queries, 200, device="cpu"), torch.randn_like(q)
    expected = dense_gradients(q, k, v, visible, gradient)
    for tensor in (q, k, v):
        tensor.requires_grad_()
    out = cm.flex_attention(q, k, v, block_mask=block_mask(mask_mod, 2, queries), enable_gqa=True)
    assert isinstance(out, torch.Tensor)
    out.backward(gradient)
    for name, tensor, wanted in zip("qkv", (q, k, v), expected, strict=True):
        assert tensor.grad is not None
        assert_close(tensor.grad, wanted, 1e-4, name)


def test_auxiliary_results() -> None:
    q, k, v = random_inputs(1, 2, 2, 130, 130, 8)
    expected, wanted = reference(
        q, k, v, block_mask=block_mask(causal, None, 130, 130), return_aux=AuxRequest(lse=True)
    )
    out, aux = cm.flex_attention(q, k, v, mask_mod=causal, return_aux=AuxRequest(lse=True))
    assert_close(out, expected, 2e-5)
    assert_close(aux.lse, wanted.lse, 2e-5)  # type: ignore[union-attr]


def test_block_mask_of_one_batch_with_tables_per_batch() -> None:
    mask = cm.from_block_mask(block_mask(padded, 2))
    assert mask.batch_shape == (2, 1)
    assert mask.dense(200, 200)[1, 0].sum() == sum(min(row + 1, 70) for row in range(200))


def test_block_mask_is_for_its_lengths() -> None:
    mask = cm.from_block_mask(block_mask(causal, None, 100, 140))
    mask.check_lengths(100, 140)
    cm.compile(mask).descriptor(100, 140)
    for lengths in ((100, 100), (128, 256), (99, 140)):
        with pytest.raises(cm.MaskError, match="BlockMask is for 100 queries and 140 keys"):
            cm.compile(mask).descriptor(*lengths)


def test_block_mask_is_for_the_lengths_of_each_batch_s_part() -> None:
    inner = cm.from_block_mask(block_mask(causal, None, 8, 8))
    cm.concatenate([inner, cm.full()], [[0, 8, 20], [0, 8, 20]]).check_lengths(20, 20)
    with pytest.raises(cm.MaskError, match="BlockMask is for 8 queries and 8 keys, got 5 and 5"):
        cm.concatenate([inner, cm.full()], [[0, 8, 20], [0, 5, 20]]).check_lengths(20, 20)


@pytest.mark.parametrize("mask_mod", [None, causal])
def test_block_mask_put_together_from_blocks(mask_mod: Any) -> None:
    counts = torch.tensor([[[1, 2]]], dtype=torch.int32)
    indices = torch.tensor([[[[1, 0], [0, 1]]]], dtype=torch.int32)
    given = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=64, mask_mod=mask_mod, seq_lengths=(128, 128))
    mask = cm.from_block_mask(given, blocks=None if mask_mod is None else True)
    dense = mask.dense(128, 128)[0, 0]
    expected = torch.tensor([[0, 1], [1, 1]]).repeat_interleave(64, 0).repeat_interleave(64, 1).bool()
    assert torch.equal(dense, expected if mask_mod is None else expected.tril())


def test_errors() -> None:
    q, k, v = random_inputs(1, 4, 2, 130, 130, 8)
    with pytest.raises(cm.ShapeError, match="enable_gqa=True"):
        cm.flex_attention(q, k, v)
    with pytest.raises(cm.ScoreError, match="asks for the value"):
        cm.flex_attention(q, k, v, lambda score, b, h, q, kv: score if q > kv else -score, enable_gqa=True)
    with pytest.raises(cm.MaskError, match="maximal scores"):
        cm.flex_attention(q, k, v, return_aux=AuxRequest(max_scores=True))
    with pytest.raises(cm.MaskError, match="return_lse or return_aux, got both"):
        cm.flex_attention(q, k, v, enable_gqa=True, return_lse=True, return_aux=AuxRequest(lse=True))
    with pytest.raises(cm.MaskError, match="got both"):
        cm.flex_attention(q, k, v, block_mask=block_mask(causal), mask_mod=causal, enable_gqa=True)
    with pytest.raises(cm.MaskError, match="takes a BlockMask, got int"):
        cm.from_block_mask(5)  # pyright: ignore
    with pytest.raises(cm.MaskError, match="for 200 queries"):
        cm.flex_attention(q, k, v, block_mask=block_mask(causal), enable_gqa=True)
