"""Calls like others before, on the GPU: what no form tells is seen there too."""

from __future__ import annotations

import torch
from compare import TOLERANCE, assert_close, dense_attention, dense_gradients, random_inputs

import compilemask as cm
from compilemask.runtime.calls import known_calls
from compilemask.runtime.calls.known_calls import direct_call

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def inputs(seed: int = 0) -> Inputs:
    q, k, v = random_inputs(2, 4, 2, 500, 500, 128, torch.bfloat16, "cuda", seed)
    return q, k, v


def check(out: torch.Tensor, given: Inputs, mask: cm.Mask) -> None:
    expected, _ = dense_attention(*given, mask.dense(500, 500).to(out.device))
    assert_close(out, expected, TOLERANCE[out.dtype], "out")


def test_like_calls_are_known() -> None:
    q, k, v = inputs()
    call = direct_call(q, k, v)
    assert call is not None
    assert direct_call(*inputs(seed=1)) is call
    assert direct_call(q.cpu(), k.cpu(), v.cpu()) is not call
    assert direct_call(q, k, v.clone().requires_grad_()) is not call
    assert direct_call(q, k, v) is call


def test_equal_forms_on_a_cpu_and_a_gpu() -> None:
    for seed in range(3):
        given = inputs(seed=seed)
        check(cm.attention(*given, mask=cm.causal()), given, cm.causal())
        on_cpu = (given[0].cpu(), given[1].cpu(), given[2].cpu())
        check(cm.attention(*on_cpu, mask=cm.causal()), on_cpu, cm.causal())


def test_addresses_that_tma_cannot_read() -> None:
    q, k, v = inputs()
    memory = torch.zeros(q.numel() + 1, dtype=q.dtype, device="cuda")
    shifted = memory[1:].view(q.shape).copy_(q)
    for _ in range(2):
        for given in ((q, k, v), (shifted, k, v)):
            check(cm.attention(*given, mask=cm.causal()), given, cm.causal())


def test_masks_and_scales_in_turn() -> None:
    given = inputs()
    masks = [cm.causal(), cm.window(100), cm.full(), cm.hstu(400, 30)]
    for _ in range(2):
        for mask in masks:
            check(cm.attention(*given, mask=mask), given, mask)
    default = cm.attention(*given, mask=masks[0])
    assert torch.equal(cm.attention(*given, mask=masks[0], scale=128**-0.5), default)
    assert not torch.equal(cm.attention(*given, mask=masks[0], scale=0.5), default)
    q, k, v = given
    negative = cm.attention(-q, k, v, masks[0], scale=-(128**-0.5))
    assert_close(negative, default, TOLERANCE[default.dtype], "out")


def test_streams() -> None:
    """A descriptor that was built on one stream is not taken on another one."""
    known_calls.forget()
    given, mask = inputs(), cm.causal()
    expected = cm.attention(*given, mask=mask)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    call = direct_call(*given)
    assert call is not None
    before = len(call._given)
    with torch.cuda.stream(stream):
        out = cm.attention(*given, mask=mask)
    torch.cuda.synchronize()
    assert torch.equal(out, expected)
    assert len(call._given) == before + 1


def test_a_graph_on_the_stream_of_a_call_before() -> None:
    """It builds the descriptor that it follows itself."""
    given, mask = inputs(), cm.window(70)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        expected = cm.attention(*given, mask=mask)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out = cm.attention(*given, mask=mask)
    for width in range(1, 40):  # what is kept for calls is dropped
        cm.attention(*given, mask=cm.window(width))
    known_calls.forget()
    out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected)


def test_gradients_in_turn() -> None:
    q, k, v = (x.requires_grad_() for x in inputs())
    masks = [cm.causal(), cm.window(100)]
    for seed in range(4):
        mask = masks[seed % 2]
        out = cm.attention(q, k, v, mask)
        gradient, *_ = inputs(seed=10 + seed)
        found = torch.autograd.grad(out, (q, k, v), gradient)
        dense = mask.dense(500, 500).cuda()
        expected = dense_gradients(q.detach(), k.detach(), v.detach(), dense, gradient)
        for each, reference in zip(found, expected, strict=True):
            assert_close(each, reference, 8e-3, "gradient")
