"""Backward kernels with modified scores as the runtime launches them, executed in numpy, against dense autograd."""

from __future__ import annotations

import pytest
import torch
from compare import assert_close, random_inputs
from sample_masks import MASKS
from score_cases import Learned, cases, dense_scored, learned
from test_runtime_backward_kernels import on_numpy

import compilemask as cm
from compilemask.errors import GradientError
from compilemask.runtime.calls.gradient_inputs import GradientInputs
from compilemask.runtime.gpu import attention_backward_cuda
from compilemask.runtime.scoring import Scoring

__all__ = ["on_numpy"]
NAMES = list(learned(1, 1))
TOLERANCE = {torch.float32: 2e-5, torch.float16: 5e-3}


def check(
    case: Learned, mask: cm.Mask, queries: int, keys: int, *, dtype: torch.dtype = torch.float32, scale: float = 0.3
) -> None:
    """Gradients of random inputs, NaN in keys that nobody sees and in gradients of rows that see nothing."""
    q, k, v = random_inputs(2, 2, 1, queries, keys, 8, dtype)
    tensors = [x.clone().requires_grad_() for x in (q, k, v, *case.parameters)]
    given = case.make(*tensors[3:])
    visible = mask.dense(queries, keys)
    outputs = dense_scored(given, tensors[0], tensors[1], tensors[2], visible, scale)
    grad, grad_lse = (torch.randn(x.shape, generator=torch.Generator().manual_seed(1)) for x in outputs)
    grad = grad.to(dtype)
    pairs = zip(outputs, (grad.double(), grad_lse.double()), strict=True)
    terms = [(x * y).masked_fill(x == -torch.inf, 0).sum() for x, y in pairs]
    expected = torch.autograd.grad(terms[0] + terms[1], tensors)

    seen = visible.expand(2, 2, -1, -1)
    unseen = ~seen.flatten(0, 2).any(dim=0)
    k[:, :, unseen], v[:, :, unseen] = torch.nan, torch.inf
    if given.sink is None:
        grad[~seen.any(dim=-1)] = torch.nan
    plan = given.score.plan
    captured = [table.data.detach() for table in plan.captured]
    inputs = GradientInputs(
        grad_out=grad,
        grad_lse=None if given.pointwise else grad_lse,
        query=q,
        key=k,
        value=v,
        out=outputs[0].detach().to(dtype),
        lse=outputs[1].detach().float(),
        descriptor=cm.compile(mask).descriptor(queries, keys, gradient=True),
        scale=scale,
        scoring=Scoring(plan.text, captured, plan.numbers),
        wanted=[table.data.requires_grad for table in plan.captured],
    )
    *found, tables = attention_backward_cuda.attention_backward_cuda(inputs)
    for letter, gradient, reference in zip("qkv", found, expected, strict=False):
        assert_close(gradient, reference, TOLERANCE[dtype], f"gradient of {letter}")
        assert not gradient[reference == 0].any(), f"gradient of {letter} is not exactly 0"
    views = [table.data for table in plan.captured if table.data.requires_grad]
    of_parameters = torch.autograd.grad(views, tensors[3:], tables) if views else ()
    for number, (gradient, reference) in enumerate(zip(of_parameters, expected[3:], strict=True)):
        assert_close(gradient, reference, TOLERANCE[dtype], f"gradient of parameter {number}")


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("name", NAMES)
def test_equal_to_autograd(name: str) -> None:
    check(learned(2, 2)[name], MASKS["scattered"](40, 70), 40, 70)


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("name", ["softcap of alibi, and a sink", "relative bias", "silu over lengths"])
def test_full_tiles_and_ragged_ends(name: str) -> None:
    check(learned(2, 2)[name], cm.full(), 50, 128)
    check(learned(2, 2)[name], cm.full(), 128, 50, scale=-0.2)


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("name", ["softcap of alibi, and a sink", "relative bias per batch", "silu over lengths"])
def test_half_precision(name: str) -> None:
    check(learned(2, 2)[name], cm.causal(), 70, 70, dtype=torch.float16)


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("name", ["softcap", "silu over a length"])
def test_modifications_without_tables(name: str) -> None:
    case = cases(2, 2)[name]
    check(Learned((), lambda: case), MASKS["hstu"](40, 40), 40, 40)


@pytest.mark.usefixtures("on_numpy")
def test_sums_by_atomics_are_refused_where_runs_must_be_equal() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        check(learned(2, 2)["alibi"], cm.causal(), 40, 40)
        with pytest.raises(GradientError, match=r"@relativebias_gradient sums .* by atomics"):
            check(learned(2, 2)["relative bias"], cm.causal(), 40, 40)
        torch.use_deterministic_algorithms(True, warn_only=True)
        with pytest.warns(RuntimeWarning, match="by atomics"):
            check(learned(2, 2)["relative bias"], cm.causal(), 40, 40)
    finally:
        torch.use_deterministic_algorithms(False)
