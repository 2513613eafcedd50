"""Gradients through score modifications on the CPU: finite differences, and autograd of the dense formula."""

from __future__ import annotations

import pytest
import torch
from compare import assert_close, random_inputs
from sample_masks import MASKS
from score_cases import Case, Learned, cases, dense_scored, learned
from xdsl.dialects import math
from xdsl.ir import SSAValue

import compilemask as cm
from compilemask.errors import GradientError
from compilemask.score.builder import ScoreBuilder

NAMES = list(learned(1, 1))
CONSTANT = ["softcap", "no sink", "silu", "silu over a length"]
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 1e-2}
"""Constants of derivatives, such as log(2), are float32."""


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name: str) -> None:
    inputs = [x.requires_grad_() for x in random_inputs(2, 2, 1, 8, 9, 3, torch.float64)]
    case = learned(2, 2, torch.float64)[name]
    parameters = [x.requires_grad_() for x in case.parameters]

    def outputs(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = case.make(*tensors[3:])
        q, k, v = tensors[:3]
        if given.pointwise:
            return (cm.attention(q, k, v, cm.causal(), score=given.score),)
        return cm.attention(q, k, v, cm.causal(), score=given.score, return_lse=True)

    assert torch.autograd.gradcheck(outputs, [*inputs, *parameters])


def check(case: Learned, mask: cm.Mask, queries: int, keys: int, dtype: torch.dtype) -> None:
    """Gradients of a random function of out and lse, with regard to all tensors."""
    q, k, v = random_inputs(2, 4, 2, queries, keys, 16, dtype)
    tensors = [x.requires_grad_() for x in (q, k, v, *(x.clone() for x in case.parameters))]
    given = case.make(*tensors[3:])
    expected_outputs = dense_scored(given, q, k, v, mask.dense(queries, keys), 0.3)
    if given.pointwise:
        outputs, expected_outputs = [cm.attention(q, k, v, mask, 0.3, score=given.score)], expected_outputs[:1]
    else:
        outputs = list(cm.attention(q, k, v, mask, 0.3, score=given.score, return_lse=True))
    generator = torch.Generator().manual_seed(1)
    grads = [torch.randn(x.shape, generator=generator).to(x.dtype) for x in outputs]
    found = torch.autograd.grad(outputs, tensors, grads)
    expected = torch.autograd.grad(expected_outputs, tensors, [x.double() for x in grads])
    for position, (tensor, gradient, reference) in enumerate(zip(tensors, found, expected, strict=True)):
        assert (gradient.dtype, gradient.shape) == (tensor.dtype, tensor.shape)
        assert_close(gradient, reference, TOLERANCE[dtype], f"gradient {position}")
        assert not gradient[reference == 0].any(), f"gradient {position} is not exactly 0"


@pytest.mark.parametrize("mask", ["causal", "hstu", "clear", "scattered"])
@pytest.mark.parametrize("name", NAMES)
def test_masks(name: str, mask: str) -> None:
    check(learned(2, 4, torch.float64)[name], MASKS[mask](140, 200), 140, 200, torch.float64)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ["softcap of alibi, and a sink", "relative bias per batch", "silu over lengths"])
def test_types(name: str, dtype: torch.dtype) -> None:
    check(learned(2, 4, torch.float64 if dtype == torch.float64 else torch.float32)[name], cm.causal(), 100, 100, dtype)


@pytest.mark.parametrize("mask", ["padding per head", "causal documents per batch"])
@pytest.mark.parametrize("name", ["alibi", "sink per batch", "relative bias"])
def test_masks_per_batch_and_head(name: str, mask: str) -> None:
    check(learned(2, 4)[name], MASKS[mask](137, 137), 137, 137, torch.float32)


@pytest.mark.parametrize("parameters", [torch.float16, torch.bfloat16])
def test_gradients_have_the_types_of_their_tensors(parameters: torch.dtype) -> None:
    q, k, v = random_inputs(1, 2, 2, 40, 40, 8)
    slopes = torch.rand(2).to(parameters).requires_grad_()
    logits = torch.rand(2).to(parameters).requires_grad_()
    score = cm.score.alibi(slopes) >> cm.score.sink(logits)
    cm.attention(q, k, v, cm.causal(), score=score).square().sum().backward()
    for x in (slopes, logits):
        assert x.grad is not None
        assert x.grad.dtype == parameters
        assert x.grad.any()


@pytest.mark.parametrize("name", CONSTANT)
def test_modifications_without_tensors_that_have_gradients(name: str) -> None:
    case = cases(2, 4, dtype=torch.float64)[name]
    check(Learned((), lambda: case), cm.causal(), 70, 70, torch.float64)


def test_some_tensors_alone() -> None:
    q, k, v = random_inputs(1, 2, 1, 40, 40, 8)
    parameters = [x.clone().requires_grad_() for x in (torch.rand(2), torch.rand(2) + 1, torch.rand(2))]
    make = learned(1, 2)["softcap of alibi, and a sink"].make

    def gradients(*tensors: torch.Tensor) -> list[torch.Tensor | None]:
        cm.attention(q, k, v, cm.causal(), score=make(*tensors).score).square().sum().backward()
        return [x.grad for x in tensors]

    every = gradients(*parameters)
    for position in range(3):
        tensors = [x.detach() for x in parameters]
        tensors[position] = tensors[position].clone().requires_grad_()
        found = gradients(*tensors)
        assert [x is None for x in found] == [at != position for at in range(3)]
        assert_close(found[position], every[position], 1e-5)  # pyright: ignore[reportArgumentType]


def test_sequences_of_nothing() -> None:
    logits = torch.rand(2, requires_grad=True)
    for queries, keys, expected in ((0, 5, 0.0), (5, 0, 5.0)):
        q, k, v = (x.requires_grad_() for x in random_inputs(1, 2, 2, queries, keys, 8))
        _, lse = cm.attention(q, k, v, cm.full(), score=cm.score.sink(logits), return_lse=True)
        assert torch.equal(torch.autograd.grad(lse.sum(), logits)[0], torch.full((2,), expected))


def test_training_a_sink() -> None:
    torch.manual_seed(0)
    logits = torch.zeros(2, requires_grad=True)
    score, optimizer = cm.score.sink(logits), torch.optim.Adam([logits], lr=0.1)
    q, k, v = random_inputs(1, 2, 1, 40, 40, 8)
    target = cm.attention(q, k, v, cm.causal(), score=cm.score.sink(torch.tensor([1.0, -2.0])))
    for _ in range(200):
        optimizer.zero_grad()
        (cm.attention(q, k, v, cm.causal(), score=score) - target).square().sum().backward()
        optimizer.step()
    assert_close(logits, torch.tensor([1.0, -2.0]), 5e-2)


def test_compiled_models_differentiate_scores() -> None:
    inputs = [x.requires_grad_() for x in random_inputs(1, 2, 1, 60, 60, 8)]
    slopes = torch.rand(2, requires_grad=True)
    descriptor = cm.compile(cm.causal()).descriptor(60, gradient=True)
    score = cm.score.alibi(slopes)

    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return cm.attention(q, k, v, descriptor, score=score).square().sum()

    expected = torch.autograd.grad(loss(*inputs), [*inputs, slopes])
    traced = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for a, b in zip(torch.autograd.grad(traced(*inputs), [*inputs, slopes]), expected, strict=True):
        assert torch.equal(a, b)


def test_vmap() -> None:
    q, k, v = random_inputs(3, 2, 1, 40, 40, 8)
    logits, slopes = torch.rand(2, requires_grad=True), torch.rand(2, requires_grad=True)
    score = cm.score.alibi(slopes) >> cm.score.sink(logits)
    mapped = torch.vmap(lambda q, k, v: cm.attention(q[None], k[None], v[None], cm.causal(), score=score)[0])
    found = torch.autograd.grad(mapped(q, k, v).square().sum(), (slopes, logits))
    expected = torch.autograd.grad(cm.attention(q, k, v, cm.causal(), score=score).square().sum(), (slopes, logits))
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, 1e-5)


class Erf(cm.score.Score):
    """A modification by a function that has no derivative here."""

    def __init__(self) -> None:
        self.__post_init__()

    def emit(self, builder: ScoreBuilder, score: SSAValue) -> SSAValue:
        return builder.add(math.ErfOp(score))


def test_what_has_no_gradient() -> None:
    q, k, v = (x.requires_grad_() for x in random_inputs(1, 2, 1, 40, 40, 8))
    with pytest.raises(GradientError, match=r"math.erf in @erf has no derivative"):
        cm.attention(q, k, v, cm.causal(), score=Erf())
    slopes = torch.rand(2)
    score = cm.score.alibi(slopes)
    slopes.requires_grad_()
    with pytest.raises(GradientError, match="make it again"):
        cm.attention(q, k, v, cm.causal(), score=score)
    with torch.no_grad():
        score = cm.score.alibi(slopes)
    with pytest.raises(GradientError, match="make it again"):
        cm.attention(q, k, v, cm.causal(), score=score)
    score = cm.score.alibi(slopes)
    (first,) = torch.autograd.grad(cm.attention(q, k, v, cm.causal(), score=score).sum(), slopes, create_graph=True)
    with pytest.raises(GradientError, match="second"):
        first.sum().backward()


def test_no_room_is_nan() -> None:
    descriptor = cm.compile(cm.causal()).descriptor(300, gradient=True).clone()
    descriptor.tiles[0, 0, 0, 1] = -1
    q, k, v = random_inputs(1, 2, 1, 300, 300, 8)
    slopes = torch.rand(2, requires_grad=True)
    cm.attention(q, k, v, descriptor, score=cm.score.alibi(slopes)).sum().backward()
    assert slopes.grad is not None
    assert slopes.grad.isnan().all()


def test_operators_are_well_formed() -> None:
    q, k, v = (x.requires_grad_() for x in random_inputs(1, 2, 1, 70, 70, 8))
    case: Case = learned(1, 2)["softcap of alibi, and a sink"].make(
        *learned(1, 2)["softcap of alibi, and a sink"].parameters
    )
    plan = case.score.plan
    scoring = (plan.text, [table.data.clone().requires_grad_() for table in plan.captured], list(plan.numbers))
    descriptor = cm.compile(cm.causal()).descriptor(70, gradient=True)
    torch.library.opcheck(torch.ops.compilemask.attention.default, (q, k, v, descriptor.tensors, 0.25, *scoring))
