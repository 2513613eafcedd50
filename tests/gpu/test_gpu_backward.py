"""Gradients on the GPU against the oracle's."""

from __future__ import annotations

import pytest
import torch
from compare import assert_close, dense_gradients, random_inputs
from sample_masks import MASKS, random_offsets
from test_gpu_attention import HEADLINES, HEADS, SIZES, TYPES, dense

import compilemask as cm
from compilemask.runtime import compiled_kernels

TOLERANCE = {torch.float32: 3e-5, torch.float16: 4e-3, torch.bfloat16: 8e-3}


def check(
    name: str,
    heads: tuple[int, int],
    queries: int,
    keys: int,
    dim: int,
    dtype: torch.dtype,
    batch: int = 1,
    *,
    lse: bool = False,
) -> None:
    """Gradients of random inputs, in memory full of NaN."""
    inputs = [x.requires_grad_() for x in random_inputs(batch, *heads, queries, keys, dim, dtype, "cuda")]
    outputs = cm.attention(*inputs, mask=MASKS[name](queries, keys), return_lse=True)
    grad_out, grad_lse = (torch.randn_like(x) for x in outputs)
    poison(*inputs)
    given = (outputs, (grad_out, grad_lse)) if lse else (outputs[:1], (grad_out,))
    found = torch.autograd.grad(given[0], inputs, given[1])
    visible = dense(name, queries, keys)
    expected = dense_gradients(inputs[0], inputs[1], inputs[2], visible, grad_out, grad_lse if lse else None)
    for letter, gradient, reference in zip("qkv", found, expected, strict=True):
        assert gradient.dtype == dtype
        if reference.norm() > 1e-9:
            assert_close(gradient, reference, TOLERANCE[dtype], f"{heads}, gradient of {letter}")
        check_untouched(gradient, letter, visible)


def check_untouched(gradient: torch.Tensor, letter: str, visible: torch.Tensor) -> None:
    """Queries that see nothing and keys that nobody sees have a gradient of exactly 0."""
    visible = visible.flatten(0, 1).to(gradient.device)
    alone = ~visible.any(dim=-1).any(dim=0) if letter == "q" else ~visible.any(dim=0).any(dim=0)
    assert not gradient[:, :, alone].any(), f"gradient of {letter} is not exactly 0"


def poison(*tensors: torch.Tensor) -> None:
    """Fill the memory that the next outputs will get with NaN."""
    blocks = [torch.full_like(x, torch.nan) for x in tensors for _ in range(2)]
    blocks += [torch.full(x.shape[:3], torch.nan, device=x.device) for x in tensors]
    del blocks


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", HEADLINES)
@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_headline_grid(name: str, queries: int, keys: int, dim: int, dtype: torch.dtype) -> None:
    for heads in HEADS:
        check(name, heads, queries, keys, dim, dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str, dtype: torch.dtype) -> None:
    for queries, keys in ((17, 17), (137, 300), (300, 200), (1000, 1000)):
        check(name, (4, 2), queries, keys, 64, dtype, batch=2, lse=True)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", [1, 16, 40, 72, 96, 192, 256])
def test_other_head_dims(dim: int, dtype: torch.dtype) -> None:
    check("causal", (2, 1), 333, 333, dim, dtype)


def test_unseen_positions_have_no_gradient_whatever_they_hold() -> None:
    mask = cm.where(lambda q, kv: (q >= 20) & (kv >= 130) & (kv <= q + 100))
    q, k, v = random_inputs(1, 2, 2, 150, 300, 64, torch.bfloat16, "cuda")
    seen = mask.dense(150, 300)[0, 0].cuda()
    rows, columns = ~seen.any(dim=1), ~seen.any(dim=0)
    q[:, :, rows], k[:, :, columns], v[:, :, columns] = torch.nan, torch.nan, torch.inf
    inputs = [x.requires_grad_() for x in (q, k, v)]
    grad_out = torch.randn_like(q)
    grad_out[:, :, rows] = torch.nan
    gradients = torch.autograd.grad(cm.attention(*inputs, mask=mask), inputs, grad_out)
    for gradient, unseen in zip(gradients, (rows, columns, columns), strict=True):
        assert gradient.isfinite().all()
        assert not gradient[:, :, unseen].any()


def test_strided_and_misaligned_inputs() -> None:
    q, k, v = random_inputs(2, 4, 2, 200, 200, 64, torch.float16, "cuda")
    grad = torch.randn_like(q)
    visible = MASKS["causal"](200, 200).dense(200, 200)
    expected = dense_gradients(q, k, v, visible, grad)
    for change in (
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
        lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
        lambda x: torch.cat([x, x], dim=3)[..., :64],
    ):
        inputs = [change(x).detach().requires_grad_() for x in (q, k, v)]
        found = torch.autograd.grad(cm.attention(*inputs, mask=cm.causal()), inputs, change(grad))
        for gradient, reference in zip(found, expected, strict=True):
            assert_close(gradient, reference, TOLERANCE[torch.float16])


def test_empty_sequences() -> None:
    for queries, keys in ((0, 10), (10, 0), (0, 0)):
        inputs = [x.requires_grad_() for x in random_inputs(2, 4, 2, queries, keys, 64, torch.float16, "cuda")]
        cm.attention(*inputs, mask=cm.causal()).sum().backward()
        assert all(x.grad is not None and not x.grad.any() for x in inputs)


@pytest.mark.parametrize("name", ["causal", "shared prompt", "clear"])
def test_deterministic_runs_are_equal_bit_by_bit(name: str) -> None:
    inputs = [x.requires_grad_() for x in random_inputs(2, 4, 2, 1000, 1000, 128, torch.bfloat16, "cuda")]
    mask, grad = MASKS[name](1000, 1000), torch.randn_like(inputs[0])
    torch.use_deterministic_algorithms(True)
    try:
        runs = [torch.autograd.grad(cm.attention(*inputs, mask=mask), inputs, grad) for _ in range(20)]
    finally:
        torch.use_deterministic_algorithms(False)
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], run, strict=True))


def step(length: int, name: str) -> None:
    """One step of training with new lengths."""
    inputs = [x.requires_grad_() for x in random_inputs(1, 4, 2, length, length, 64, torch.bfloat16, "cuda")]
    cm.attention(*inputs, mask=MASKS[name](length, length)).sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in inputs)


def test_new_lengths_compile_nothing() -> None:
    for name in ("hstu", "shared prompt"):
        step(300, name)
    before = compiled_kernels()
    for length in (1, 200, 1025, 4096):
        for name in ("hstu", "shared prompt"):
            step(length, name)
    assert compiled_kernels() == before


def test_captured_with_lengths_changed_in_place() -> None:
    length = 1000
    offsets = random_offsets(length, 5).cuda()
    compiled = cm.compile(cm.shared_prompt(offsets))
    inputs = [x.requires_grad_() for x in random_inputs(1, 2, 2, length, length, 64, torch.float16, "cuda")]
    grad = torch.randn_like(inputs[0])

    def run() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(cm.attention(*inputs, mask=compiled), inputs, grad)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run()
    for prompt in (10, 400, 999):
        new = torch.tensor([0, prompt, prompt, 999, 999, length], dtype=torch.int32)
        offsets.copy_(new)
        graph.replay()
        visible = cm.shared_prompt(new).dense(length, length)
        expected = dense_gradients(inputs[0], inputs[1], inputs[2], visible, grad)
        for gradient, reference in zip(found, expected, strict=True):
            assert_close(gradient, reference, TOLERANCE[torch.float16])


def test_a_step_does_not_wait() -> None:
    offsets = random_offsets(1000, 5).cuda()
    inputs = [x.requires_grad_() for x in random_inputs(1, 2, 2, 1000, 1000, 64, torch.float16, "cuda")]
    mask = cm.causal() & cm.document(offsets)
    cm.attention(*inputs, mask=mask).sum().backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        cm.attention(*inputs, mask=mask).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_transpose_costs_memory_for_gradients_alone() -> None:
    length = 32768
    offsets = random_offsets(length, 5).cuda()
    compiled = cm.compile(cm.shared_prompt(offsets))
    alone = compiled.descriptor(length, device="cuda")
    both = compiled.descriptor(length, device="cuda", gradient=True)
    assert alone.transposed is None
    assert both.transposed is not None
    assert both.transposed.layout.words * 4 < 8 * 2**20
