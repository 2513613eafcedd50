"""Attention along descriptors whose tiles of an image are patches, and its gradients, against the dense oracle."""

from __future__ import annotations

import pytest
import torch
from compare import assert_close, dense_attention, random_inputs
from test_interval_patch import CASES, LOW_CASES

import compilemask as cm
from compilemask.errors import DescriptorError

ALL_CASES = {**CASES, **LOW_CASES}
ONE_SHAPE = [name for name, case in ALL_CASES.items() if case.queries == case.keys]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ONE_SHAPE)
def test_forward_and_gradients(name: str, dtype: torch.dtype) -> None:
    case = ALL_CASES[name]
    length = case.patches.length
    descriptor = cm.compile(case.mask).descriptor(length, length, patches=case.patches, gradient=True)
    q, k, v = inputs = [x.requires_grad_() for x in random_inputs(2, 4, 2, length, length, 16, dtype)]
    out, lse = cm.attention(q, k, v, descriptor, return_lse=True)
    expected, expected_lse = dense_attention(q, k, v, case.mask.dense(length, length))
    assert_close(out, expected, 1e-5)
    assert_close(lse, expected_lse, 1e-5)
    weight = torch.randn_like(out)
    found = torch.autograd.grad((out * weight).sum(), inputs)
    reference = torch.autograd.grad((expected * weight).sum(), inputs)
    for gradient, other in zip(found, reference, strict=True):
        assert_close(gradient, other, 2e-5)


@pytest.mark.parametrize("name", [name for name in ALL_CASES if name not in ONE_SHAPE])
def test_patches_of_other_shapes(name: str) -> None:
    case = ALL_CASES[name]
    length = case.patches.length
    q, k, v = random_inputs(1, 2, 1, length, length, 32)
    out = cm.attention(q, k, v, cm.compile(case.mask).descriptor(length, length, patches=case.patches))
    assert_close(out, dense_attention(q, k, v, case.mask.dense(length, length))[0], 1e-5)


def test_modified_scores_are_refused() -> None:
    """They depend on positions, which the kernels count in another order."""
    case = CASES["clear"]
    length = case.patches.length
    q, k, v = random_inputs(1, 2, 1, length, length, 32)
    descriptor = cm.compile(case.mask).descriptor(length, length, patches=case.patches)
    with pytest.raises(DescriptorError, match="patches"):
        cm.attention(q, k, v, descriptor, score=cm.score.softcap(20.0))
