"""mask_mods and block masks of FlexAttention on the GPU: what they capture is read where it lies on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, dense_gradients, random_inputs
from torch.nn.attention.flex_attention import create_block_mask, create_mask

import compilemask as cm

SIZE = (300, 270)
N = max(SIZE)
DTYPE, GRADIENTS = torch.float16, 4e-3


def random_bits(*shape: int) -> torch.Tensor:
    """A table of zeros and ones on the device."""
    return torch.randint(0, 2, shape, dtype=torch.int32, device="cuda")


MODS: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], Any]]] = {
    "ids": ((N,), lambda t: lambda b, h, q, kv: t[q] == t[kv]),
    "indices of indices": ((N,), lambda t: lambda b, h, q, kv: t[t[q] - 1] == t[kv]),
    "transposed": ((N, N), lambda t: lambda b, h, q, kv: t.T[q, kv] == 1),
    "batch in the middle": ((N, 2, N), lambda t: lambda b, h, q, kv: t[q, b, kv] == 1),
    "batch and head behind": ((N, 2, 2), lambda t: lambda b, h, q, kv: t[q, b, h] == t[kv, b, h]),
    "search": ((9,), lambda t: lambda b, h, q, kv: (t * 100 <= q).sum() == (t * 100 <= kv).sum()),
    "shifts": ((N,), lambda t: lambda b, h, q, kv: ((q - kv) >> 40 == -t[q]) | ((kv << 20) < (q << 19))),
    "towards zero": (
        (N,),
        lambda t: lambda b, h, q, kv: torch.div(q - kv, 7, rounding_mode="trunc") == torch.fmod(kv - q, 5) + t[kv],
    ),
}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool])
@pytest.mark.parametrize("name", MODS)
def test_attention_and_gradients(name: str, dtype: torch.dtype) -> None:
    shape, make = MODS[name]
    table = random_bits(*shape).to(dtype)
    if dtype == torch.bool and name in ("indices of indices", "search", "shifts", "towards zero"):
        pytest.skip("truth values are no numbers")
    mask_mod = make(table)
    mask = cm.from_mask_mod(mask_mod, 2, 2)
    for _ in range(2):
        visible = create_mask(mask_mod, 2, 2, *SIZE, device="cuda")
        q, k, v = random_inputs(2, 2, 2, *SIZE, 64, DTYPE, "cuda")
        expected, _ = dense_attention(q, k, v, visible)
        gradient = torch.randn_like(q)
        wanted = dense_gradients(q, k, v, visible, gradient)
        for tensor in (q, k, v):
            tensor.requires_grad_()
        out = cm.attention(q, k, v, mask)
        assert_close(out, expected, TOLERANCE[DTYPE], "out")
        out.backward(gradient)
        for what, tensor, right in zip("qkv", (q, k, v), wanted, strict=True):
            assert tensor.grad is not None
            assert_close(tensor.grad, right, GRADIENTS, what)
        if name != "search":  # its table is computed once
            table.copy_(random_bits(*shape).to(dtype))


def test_a_table_on_the_device_with_fewer_entries_is_refused() -> None:
    ids = random_bits(100)
    mask = cm.from_mask_mod(lambda b, h, q, kv: ids[q] == ids[kv])
    with pytest.raises(cm.MaskError, match="ids has entries for 100 queries, got 101 queries"):
        cm.attention(*random_inputs(1, 1, 1, 101, 101, 64, DTYPE, "cuda"), mask)


@pytest.mark.parametrize("queries", [SIZE[1], 90])
def test_gradients_with_a_block_mask(queries: int) -> None:
    lengths = torch.tensor([150, 70], device="cuda")
    mask_mod = lambda b, h, q, kv: (q >= kv) & (kv < lengths[b])  # noqa: E731
    q, k, v = random_inputs(2, 4, 2, queries, SIZE[1], 64, DTYPE, "cuda")
    gradient = torch.randn_like(q)
    wanted = dense_gradients(q, k, v, create_mask(mask_mod, 2, 1, queries, SIZE[1], device="cuda"), gradient)
    for tensor in (q, k, v):
        tensor.requires_grad_()
    block_mask = create_block_mask(mask_mod, 2, None, queries, SIZE[1], device="cuda")
    out = cm.flex_attention(q, k, v, block_mask=block_mask, enable_gqa=True)
    assert isinstance(out, torch.Tensor)
    out.backward(gradient)
    for what, tensor, right in zip("qkv", (q, k, v), wanted, strict=True):
        assert tensor.grad is not None
        assert_close(tensor.grad, right, GRADIENTS, what)
