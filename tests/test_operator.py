"""Attention as an operator among PyTorch's own: compiled, exported, mapped, cast and checkpointed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compare import assert_close, dense_attention, random_inputs
from sample_masks import random_offsets
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

import compilemask as cm
from compilemask.errors import GradientError, MaskError, ShapeError

LENGTHS = (140, 77, 300)


def inputs_of(length: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [x.requires_grad_() for x in random_inputs(2, 4, 2, length, length, 16, dtype)]


def gradients(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor], *others: Any) -> list[torch.Tensor]:
    """The function's result and its gradients."""
    out = function(*inputs, *others)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), inputs)]


def assert_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, 1e-6)


def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
    return cm.attention(q * 2, k, v, mask) + 1


# ---- torch.compile ----


def traced(dynamic: bool | None) -> tuple[Callable[..., torch.Tensor], CompileCounterWithBackend]:
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    return torch.compile(model, backend=counter, fullgraph=True, dynamic=dynamic), counter


def compiled_masks(length: int) -> list[cm.Compiled]:
    return [cm.compile(mask) for mask in (cm.document([0, 20, length]), cm.causal() & cm.document([0, 9, 11, length]))]


def test_new_lengths_values_and_masks_recompile_nothing() -> None:
    function, counter = traced(dynamic=True)
    for length in LENGTHS:
        for compiled in compiled_masks(length):
            assert_equal(
                gradients(function, inputs_of(length), compiled), gradients(model, inputs_of(length), compiled)
            )
    assert counter.frame_count == 1


def test_other_descriptors_recompile_nothing() -> None:
    function, counter = traced(dynamic=True)
    for length in LENGTHS:
        for compiled in compiled_masks(length):
            given = compiled.descriptor(length, gradient=True)
            assert_equal(gradients(function, inputs_of(length), given), gradients(model, inputs_of(length), compiled))
    # Where the first descriptor happens to be as long as its transpose, torch.compile takes that for a rule at first.
    assert counter.frame_count <= 2


def test_lengths_become_dynamic_by_themselves() -> None:
    function, counter = traced(dynamic=None)
    for length in LENGTHS:
        compiled = cm.compile(cm.hstu(length - 5, 3))
        assert_equal(gradients(function, inputs_of(length), compiled), gradients(model, inputs_of(length), compiled))
    assert counter.frame_count == 2


def test_without_gradients() -> None:
    function, counter = traced(dynamic=True)
    for length in LENGTHS:
        with torch.no_grad():
            compiled = cm.compile(cm.causal())
            q, k, v = random_inputs(1, 2, 2, length, length, 16)
            assert torch.equal(function(q, k, v, compiled), model(q, k, v, compiled))
    assert counter.frame_count == 1


def test_a_mask_breaks_the_graph_and_nothing_else() -> None:
    function = torch.compile(model, backend="aot_eager")
    inputs = inputs_of(50)
    assert_equal(gradients(function, inputs, cm.causal()), gradients(model, inputs, cm.causal()))


def test_tables_are_read_when_the_graph_runs() -> None:
    function, _ = traced(dynamic=True)
    offsets = torch.tensor([0, 30, 100], dtype=torch.int32)
    compiled = cm.compile(cm.document(offsets))
    q, k, v = random_inputs(1, 2, 2, 100, 100, 16)
    function(q, k, v, compiled)
    offsets[1] = 70
    assert torch.equal(function(q, k, v, compiled), model(q, k, v, cm.document([0, 70, 100])))


def test_kept_descriptors_are_not_the_graph_s() -> None:
    compiled = cm.compile(cm.window(11))
    kept = compiled.descriptor(60)
    (buffer, _) = torch.ops.compilemask.descriptor(compiled.handle, [], 60, 60, False, torch.device("cpu"))
    assert torch.equal(buffer, kept.buffer)
    assert buffer.data_ptr() != kept.buffer.data_ptr()


def test_a_compiled_mask_that_is_gone() -> None:
    with pytest.raises(MaskError, match="no more"):
        torch.ops.compilemask.descriptor(2**40, [], 5, 5, False, torch.device("cpu"))


def test_bad_input_in_a_graph() -> None:
    function, _ = traced(dynamic=True)
    inputs = inputs_of(50)
    with pytest.raises(MaskError, match="batch 3, q has 2"):
        function(*inputs, cm.compile(cm.padding([1, 2, 3])))
    with pytest.raises(Unsupported, match="without its transpose"):
        function(*inputs, cm.compile(cm.causal()).descriptor(50))


def test_inductor() -> None:
    torch._dynamo.reset()
    function = torch.compile(model, fullgraph=True, dynamic=True)
    for length in LENGTHS[:2]:
        compiled = cm.compile(cm.causal())
        assert_equal(gradients(function, inputs_of(length), compiled), gradients(model, inputs_of(length), compiled))


# ---- torch.export ----


class Layer(torch.nn.Module):
    """Attention over a descriptor that the module holds."""

    def __init__(self, descriptor: cm.Descriptor) -> None:
        super().__init__()
        self.descriptor = descriptor

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return model(q, k, v, self.descriptor)


def test_export() -> None:
    q, k, v = random_inputs(2, 4, 2, 100, 100, 16)
    layer = Layer(cm.compile(cm.causal()).descriptor(100))
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(layer, (q, k, v), dynamic_shapes=({0: batch}, {0: batch}, {0: batch}))
    more = random_inputs(5, 4, 2, 100, 100, 16)
    assert torch.equal(program.module()(*more), layer(*more))


def test_a_saved_program_runs_in_another_process(tmp_path: Path) -> None:
    layer, given = Layer(cm.compile(cm.causal()).descriptor(40)), tuple(random_inputs(1, 2, 2, 40, 40, 16))
    torch.export.save(torch.export.export(layer, given), tmp_path / "program.pt2")
    torch.save((given, layer(*given)), tmp_path / "results.pt")
    text = """
        import sys, compilemask.runtime, torch
        given, expected = torch.load(sys.argv[2])
        assert torch.equal(torch.export.load(sys.argv[1]).module()(*given), expected)
    """
    command = [sys.executable, "-c", textwrap.dedent(text), tmp_path / "program.pt2", tmp_path / "results.pt"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


class MaskedLayer(torch.nn.Module):
    """Attention by a compiled mask that the module holds."""

    def __init__(self, mask: cm.Compiled) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cm.attention(x, x, x, self.mask)


def test_a_saved_graph_takes_no_mask_of_another_process(tmp_path: Path) -> None:
    layer, x = MaskedLayer(cm.compile(cm.causal())), torch.randn(1, 1, 40, 16)
    program = torch.export.export(layer, (x,))
    assert torch.equal(program.module()(x), layer(x))
    torch.export.save(program, tmp_path / "program.pt2")
    text = """
        import sys, compilemask, torch
        others = [compilemask.compile(compilemask.window(n)) for n in range(1, 50)]
        torch.export.load(sys.argv[1]).module()(torch.randn(1, 1, 40, 16))
    """
    command = [sys.executable, "-c", textwrap.dedent(text), tmp_path / "program.pt2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "MaskError: the compiled mask of a graph is no more, or in another process" in done.stderr


# ---- torch.func ----


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return cm.attention(q, k, v, cm.causal())


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (1, 0, None), (None, 2, 0)])
def test_vmap(in_dims: tuple[int | None, ...]) -> None:
    shapes = [(2, 4, 30, 8), (2, 2, 40, 8), (2, 2, 40, 8)]
    given = [
        torch.randn(shape if dim is None else (*shape[:dim], 3, *shape[dim:]))
        for shape, dim in zip(shapes, in_dims, strict=True)
    ]
    found = torch.vmap(causal, in_dims=in_dims)(*given)
    for i in range(3):
        parts = [x if dim is None else x.select(dim, i) for x, dim in zip(given, in_dims, strict=True)]
        assert_close(found[i], causal(*parts), 1e-6)


def test_vmap_over_masks_of_batches_is_refused() -> None:
    given = [torch.randn(3, 2, 2, 30, 8) for _ in range(3)]
    with pytest.raises(ShapeError, match="mask of 2 batches"):
        torch.vmap(lambda q, k, v: cm.attention(q, k, v, cm.padding([5, 9])))(*given)


def test_vmap_over_batches_of_nothing() -> None:
    assert torch.vmap(causal)(*(torch.randn(3, 0, 2, 30, 8) for _ in range(3))).shape == (3, 0, 2, 30, 8)


def test_vmap_without_gradients_needs_no_transpose() -> None:
    descriptor = cm.compile(cm.causal()).descriptor(30, 30, "cpu")
    given = [torch.randn(3, 2, 2, 30, 8) for _ in range(3)]

    def mapped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return cm.attention(q, k, v, descriptor)

    found = torch.vmap(mapped)(*given)
    assert_close(found, torch.stack([causal(*x) for x in zip(*given, strict=True)]), 1e-6)
    given[1].requires_grad_()
    with pytest.raises(GradientError, match="without its transpose"):
        torch.vmap(mapped)(*given)


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_vmap_in_a_graph(needs_gradient: bool) -> None:
    mask = cm.compile(cm.causal())
    given = [torch.randn(3, 2, 2, 30, 8, requires_grad=needs_gradient) for _ in range(3)]

    def mapped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda q, k, v: cm.attention(q, k, v, mask))(q, k, v)

    torch._dynamo.reset()
    in_a_graph = torch.compile(mapped, backend="aot_eager", fullgraph=True)
    if needs_gradient:
        assert_equal(gradients(in_a_graph, given), gradients(mapped, given))
    else:
        assert_close(in_a_graph(*given), mapped(*given), 1e-6)


def test_func_grad_is_refused() -> None:
    with pytest.raises(GradientError, match=r"torch\.func\.grad"):
        torch.func.grad(lambda q: causal(q, q, q).sum())(torch.randn(1, 2, 30, 8))


def test_vmap_with_gradients() -> None:
    given = [torch.randn(3, 2, 2, 30, 8, requires_grad=True) for _ in range(3)]
    found = gradients(torch.vmap(causal), given)
    assert_equal(found, gradients(lambda q, k, v: torch.stack([causal(*x) for x in zip(q, k, v, strict=True)]), given))


@pytest.mark.parametrize("return_lse", [False, True])
def test_gradients_mapped_by_autograd(return_lse: bool) -> None:
    given = inputs_of(20, torch.float64)
    outputs = cm.attention(given[0], given[1], given[2], cm.causal(), return_lse=True)[: 2 if return_lse else 1]
    mapped = [torch.randn(3, *x.shape, dtype=x.dtype) for x in outputs]
    found = torch.autograd.grad(outputs, given, mapped, is_grads_batched=True, retain_graph=True)
    single = [torch.autograd.grad(outputs, given, each, retain_graph=True) for each in zip(*mapped, strict=True)]
    for number, gradient in enumerate(found):
        assert_close(gradient, torch.stack([each[number] for each in single]), 1e-12)


def test_jacobian() -> None:
    q, k, v = (x.detach()[:1, :2, :3] for x in inputs_of(5, torch.float64))
    found, expected = (
        torch.autograd.functional.jacobian(lambda *x: causal(*x), (q, k, v), vectorize=vectorize)
        for vectorize in (True, False)
    )
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, 1e-12)


# ---- autocast, checkpoints, layouts ----


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    inputs = inputs_of(100)
    with torch.autocast("cpu", dtype=dtype):
        out, lse = cm.attention(*inputs, mask=cm.causal(), return_lse=True)
        found = torch.autograd.grad(out.float().square().sum(), inputs)
        double = cm.attention(*(x.double() for x in inputs), mask=cm.causal())
    assert (out.dtype, lse.dtype, double.dtype) == (dtype, torch.float32, torch.float64)
    rounded = [x.detach().to(dtype) for x in inputs]
    assert torch.equal(out, cm.attention(*rounded, mask=cm.causal()))
    expected = gradients(lambda *x: cm.attention(*x, mask=cm.causal()), inputs)
    for gradient, reference in zip(found, expected[1:], strict=True):
        assert gradient.dtype == torch.float32
        assert_close(gradient, reference, 2e-2)


def test_what_is_float32_stays_so_under_autocast() -> None:
    q, k, v = random_inputs(1, 2, 2, 100, 100, 16)
    descriptor = cm.compile(cm.causal()).descriptor(100)
    with torch.autocast("cpu"):
        out, _ = torch.ops.compilemask.attention(q, k, v, descriptor.tensors, 0.25, "", [], [])
    assert_close(out, dense_attention(q, k, v, cm.causal().dense(100, 100))[0], 2e-5)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpoints(use_reentrant: bool) -> None:
    inputs = inputs_of(100)
    expected = gradients(model, inputs, cm.causal())
    out = checkpoint(model, *inputs, cm.causal(), use_reentrant=use_reentrant)
    out.square().sum().backward()
    found = [x.grad for x in inputs if x.grad is not None]
    assert_equal([out, *found], expected)


def test_batches_of_nothing() -> None:
    for shape in ((0, 4, 30, 8), (2, 0, 30, 8)):
        q = torch.randn(shape, requires_grad=True)
        out = cm.attention(q, q, q, cm.causal())
        assert out.shape == shape
        assert torch.autograd.grad(out.sum(), q)[0].shape == shape


def test_meta_tensors() -> None:
    descriptor = cm.compile(cm.causal()).descriptor(30, gradient=True)
    q, k, v = (x.to("meta") for x in random_inputs(1, 2, 2, 30, 30, 8, torch.float16))
    tensors = [x.to("meta") for x in descriptor.tensors]
    out, lse = torch.ops.compilemask.attention(q, k, v, tensors, 0.5, "", [], [])
    assert (out.shape, out.dtype, lse.shape, lse.dtype) == (q.shape, q.dtype, q.shape[:3], torch.float32)
    *found, _ = torch.ops.compilemask.attention_backward(out, lse, q, k, v, out, lse, tensors, 0.5, "", [], [], [])
    assert [x.shape for x in found] == [q.shape, k.shape, v.shape]


def test_varying_offsets_in_one_training_loop() -> None:
    weight = torch.randn(16, 16, requires_grad=True)
    for length in (30, 47, 90):
        x = torch.randn(1, 2, length, 16)
        mask = cm.causal() & cm.document(random_offsets(length, 4))
        cm.attention(x @ weight, x, x, mask).square().sum().backward()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()
