"""What a mask keeps between calls has content: nothing stays of calls under a mode that computes nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
import torch
from compare import assert_close, dense_attention
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import compilemask as cm

Call = Callable[[torch.Tensor], torch.Tensor]
LENGTHS = count(23)
"""A new one for each test, of which nothing is kept."""


def under_fake_tensors(call: Call, length: int) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        call(torch.randn(1, 2, length, 8))


def under_fake_tensors_with_gradients(call: Call, length: int) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        call(torch.randn(1, 2, length, 8, requires_grad=True)).sum().backward()


def traced(call: Call, length: int) -> None:
    make_fx(call, tracing_mode="fake")(torch.randn(1, 2, length, 8))


def functionalized(call: Call, length: int) -> None:
    torch.func.functionalize(call)(torch.randn(1, 2, length, 8))


class Module(torch.nn.Module):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        return self.call(q)


def exported(call: Call, length: int) -> None:
    torch.export.export(Module(call), (torch.randn(1, 2, length, 8),))


def on_meta(call: Call, length: int) -> None:
    with torch.device("meta"):
        call(torch.randn(1, 2, length, 8, device="cpu"))


FIRST = [under_fake_tensors, under_fake_tensors_with_gradients, traced, functionalized, exported, on_meta]


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_call_after_one_without_content(first: Callable[[Call, int], None], dtype: torch.dtype) -> None:
    length = next(LENGTHS)
    mask = cm.causal() & cm.window(length // 2)
    first(lambda q: cm.attention(q, q, q, mask), length)
    q = torch.randn(1, 2, length, 8, dtype=dtype, requires_grad=True)
    out, expected = cm.attention(q, q, q, mask), dense_attention(q, q, q, mask.dense(length, length))[0]
    assert_close(out, expected, 1e-5)
    (found,), (reference,) = (torch.autograd.grad(x.square().sum(), q) for x in (out, expected))
    assert_close(found, reference, 1e-5)


def test_a_call_without_content_after_one_with() -> None:
    mask, length = cm.window(3), next(LENGTHS)
    q = torch.randn(1, 2, length, 8)
    cm.attention(q, q, q, mask)
    with FakeTensorMode():
        fake = torch.randn(1, 2, length, 8)
        assert cm.attention(fake, fake, fake, mask).shape == q.shape


def test_tables_are_read_only_where_they_have_content() -> None:
    mask = cm.document(torch.tensor([0, 7, 20]))

    def call(q: torch.Tensor) -> torch.Tensor:
        return cm.attention(q, q, q, mask)

    q = torch.randn(1, 2, 20, 8)
    assert_close(torch.func.functionalize(call)(q), call(q), 1e-6)
