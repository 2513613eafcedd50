"""Training past PyTorch's dispatcher: equal to training through the operators in all that can be observed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from compare import random_inputs
from sample_masks import MASKS
from test_direct import Mode
from torch.autograd import forward_ad
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import compilemask as cm
from compilemask.errors import CompileMaskError, GradientError
from compilemask.runtime.calls import direct_gradient, operator
from compilemask.runtime.calls.gradient_inputs import GradientInputs, Gradients
from compilemask.runtime.calls.known_calls import direct_call
from compilemask.runtime.descriptor import Descriptor

Inputs = Sequence[torch.Tensor]


def leaves(queries: int = 40, keys: int = 40, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [x.requires_grad_() for x in random_inputs(2, 4, 2, queries, keys, 16, dtype)]


def through_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "direct_call", lambda *_: None)


def both_ways(run: Callable[[], Any]) -> list[Any]:
    """What the direct way gives, then what the operator gives."""
    results = [run()]
    with pytest.MonkeyPatch.context() as monkeypatch:
        through_the_operator(monkeypatch)
        results.append(run())
    return results


def assert_same_tensors(run: Callable[[], Sequence[torch.Tensor | None]]) -> None:
    for direct, through in zip(*both_ways(run), strict=True):
        assert (direct is None) == (through is None)
        if direct is not None:
            assert through is not None
            assert (direct.dtype, direct.stride()) == (through.dtype, through.stride())
            assert torch.equal(direct, through)


@pytest.fixture(params=["direct", "operator"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A test that takes this holds for both ways."""
    if request.param == "operator":
        through_the_operator(monkeypatch)
    return request.param


def is_direct(out: torch.Tensor) -> bool:
    assert out.grad_fn is not None
    return out.grad_fn.name() == "_AttentionBackward"


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> list[Descriptor]:
    """The descriptors of gradients that were computed directly."""
    seen: list[Descriptor] = []
    compute = direct_gradient.attention_backward_cpu

    def note(inputs: GradientInputs) -> Gradients:
        seen.append(inputs.descriptor)
        return compute(inputs)

    monkeypatch.setattr(direct_gradient, "attention_backward_cpu", note)
    return seen


# ---------------------------------------------------------------- the same gradients


def gradients(
    inputs: Inputs, mask: cm.Mask | Descriptor, loss: Callable[[Sequence[torch.Tensor]], torch.Tensor]
) -> list[torch.Tensor | None]:
    fresh = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
    outputs = cm.attention(*fresh, mask=mask, scale=0.3, return_lse=True)
    loss(outputs).backward()
    return [*(x.detach() for x in outputs), *(x.grad for x in fresh)]


def _of_both(outputs: Sequence[torch.Tensor]) -> torch.Tensor:
    out, lse = outputs
    return out.square().sum() + lse.masked_fill(lse == -torch.inf, 0).sin().sum()


LOSSES: dict[str, Callable[[Sequence[torch.Tensor]], torch.Tensor]] = {
    "out and lse": _of_both,
    "out": lambda outputs: outputs[0].square().sum(),
    "lse": lambda outputs: outputs[1].masked_fill(outputs[1] == -torch.inf, 0).square().sum(),
    "expanded": lambda outputs: outputs[0].sum(),
    "transposed": lambda outputs: (outputs[0].mT * torch.linspace(0, 1, outputs[0].shape[2])).sum(),
}


@pytest.mark.parametrize("name", MASKS)
def test_the_same_gradients(name: str, backwards: list[Descriptor]) -> None:
    assert_same_tensors(partial(gradients, leaves(100, 120), MASKS[name](100, 120), _of_both))
    assert len(backwards) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("loss", LOSSES)
def test_losses_and_types(loss: str, dtype: torch.dtype, backwards: list[Descriptor]) -> None:
    assert_same_tensors(partial(gradients, leaves(dtype=dtype), cm.window(9), LOSSES[loss]))
    assert len(backwards) == 1


@pytest.mark.parametrize("wanted", ["q", "k", "v", "qk", "kv"])
def test_some_inputs(wanted: str, backwards: list[Descriptor]) -> None:
    inputs = [x.requires_grad_(name in wanted) for name, x in zip("qkv", leaves(), strict=True)]
    assert_same_tensors(partial(gradients, inputs, cm.causal(), _of_both))
    assert len(backwards) == 1


def test_patches(backwards: list[Descriptor]) -> None:
    patches = cm.Patches(20, (9, 17), 20 + 153 + 7, (8, 16), (8, 16))
    descriptor = cm.compile(cm.clear(9, 17, 4, text=20)).descriptor(180, 180, gradient=True, patches=patches)
    assert_same_tensors(partial(gradients, leaves(180, 180), descriptor, _of_both))
    assert backwards[0].layout.patches == patches
    assert len(backwards) == 1


@pytest.mark.parametrize("shape", [(0, 4, 30, 8), (2, 0, 30, 8)])
def test_batches_of_nothing(shape: tuple[int, ...]) -> None:
    assert_same_tensors(partial(gradients, [torch.randn(shape, requires_grad=True)] * 3, cm.causal(), _of_both))


def test_views_of_one_buffer() -> None:
    qkv = torch.randn(2, 50, 3, 4, 16)

    def run() -> list[torch.Tensor]:
        leaf = qkv.clone().requires_grad_()
        out = cm.attention(*(x.transpose(1, 2) for x in leaf.unbind(2)), mask=cm.causal())
        return [out.detach(), *torch.autograd.grad(out.square().sum(), leaf)]

    assert_same_tensors(run)


def test_autocast_of_the_forward_pass_goes_through_the_operator() -> None:
    q, k, v = leaves()
    with torch.autocast("cpu", torch.bfloat16):
        out = cm.attention(q, k, v, cm.causal())
    assert not is_direct(out)
    assert out.dtype == torch.bfloat16


# ---------------------------------------------------------------- what happens around it


def _anomaly() -> AbstractContextManager[Any]:
    return torch.autograd.detect_anomaly(check_nan=True)


BACKWARD_CONTEXTS: dict[str, tuple[Callable[[], AbstractContextManager[Any]], bool]] = {
    "none": (nullcontext, True),
    "anomaly": (_anomaly, True),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), False),
    "profile": (torch.autograd.profiler.profile, False),
    "dispatch mode": (Mode, False),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BACKWARD_CONTEXTS)
def test_the_way_back_is_chosen_anew(name: str, backwards: list[Descriptor]) -> None:
    context, goes_directly = BACKWARD_CONTEXTS[name]
    inputs = leaves()

    def run() -> Sequence[torch.Tensor]:
        with _anomaly() if name == "anomaly" else nullcontext():
            loss = cm.attention(*inputs, mask=cm.causal()).square().sum()
        with context():
            return torch.autograd.grad(loss, inputs)

    assert_same_tensors(run)
    assert len(backwards) == goes_directly


def test_vmap_of_the_way_back(way: str, backwards: list[Descriptor]) -> None:
    inputs = leaves()
    several = torch.randn(3, *inputs[0].shape)
    out = cm.attention(*inputs, mask=cm.causal())

    def differentiate(grad_out: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(out, inputs, grad_out, retain_graph=True)

    found = torch.vmap(differentiate)(several)
    assert not backwards
    for number, grad_out in enumerate(several):
        for gradients, expected in zip(found, differentiate(grad_out), strict=True):
            assert torch.allclose(gradients[number], expected, atol=1e-5)


def test_traced_by_torch_compile() -> None:
    descriptor = cm.compile(cm.causal()).descriptor(40, 40, gradient=True)
    inputs = leaves()
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    traced = torch.compile(lambda: cm.attention(*inputs, mask=descriptor), fullgraph=True, backend=backend)
    assert not is_direct(traced())
    assert any("compilemask" in str(node.target) for node in graphs[0].graph.nodes)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("changes", [False, True], ids=["the same way", "recomputed by the other way"])
def test_checkpoints(use_reentrant: bool, changes: bool, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = leaves()
    mask = cm.document([0, 10, 40])
    expected = torch.autograd.grad(cm.attention(*inputs, mask=mask).square().sum(), inputs)
    out = checkpoint(lambda q, k, v: cm.attention(q, k, v, mask), *inputs, use_reentrant=use_reentrant)
    if changes:
        by_the_other_way = direct_call if way == "operator" else lambda *_: None
        monkeypatch.setattr(operator, "direct_call", by_the_other_way)
    assert isinstance(out, torch.Tensor)
    out.square().sum().backward()
    assert all(x.grad is not None and torch.equal(x.grad, y) for x, y in zip(inputs, expected, strict=True))


def test_the_same_tensors_are_saved() -> None:
    descriptor = cm.compile(cm.causal()).descriptor(40, gradient=True)
    inputs = leaves()

    def run() -> list[object]:
        seen: list[object] = []

        def pack(x: torch.Tensor) -> torch.Tensor:
            given = [x.data_ptr() == y.data_ptr() for y in (*inputs, *descriptor.tensors)]
            seen.append((x.shape, x.stride(), x.dtype, given))
            return x

        with saved_tensors_hooks(pack, lambda x: x):
            cm.attention(*inputs, mask=descriptor)
        return seen

    direct, through = both_ways(run)
    assert direct == through


@pytest.mark.parametrize("copy", [torch.clone, torch.Tensor.pin_memory] if torch.cuda.is_available() else [torch.clone])
def test_hooks_that_keep_copies(copy: Callable[[torch.Tensor], torch.Tensor], way: str) -> None:
    inputs = leaves()
    descriptor = cm.compile(cm.causal()).descriptor(40, gradient=True).clone()
    expected = torch.autograd.grad(cm.attention(*inputs, mask=descriptor).sum(), inputs)
    with saved_tensors_hooks(lambda x: copy(x.detach()), lambda x: x):
        out = cm.attention(*inputs, mask=descriptor)
    assert descriptor.transposed is not None
    for x in (descriptor.buffer, descriptor.transposed.buffer):
        x.zero_()  # what was saved is used
    found = torch.autograd.grad(out.sum(), inputs)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_saving_on_the_cpu(way: str) -> None:
    inputs = leaves()
    expected = torch.autograd.grad(cm.attention(*inputs, mask=cm.causal()).sum(), inputs)
    with save_on_cpu():
        out = cm.attention(*inputs, mask=cm.causal())
    found = torch.autograd.grad(out.sum(), inputs)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("what", ["q", "k", "v", "out", "descriptor", "transposed", "numbers"])
def test_what_was_saved_must_not_change(what: str, way: str) -> None:
    descriptor = cm.compile(cm.causal()).descriptor(40, gradient=True).clone()
    q, k, v = (x * 1 for x in leaves())
    out = cm.attention(q, k, v, descriptor)
    loss = out.sum()
    assert descriptor.transposed is not None
    assert descriptor.numbers is not None
    changed = {"q": q, "k": k, "v": v, "out": out, "descriptor": descriptor.buffer}
    changed |= {"transposed": descriptor.transposed.buffer, "numbers": descriptor.numbers}
    with torch.no_grad():
        changed[what].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_results_may_be_changed_in_place(way: str) -> None:
    inputs = leaves()
    out, lse = cm.attention(*inputs, mask=cm.causal(), return_lse=True)
    lse.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (out.sum() + lse.sum()).backward()


def test_memory_is_freed_by_the_gradient(way: str) -> None:
    inputs = leaves()
    descriptor = cm.compile(cm.causal()).descriptor(40, gradient=True).clone()
    assert descriptor.transposed is not None
    held = [weakref.ref(descriptor), *(weakref.ref(x) for x in (descriptor.buffer, descriptor.transposed.buffer))]
    out = cm.attention(*inputs, mask=descriptor)
    out.sum().backward(retain_graph=True)
    del descriptor
    assert held[1]() is not None
    assert held[2]() is not None
    out.sum().backward()
    assert [x() for x in held] == [None] * 3
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()


def test_there_is_no_second_gradient(way: str) -> None:
    q, k, v = leaves()
    first = torch.autograd.grad(cm.attention(q, k, v, cm.causal()).square().sum(), (q, k, v), create_graph=True)
    assert all(x.requires_grad for x in first)
    with pytest.raises(GradientError, match="second"):
        torch.stack([x.sum() for x in first]).sum().backward()


def test_hooks_on_tensors(way: str) -> None:
    inputs = leaves()
    expected = torch.autograd.grad(cm.attention(*inputs, mask=cm.causal()).sum(), inputs)
    seen: list[torch.Tensor] = []
    inputs[0].register_hook(lambda gradient: gradient * 2)
    out = cm.attention(*inputs, mask=cm.causal())
    out.register_hook(seen.append)
    out.retain_grad()
    out.sum().backward()
    assert torch.equal(seen[0], torch.ones_like(out))
    assert out.grad is not None
    factors = (2, 1, 1)
    for x, factor, gradient in zip(inputs, factors, expected, strict=True):
        assert x.grad is not None
        assert torch.equal(x.grad, factor * gradient)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomalies_are_found(way: str) -> None:
    inputs = leaves()
    with _anomaly():
        out = cm.attention(*inputs, mask=cm.causal())
        with pytest.raises(RuntimeError, match="returned nan values"):
            torch.autograd.grad(out, inputs, torch.full_like(out, torch.nan))


def test_outputs_without_use_have_no_gradient(way: str) -> None:
    inputs = leaves()
    out, lse = cm.attention(*inputs, mask=cm.causal(), return_lse=True)
    undefined = torch.autograd.grad(
        torch.zeros((), requires_grad=True) * 1 + out.detach().sum(), inputs, allow_unused=True
    )
    assert undefined == (None, None, None)
    assert (out.requires_grad, lse.requires_grad) == (True, True)


# ---------------------------------------------------------------- the same errors


def _inference(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return x.detach().clone()


BAD: dict[str, Callable[[torch.Tensor], dict[str, Any]]] = {
    "rank": lambda x: {"q": x[0]},
    "scale": lambda x: {"scale": float("nan")},
    "no transpose": lambda x: {"mask": cm.compile(cm.causal()).descriptor(40)},
    "no transpose, and other lengths": lambda x: {"mask": cm.compile(cm.causal()).descriptor(50)},
    "other lengths": lambda x: {"mask": cm.compile(cm.causal()).descriptor(50, gradient=True)},
    "mask too long": lambda x: {"mask": cm.hstu(100)},
    "inference tensor": lambda x: {"v": _inference(x)},
}


@pytest.mark.parametrize("name", BAD)
def test_the_same_errors(name: str) -> None:
    x = leaves()[1]
    arguments: dict[str, Any] = {"q": x, "k": x, "v": x, "mask": cm.causal()} | BAD[name](x)

    def run() -> tuple[type[Exception], str]:
        with pytest.raises((CompileMaskError, RuntimeError)) as caught:
            cm.attention(**arguments)
        return type(caught.value), str(caught.value)

    direct, through = both_ways(run)
    assert direct == through


@pytest.mark.parametrize("with_gradient", [False, True])
def test_forward_mode_is_refused(with_gradient: bool) -> None:
    q, k = torch.randn(1, 2, 40, 16), torch.randn(1, 2, 40, 16, requires_grad=with_gradient)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(GradientError, match="forward-mode"):
            cm.attention(dual, k, k, cm.causal())
        assert cm.attention(q, k, k, cm.causal()).isfinite().all()
    with pytest.raises(GradientError, match="forward-mode"):
        torch.func.jvp(lambda x: cm.attention(x, k, k, cm.causal()), (q,), (q,))
