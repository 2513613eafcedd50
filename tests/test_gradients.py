"""Gradients of attention on the CPU: against finite differences and against autograd of the dense oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from compare import assert_close, dense_gradients, random_inputs
from sample_masks import MASKS, random_offsets

import compilemask as cm
from compilemask.errors import GradientError
from compilemask.runtime.descriptor import Descriptor

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 8e-3}
LENGTHS = [(1, 1), (17, 300), (128, 128), (300, 137), (1, 200)]

CATALOGUE: dict[str, Callable[[], cm.Mask]] = {
    "causal": cm.causal,
    "hstu": lambda: cm.hstu(7, 2),
    "shared prompt": lambda: cm.shared_prompt([0, 3, 6, 10]),
    "clear": lambda: cm.clear(3, 3, 2, text=1),
    "window": lambda: cm.window(3, 1),
    "document": lambda: cm.document([0, 4, 4, 10]),
    "causal document": lambda: cm.causal() & cm.document([0, 4, 10]),
    "prefix": lambda: cm.causal() | cm.cols(0, 3),
    "sink and window": lambda: cm.causal() & (cm.window(2) | cm.cols(0, 1)),
    "longformer": lambda: cm.window(2, 2) | cm.rows(0, 1) | cm.cols(0, 1),
    "chunked": lambda: cm.causal() & cm.where(lambda q, kv: q // 4 == kv // 4),
    "dilated window": lambda: cm.window(6, 6) & cm.where(lambda q, kv: (q - kv) % 2 == 0),
    "box": lambda: cm.box2d(2, 5, 1, 1),
    "disk": lambda: cm.disk2d(2, 5, 2),
    "padding": lambda: cm.padding([0, 6]),
    "nothing": lambda: cm.causal() - cm.causal(),
}


@pytest.mark.parametrize("name", CATALOGUE)
def test_gradcheck(name: str) -> None:
    mask = CATALOGUE[name]()
    inputs = [x.requires_grad_() for x in random_inputs(2, 2, 1, 10, 10, 3, torch.float64)]

    def outputs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = cm.attention(q, k, v, mask, return_lse=True)
        return out, lse.masked_fill(lse == -torch.inf, 0)

    assert torch.autograd.gradcheck(outputs, inputs)


def check(mask: cm.Mask, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None = None) -> None:
    """Gradients of a random function of out and lse, against the oracle's."""
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    out, lse = cm.attention(*inputs, mask=mask, scale=scale, return_lse=True)
    generator = torch.Generator().manual_seed(1)
    grad_out = torch.randn(out.shape, generator=generator).to(out.dtype)
    grad_lse = torch.randn(lse.shape, generator=generator).to(lse.dtype)
    found = torch.autograd.grad((out, lse), inputs, (grad_out, grad_lse))
    visible = mask.dense(q.shape[2], k.shape[2])
    expected = dense_gradients(q, k, v, visible, grad_out, grad_lse, scale)
    for name, tensor, gradient, reference in zip("qkv", (q, k, v), found, expected, strict=True):
        assert gradient.dtype == tensor.dtype
        assert_close(gradient, reference, TOLERANCE[q.dtype], f"gradient of {name}")
        assert torch.equal(gradient[reference == 0], torch.zeros_like(gradient[reference == 0])), f"{name} is not 0"


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("name", MASKS)
def test_masks_and_lengths(name: str, queries: int, keys: int) -> None:
    check(MASKS[name](queries, keys), *random_inputs(2, 4, 2, queries, keys, 16, torch.float64))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("heads", [(8, 8), (9, 3), (12, 2), (5, 1)])
def test_types_and_heads(dtype: torch.dtype, heads: tuple[int, int]) -> None:
    check(MASKS["shared prompt"](150, 150), *random_inputs(2, *heads, 150, 150, 40, dtype))


@pytest.mark.parametrize("scale", [0.0, -0.7, 3.0])
def test_scales(scale: float) -> None:
    check(cm.causal(), *random_inputs(1, 2, 1, 50, 60, 8, torch.float64), scale=scale)


@pytest.mark.parametrize(
    ("queries", "keys", "batch", "heads"), [(0, 5, 2, 2), (5, 0, 2, 2), (5, 5, 0, 2), (5, 5, 2, 0)]
)
def test_empty_inputs(queries: int, keys: int, batch: int, heads: int) -> None:
    inputs = [x.requires_grad_() for x in random_inputs(batch, heads, heads, queries, keys, 8)]
    out = cm.attention(*inputs, mask=cm.causal())
    for x, gradient in zip(inputs, torch.autograd.grad(out.sum(), inputs), strict=True):
        assert torch.equal(gradient, torch.zeros_like(x))


def test_unseen_positions_have_no_gradient_whatever_they_hold() -> None:
    mask = cm.where(lambda q, kv: (q >= 20) & (kv >= 130) & (kv <= q + 100))
    q, k, v = random_inputs(1, 2, 2, 150, 300, 16)
    dense = mask.dense(150, 300)[0, 0]
    rows, columns = ~dense.any(dim=1), ~dense.any(dim=0)
    k[:, :, columns], v[:, :, columns] = torch.nan, torch.inf
    inputs = [x.requires_grad_() for x in (q, k, v)]
    grad_out = torch.randn(q.shape)
    grad_out[:, :, rows] = torch.nan
    gradients = torch.autograd.grad(cm.attention(*inputs, mask=mask), inputs, grad_out)
    for gradient, unseen in zip(gradients, (rows, columns, columns), strict=True):
        assert gradient.isfinite().all()
        assert not gradient[:, :, unseen].any()
        assert gradient[:, :, ~unseen].any()


def _first(outputs: Sequence[torch.Tensor]) -> torch.Tensor:
    return outputs[0].sum()


@pytest.mark.parametrize("loss", [_first, lambda outputs: outputs[1].sum()], ids=["out", "lse"])
def test_one_output_alone(loss: Callable[[Sequence[torch.Tensor]], torch.Tensor]) -> None:
    inputs = [x.requires_grad_() for x in random_inputs(1, 2, 1, 40, 40, 8, torch.float64)]
    found = torch.autograd.grad(
        loss(cm.attention(*inputs, mask=cm.causal(), return_lse=True)), inputs, allow_unused=True
    )
    q, k, v = inputs
    scores = q @ k.mT / 8**0.5
    scores = scores.masked_fill(~cm.causal().dense(40, 40), -torch.inf)
    expected = torch.autograd.grad(
        loss((scores.softmax(-1) @ v, scores.logsumexp(-1))), inputs, allow_unused=True, materialize_grads=True
    )
    for gradient, reference in zip(found, expected, strict=True):
        assert_close(gradient, reference, 1e-12)


def test_gradients_of_some_inputs() -> None:
    q, k, v = random_inputs(1, 2, 1, 40, 40, 8)
    every = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = torch.autograd.grad(cm.attention(*every, mask=cm.causal()).sum(), every)
    for position in range(3):
        inputs = [q, k, v]
        inputs[position] = inputs[position].clone().requires_grad_()
        cm.attention(*inputs, mask=cm.causal()).sum().backward()
        found = inputs[position].grad
        assert found is not None
        assert torch.equal(found, expected[position])


def test_gradients_have_the_strides_of_their_tensors() -> None:
    qkv = torch.randn(2, 50, 3, 4, 16)
    q, k, v = (x.transpose(1, 2).requires_grad_() for x in qkv.unbind(2))
    out = cm.attention(q, k, v, cm.causal())
    expected = torch.autograd.grad(
        cm.attention(*(x.contiguous() for x in (q, k, v)), mask=cm.causal()).sum(), (q, k, v)
    )
    for x, gradient, other in zip((q, k, v), torch.autograd.grad(out.sum(), (q, k, v)), expected, strict=True):
        assert gradient.stride() == torch.empty_like(x).stride()
        assert torch.equal(gradient, other)


def test_views_of_one_buffer() -> None:
    qkv = torch.randn(2, 50, 3, 4, 16, dtype=torch.float64, requires_grad=True)
    out = cm.attention(*(x.transpose(1, 2) for x in qkv.unbind(2)), mask=cm.causal())
    (found,) = torch.autograd.grad(out.sum(), qkv)
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    reference = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert_close(found, torch.autograd.grad(reference.sum(), qkv)[0], 1e-12)


def test_descriptor_with_a_transpose() -> None:
    descriptor = cm.compile(cm.causal()).descriptor(40, 40, gradient=True)
    inputs = [x.requires_grad_() for x in random_inputs(1, 2, 1, 40, 40, 8)]
    expected = torch.autograd.grad(cm.attention(*inputs, mask=cm.causal()).sum(), inputs)
    found = torch.autograd.grad(cm.attention(*inputs, mask=descriptor).sum(), inputs)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_the_transpose_is_built_for_gradients_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[tuple[int, int]] = []
    build = cm.Compiled._built_on

    def recorded(self: cm.Compiled, device: torch.device, queries: int, keys: int, *args: Any) -> Descriptor:
        built.append((queries, keys))
        return build(self, device, queries, keys, *args)

    monkeypatch.setattr(cm.Compiled, "_built_on", recorded)
    q, k, v = random_inputs(1, 1, 1, 30, 40, 8)
    mask = cm.document(random_offsets(40, 3))
    cm.attention(q, k, v, mask)
    with torch.no_grad():
        cm.attention(q.clone().requires_grad_(), k, v, mask)
    assert built == [(30, 40), (30, 40)]
    cm.attention(q.requires_grad_(), k, v, mask)
    assert sorted(built[2:]) == [(30, 40), (40, 30)]


def test_after_inference_mode() -> None:
    with torch.inference_mode():
        q, k, v = random_inputs(1, 1, 1, 77, 77, 8)
        cm.attention(q, k, v, cm.window(5))
        cm.compile(cm.window(5)).descriptor(77, gradient=True)
    inputs = [x.requires_grad_() for x in random_inputs(1, 1, 1, 77, 77, 8)]
    cm.attention(*inputs, mask=cm.window(5)).sum().backward()
    assert all(x.grad is not None and x.grad.any() for x in inputs)


def test_no_room_is_nan() -> None:
    descriptor = cm.compile(cm.causal()).descriptor(300, gradient=True).clone()
    assert descriptor.transposed is not None
    descriptor.tiles[0, 0, 0, 1] = -1
    descriptor.transposed.tiles[0, 0, 2, 1] = -1
    inputs = [x.requires_grad_() for x in random_inputs(1, 1, 1, 300, 300, 8)]
    of_q, of_k, of_v = torch.autograd.grad(cm.attention(*inputs, mask=descriptor).sum(), inputs)
    assert of_q[:, :, :128].isnan().all()
    assert of_q[:, :, 128:].isfinite().all()
    for gradient in (of_k, of_v):
        assert gradient[:, :, 256:].isnan().all()
        assert gradient[:, :, 128:256].isfinite().all()


def test_saved_tensors_are_released() -> None:
    inputs = [x.requires_grad_() for x in random_inputs(1, 1, 1, 30, 30, 8)]
    out = cm.attention(*inputs, mask=cm.causal())
    out.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()


def test_there_is_no_second_gradient() -> None:
    inputs = [x.requires_grad_() for x in random_inputs(1, 1, 1, 30, 30, 8)]
    (first,) = torch.autograd.grad(cm.attention(*inputs, mask=cm.causal()).sum(), inputs[0], create_graph=True)
    with pytest.raises(GradientError, match="second"):
        first.sum().backward()


def test_runs_are_equal_bit_by_bit() -> None:
    inputs = [x.requires_grad_() for x in random_inputs(2, 4, 2, 300, 300, 16)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # products of matrices may differ with the number of threads that are free
    torch.use_deterministic_algorithms(True)
    try:
        runs = [torch.autograd.grad(cm.attention(*inputs, mask=cm.causal()).square().sum(), inputs) for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_operators_are_well_formed(dtype: torch.dtype) -> None:
    q, k, v = (x.requires_grad_() for x in random_inputs(2, 2, 1, 137, 200, 16, dtype))
    descriptor = cm.compile(cm.causal()).descriptor(137, 200, gradient=True)
    torch.library.opcheck(torch.ops.compilemask.attention.default, (q, k, v, descriptor.tensors, 0.25, "", [], []))
    out, lse = torch.ops.compilemask.attention(q, k, v, descriptor.tensors, 0.25, "", [], [])
    given = [x.detach() for x in (out, lse, q, k, v, out, lse)]
    utilities = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(
        torch.ops.compilemask.attention_backward.default,
        (*given, descriptor.tensors, 0.25, "", [], [], []),
        test_utils=utilities,
    )
