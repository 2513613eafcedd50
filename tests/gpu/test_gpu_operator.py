"""Attention as an operator of PyTorch on the GPU: compiled, exported, checkpointed, cast and captured."""

from __future__ import annotations

import pytest
import torch
from compare import assert_close, dense_attention, dense_gradients, random_inputs
from sample_masks import random_offsets
from test_operator import Layer, gradients, model, traced
from torch.utils.checkpoint import checkpoint

import compilemask as cm

TOLERANCE = 8e-3
LENGTHS = (1000, 300, 2048)


def inputs_of(length: int, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    return [x.requires_grad_() for x in random_inputs(2, 4, 2, length, length, 64, dtype, "cuda")]


def offsets_of(length: int, seed: int) -> torch.Tensor:
    """Offsets of a prompt and of four answers: int32 [6]."""
    return random_offsets(length, 5, batch=seed + 1)[seed]


def answers(length: int, seed: int) -> cm.Compiled:
    """A prompt with answers of random lengths that the device knows."""
    return cm.compile(cm.shared_prompt(offsets_of(length, seed).cuda()))


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """Sums over keys may come in another order, and outputs of compiled graphs be rounded once less."""
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, TOLERANCE)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_new_lengths_in_a_compiled_graph(backend: str) -> None:
    function, counter = traced(dynamic=True)
    if backend == "inductor":
        function = torch.compile(model, fullgraph=True, dynamic=True)
    for length in LENGTHS:
        for seed in range(2):
            compiled, inputs = answers(length, seed), inputs_of(length)
            assert_same(gradients(function, inputs, compiled), gradients(model, inputs, compiled))
    if backend == "aot_eager":
        assert counter.frame_count == 1


def test_descriptors_in_a_compiled_graph() -> None:
    function, counter = traced(dynamic=True)
    for length in LENGTHS:
        compiled, inputs = answers(length, 3), inputs_of(length)
        given = compiled.descriptor(length, device="cuda", gradient=True)
        assert_same(gradients(function, inputs, given), gradients(model, inputs, compiled))
    assert counter.frame_count <= 2


def test_export() -> None:
    q, k, v = random_inputs(2, 4, 2, 1000, 1000, 64, torch.bfloat16, "cuda")
    layer = Layer(cm.compile(cm.causal()).descriptor(1000, device="cuda"))
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(layer, (q, k, v), dynamic_shapes=({0: batch}, {0: batch}, {0: batch}))
    more = random_inputs(5, 4, 2, 1000, 1000, 64, torch.bfloat16, "cuda")
    assert torch.equal(program.module()(*more), layer(*more))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpoints(use_reentrant: bool) -> None:
    inputs, compiled = inputs_of(1000), answers(1000, 4)
    expected = gradients(model, inputs, compiled)
    out = checkpoint(model, *inputs, compiled, use_reentrant=use_reentrant)
    out.square().sum().backward()
    assert_same([out, *(x.grad for x in inputs if x.grad is not None)], expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    inputs, offsets = inputs_of(1000, torch.float32), offsets_of(1000, 5)
    compiled, visible = answers(1000, 5), cm.shared_prompt(offsets).dense(1000, 1000)
    with torch.autocast("cuda", dtype=dtype):
        out = cm.attention(*inputs, mask=compiled)
    assert out.dtype == dtype
    found = torch.autograd.grad(out.float().square().sum(), inputs)
    assert {x.dtype for x in found} == {torch.float32}
    q, k, v = (x.detach().to(dtype) for x in inputs)
    expected, _ = dense_attention(q, k, v, visible)
    assert_close(out, expected, TOLERANCE)
    for a, b in zip(found, dense_gradients(q, k, v, visible, 2 * out.double()), strict=True):
        assert_close(a, b, TOLERANCE)


def test_lengths_change_between_replays_of_a_training_step() -> None:
    length = 1000
    table = offsets_of(length, 0).cuda()
    compiled, inputs = cm.compile(cm.shared_prompt(table)), inputs_of(length)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        gradients(model, inputs, compiled)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients(model, inputs, compiled)
    for seed in range(1, 6):
        table.copy_(offsets_of(length, seed))
        graph.replay()
        q, k, v = (x.detach() for x in inputs)
        visible = cm.shared_prompt(table.cpu()).dense(length, length)
        out, _ = dense_attention(q * 2, k, v, visible)
        assert_close(captured[0], out + 1, TOLERANCE)
        expected = dense_gradients(q * 2, k, v, visible, 2 * captured[0].double())
        for found, wanted in zip(captured[1:], (2 * expected[0], *expected[1:]), strict=True):
            assert_close(found, wanted, TOLERANCE)
