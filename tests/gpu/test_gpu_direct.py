"""Calls past the dispatcher, and launches through the driver, on the GPU: streams, threads, graphs and faults."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, dense_gradients, random_inputs
from sample_masks import MASKS

import compilemask
from compilemask.errors import DeviceError
from compilemask.runtime import compile
from compilemask.runtime.calls import operator
from compilemask.runtime.calls.direct import is_direct


def inputs(length: int, dim: int = 128, seed: int = 0) -> tuple[torch.Tensor, ...]:
    return random_inputs(2, 4, 2, length, length, dim, torch.bfloat16, "cuda", seed)


@pytest.mark.parametrize("dim", [64, 96, 128])
@pytest.mark.parametrize("name", MASKS)
def test_the_same_as_through_the_operator(name: str, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = inputs(500, dim)
    mask = MASKS[name](500, 500)
    assert is_direct(q, k, v)
    with torch.no_grad():
        direct = operator.attention(q, k, v, mask, return_lse=True)
        monkeypatch.setattr(operator, "direct_call", lambda *_: None)
        through = operator.attention(q, k, v, mask, return_lse=True)
    assert all(torch.equal(a, b) for a, b in zip(direct, through, strict=True))
    assert_close(direct[0], dense_attention(q, k, v, mask.dense(500, 500).cuda())[0], TOLERANCE[q.dtype], "out")


def test_new_addresses_and_lengths() -> None:
    """Tensor maps and sizes are remembered: what moves or changes must be seen."""
    mask = compilemask.causal()
    kept = []
    for seed in range(40):
        q, k, v = inputs(200 + 8 * (seed % 5), seed=seed)
        kept.append((q, k, v, operator.attention(q, k, v, mask)))
    for q, k, v, out in kept:
        expected, _ = dense_attention(q, k, v, mask.dense(q.shape[2], q.shape[2]).cuda())
        assert_close(out, expected, TOLERANCE[q.dtype], "out")


def test_threads_that_never_used_cuda() -> None:
    mask = compile(MASKS["shared prompt"](500, 500))
    q, k, v = inputs(500)
    expected = operator.attention(q, k, v, mask)
    torch.cuda.synchronize()
    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            out = pool.submit(operator.attention, q, k, v, mask).result()
        assert torch.equal(out, expected)


def test_constant_masks_in_a_graph() -> None:
    mask = compilemask.hstu(400, 30)
    q, k, v = inputs(500)
    expected = operator.attention(q, k, v, mask)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = operator.attention(q, k, v, mask)
    out.fill_(torch.nan)
    graph.replay()
    assert torch.equal(out, expected)


def test_faults_of_a_launch_are_raised() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    kernels = compile(compilemask.causal()).program.loaded(device)
    arguments: list[int] = [0] * (len(kernels["count"].binary.offsets) - len(kernels["count"].binary.scratch))
    with pytest.raises(DeviceError, match="fails to launch causal_count: CUDA_ERROR_INVALID_VALUE"):
        kernels["count"]((1, 2**20, 1), 0, arguments)


def test_builds_see_new_offsets_and_other_tables() -> None:
    """Arguments of a build are kept by addresses and sizes: what is written to a table must be seen, and others too."""
    q, k, v = inputs(500)
    tables = [torch.tensor(ends, dtype=torch.int32, device="cuda") for ends in ([0, 100, 300, 500], [0, 20, 500])]
    masks = [compilemask.shared_prompt(table) for table in tables]
    for ends in ([0, 100, 300, 500], [0, 7, 250, 500]):
        tables[0].copy_(torch.tensor(ends))
        for mask in masks:
            expected, _ = dense_attention(q, k, v, mask.dense(500, 500).cuda())
            assert_close(operator.attention(q, k, v, mask), expected, TOLERANCE[q.dtype], "out")


def test_results_are_contiguous_and_of_their_mode() -> None:
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs(300))
    out, lse = operator.attention(q, k, v, compilemask.causal(), return_lse=True)
    assert out.is_contiguous()
    assert lse.is_contiguous()
    assert (out.shape, lse.shape, lse.dtype) == (q.shape, q.shape[:3], torch.float32)
    with torch.inference_mode():
        assert operator.attention(q, k, v, compilemask.causal()).is_inference()


# ---------------------------------------------------------------- gradients

OF_GRADIENTS = 8e-3
"""Largest relative error of one in bfloat16."""


def leaves(length: int, dim: int = 128, seed: int = 0) -> list[torch.Tensor]:
    return [x.requires_grad_() for x in inputs(length, dim, seed)]


def gradients(given: list[torch.Tensor], mask: compilemask.Mask) -> tuple[torch.Tensor, ...]:
    out, lse = operator.attention(*given, mask=mask, return_lse=True)
    loss = out.square().sum() + lse.masked_fill(lse == -torch.inf, 0).sum()
    return (out.detach(), lse.detach(), *torch.autograd.grad(loss, given))


@pytest.mark.parametrize("dim", [64, 128, 192])
@pytest.mark.parametrize("name", MASKS)
def test_the_same_gradients_as_through_the_operator(name: str, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given, mask = leaves(500, dim), MASKS[name](500, 500)
    made_by = operator.attention(*given, mask=mask).grad_fn
    assert made_by is not None
    assert type(made_by).__name__ == "_AttentionBackward"
    torch.use_deterministic_algorithms(True)
    try:
        direct = gradients(given, mask)
        monkeypatch.setattr(operator, "direct_call", lambda *_: None)
        through = gradients(given, mask)
    finally:
        torch.use_deterministic_algorithms(False)
    for a, b in zip(direct, through, strict=True):
        assert a.stride() == b.stride()
        assert torch.equal(a, b)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "sequence first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "expanded": lambda x: x[:1, :1, :1].expand(x.shape),
    "not aligned": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_outputs_in_any_layout(layout: str) -> None:
    """Plans are kept by strides: other addresses, lengths and layouts must be seen."""
    mask = compilemask.causal()
    for seed in range(12):
        length = 200 + 8 * (seed % 3)
        given = q, k, v = leaves(length, seed=seed)
        grad_out = LAYOUTS[layout](torch.randn_like(given[0]))
        found = torch.autograd.grad(operator.attention(*given, mask=mask), given, grad_out)
        visible = mask.dense(length, length).cuda()
        expected = dense_gradients(q.detach(), k.detach(), v.detach(), visible, grad_out)
        for gradient, reference in zip(found, expected, strict=True):
            assert_close(gradient, reference, OF_GRADIENTS, layout)


def test_gradients_on_a_stream_of_their_own() -> None:
    given, mask = leaves(500), MASKS["shared prompt"](500, 500)
    torch.use_deterministic_algorithms(True)
    try:
        expected = gradients(given, mask)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            found = gradients(given, mask)
        stream.synchronize()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_captured_step() -> None:
    given, mask = leaves(500), compilemask.hstu(400, 30)
    expected = gradients(given, mask)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        gradients(given, mask)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = gradients(given, mask)
    for x in found:
        x.fill_(torch.nan)
    graph.replay()
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, OF_GRADIENTS)
