"""Gradients like others before: all that may differ between two with tensors of one form is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from test_direct_gradient import BACKWARD_CONTEXTS, leaves
from test_hopper_runtime import half
from torch.autograd.graph import saved_tensors_hooks

import compilemask as cm
from compilemask.runtime.calls import direct_gradient, known_gradients
from compilemask.runtime.calls.gradient_inputs import GradientInputs, Gradients
from compilemask.runtime.calls.known_gradients import KnownGradient, direct_gradient_of
from compilemask.runtime.cpu.attention_backward_cpu import attention_backward_cpu


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    known_gradients.forget()
    yield
    known_gradients.forget()


def gradients(
    inputs: Sequence[torch.Tensor],
    mask: Any = None,
    grad_out: torch.Tensor | None = None,
    with_lse: bool = False,
) -> tuple[torch.Tensor, ...]:
    out, lse = cm.attention(*inputs, mask=cm.causal() if mask is None else mask, return_lse=True)
    loss = (out * torch.linspace(0, 1, out.numel()).view_as(out)).sum() if grad_out is None else out
    if with_lse:
        loss = loss + lse.sum()
    return torch.autograd.grad(loss, list(inputs), grad_out)


def saved(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What a gradient is computed from."""
    with torch.no_grad():
        descriptor = cm.compile(cm.causal()).descriptor(40, gradient=True)
        return [*inputs, torch.empty_like(inputs[0]), torch.empty(inputs[0].shape[:3]), *descriptor.tensors]


# ---------------------------------------------------------------- which gradients are known


def test_like_gradients_are_one() -> None:
    inputs = leaves()
    tensors, gradient = saved(inputs), torch.randn(inputs[0].shape)
    first = direct_gradient_of(gradient, None, tensors)
    assert first is not None
    assert direct_gradient_of(gradient.clone(), None, tensors) is first
    lse = torch.empty(inputs[0].shape[:3])
    others = [
        direct_gradient_of(gradient, lse, tensors),
        direct_gradient_of(gradient[:1, :1, :1, :1].expand(gradient.shape), None, tensors),
        direct_gradient_of(gradient.mT.contiguous().mT, None, tensors),
    ]
    assert len({first, *others, None}) == 5
    assert direct_gradient_of(gradient, lse, tensors) is others[0]
    assert direct_gradient_of(gradient, None, tensors) is first


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BACKWARD_CONTEXTS)
def test_the_way_back_is_chosen_anew_though_known(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    direct: list[GradientInputs] = []

    def noted(inputs: GradientInputs) -> Gradients:
        direct.append(inputs)
        return attention_backward_cpu(inputs)

    monkeypatch.setattr(direct_gradient, "attention_backward_cpu", noted)
    context, goes_directly = BACKWARD_CONTEXTS[name]
    inputs = leaves()
    expected = gradients(inputs)
    out = cm.attention(*inputs, mask=cm.causal())
    loss = (out * torch.linspace(0, 1, out.numel()).view_as(out)).sum()
    assert len(direct) == 1
    with context():
        found = torch.autograd.grad(loss, inputs)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert len(direct) == 1 + goes_directly


def test_a_vmap_of_the_way_back_though_known() -> None:
    inputs = leaves()
    several = torch.randn(3, *inputs[0].shape)
    expected = [gradients(inputs, grad_out=each) for each in several]
    out = cm.attention(*inputs, mask=cm.causal())
    found = torch.vmap(lambda each: torch.autograd.grad(out, inputs, each, retain_graph=True))(several)
    for number, each in enumerate(expected):
        assert all(torch.allclose(a[number], b, atol=1e-5) for a, b in zip(found, each, strict=True))


def test_a_second_gradient_though_known() -> None:
    inputs = leaves()
    gradients(inputs)
    first = torch.autograd.grad(cm.attention(*inputs, mask=cm.causal()).square().sum(), inputs, create_graph=True)
    assert all(x.requires_grad for x in first)


# ---------------------------------------------------------------- what no form tells


def test_gradients_in_turn() -> None:
    """Of other values, masks, descriptors and strides."""
    inputs = leaves()
    expanded = torch.ones(1, 1, 1, 1).expand(inputs[0].shape)
    descriptor = cm.compile(cm.window(3)).descriptor(40, gradient=True)
    cases: list[Callable[[], tuple[torch.Tensor, ...]]] = [
        lambda: gradients(inputs),
        lambda: gradients(inputs, cm.window(5)),
        lambda: gradients(inputs, descriptor),
        lambda: gradients(inputs, with_lse=True),
        lambda: gradients(inputs, grad_out=expanded),
        lambda: gradients([x.detach().mul(2).requires_grad_() for x in inputs]),
        lambda: gradients([x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in inputs]),
    ]
    expected = []
    for case in cases:
        known_gradients.forget()
        expected.append(case())
    for _ in range(2):
        for case, gradient in zip(cases, expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(case(), gradient, strict=True))


def test_the_descriptor_of_the_way_there_is_used_if_its_tensors_are(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[GradientInputs] = []

    def noted(inputs: GradientInputs) -> Gradients:
        seen.append(inputs)
        return attention_backward_cpu(inputs)

    monkeypatch.setattr(direct_gradient, "attention_backward_cpu", noted)
    inputs = leaves()
    descriptor = cm.compile(cm.causal()).descriptor(40, gradient=True).clone()
    for hooks in (nullcontext(), saved_tensors_hooks(lambda x: x, torch.Tensor.clone)):
        with hooks:
            gradients(inputs, descriptor)
    assert seen[0].descriptor is descriptor
    assert seen[1].descriptor is not descriptor
    assert seen[1].descriptor == descriptor
    assert seen[1].transposed == descriptor.transposed


def test_debug_forgets() -> None:
    gradients(leaves())
    assert known_gradients._known.all()
    with cm.debug():
        assert not known_gradients._known.all()


# ---------------------------------------------------------------- on a GPU


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What plans are made for and followed."""
    notes: list[Any] = []

    def plan_along(kind: Any, stride: Any, layout: Any, sums_queries: bool) -> str:
        notes.append(f"plan {layout.queries} {sums_queries}")
        return f"{layout.queries} {sums_queries}"

    monkeypatch.setattr(known_gradients, "plan_along", plan_along)
    monkeypatch.setattr(known_gradients, "gradients_by", lambda plan, _: notes.append(plan))
    monkeypatch.setattr(known_gradients, "attention_backward_gpu", lambda _: notes.append("looked up"))
    return notes


def test_plans(planned: list[Any]) -> None:
    q = half(1, 2, 40, 64)
    causal, longer = (cm.compile(cm.causal()).descriptor(40, keys, gradient=True) for keys in (40, 50))
    known = KnownGradient(q, q, q, q)
    inputs = GradientInputs(q, None, q, q, q, q, q[..., 0], causal, 1.0)
    shifted = torch.zeros(q.numel() + 1, dtype=q.dtype)[1:].view(q.shape)
    for _ in range(2):
        known.on_gpu(inputs)
        known.on_gpu(inputs._replace(descriptor=longer))
        torch.use_deterministic_algorithms(True)
        try:
            known.on_gpu(inputs)
        finally:
            torch.use_deterministic_algorithms(False)
        for name in ("grad_out", "query", "key", "value"):
            known.on_gpu(inputs._replace(**{name: shifted}))
    followed = ["40 True", "50 True", "40 False", *["looked up"] * 4]
    assert [note for note in planned if not note.startswith("plan")] == followed * 2
    assert [note for note in planned if note.startswith("plan")] == ["plan 40 True", "plan 50 True", "plan 40 False"]
    # Another layout could come to lie where one lay, if that was not held.
    assert [id(layout) for layout, _ in known._plans.values()] == [identity for identity, _ in known._plans]


def test_few_plans_are_kept(planned: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_gradients, "KEPT_PLANS", 3)
    q = half(1, 2, 40, 64)
    known = KnownGradient(q, q, q, q)
    for keys in range(40, 50):
        descriptor = cm.compile(cm.causal()).descriptor(40, keys, gradient=True)
        known.on_gpu(GradientInputs(q, None, q, q, q, q, q[..., 0], descriptor, 1.0))
        assert 0 < len(known._plans) <= 3
    assert planned[-1] == "49 True"
