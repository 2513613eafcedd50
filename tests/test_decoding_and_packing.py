"""A few query rows over a cache of keys that is longer than what it holds; sequences of any lengths side by side."""

from __future__ import annotations

import pytest
import torch
from compare import assert_close, dense_attention, dense_gradients, random_inputs

import compilemask as cm

CAPACITY = 300


def cached(rows: int, lengths: torch.Tensor) -> cm.Mask:
    """The last `rows` of `lengths` tokens see the tokens before them; keys behind are not there yet."""
    return cm.where(lambda q, kv, length: kv <= q + length[0] - rows, length=lengths[:, None])


@pytest.mark.parametrize("rows", [1, 2, 7, 16])
def test_decoding(rows: int) -> None:
    lengths = torch.tensor([rows, 130, CAPACITY], dtype=torch.int32)
    q, k, v = random_inputs(3, 4, 1, rows, CAPACITY, 16)
    expected = []
    for b, length in enumerate(lengths.tolist()):
        k[b, :, length:], v[b, :, length:] = torch.nan, torch.nan
        causal = cm.causal(align="bottom_right").dense(rows, length)
        expected.append(dense_attention(q[b : b + 1], k[b : b + 1, :, :length], v[b : b + 1, :, :length], causal)[0])
    out = cm.attention(q, k, v, cached(rows, lengths))
    assert_close(out, torch.cat(expected), 2e-5)


def test_lengths_grow() -> None:
    compiled = cm.compile(cached(1, torch.tensor([5, 9], dtype=torch.int32)))
    q, k, v = random_inputs(2, 2, 2, 1, 40, 8)
    for step in range(3):
        lengths = torch.tensor([5 + step, 9 + step], dtype=torch.int32)
        out = cm.attention(q, k, v, compiled.bind(length=lengths[:, None]))
        dense = cached(1, lengths).dense(1, 40)
        assert_close(out, dense_attention(q, k, v, dense)[0], 2e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences(causal: bool) -> None:
    cu_seqlens = torch.tensor([0, 17, 17, 145, 200], dtype=torch.int32)
    q, k, v = (x.requires_grad_() for x in random_inputs(1, 4, 2, 200, 200, 16, torch.float64))
    mask = cm.document(cu_seqlens) & cm.causal() if causal else cm.document(cu_seqlens)
    out = cm.attention(q, k, v, mask)
    grad = torch.randn_like(out)
    found = torch.autograd.grad(out, (q, k, v), grad)
    for begin, end in zip(cu_seqlens.tolist(), cu_seqlens.tolist()[1:], strict=False):
        part = slice(begin, end)
        visible = (cm.causal() if causal else cm.full()).dense(end - begin, end - begin)
        alone = [x.detach()[:, :, part] for x in (q, k, v)]
        assert_close(out[:, :, part], dense_attention(alone[0], alone[1], alone[2], visible)[0], 1e-12)
        expected = dense_gradients(alone[0], alone[1], alone[2], visible, grad[:, :, part])
        for gradient, reference in zip(found, expected, strict=True):
            assert_close(gradient[:, :, part], reference, 1e-12)
