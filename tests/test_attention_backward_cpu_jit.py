"""The gradient of attention on the CPU by compiled functions, against autograd of the dense oracle."""

from __future__ import annotations

import pytest
import torch
from compare import assert_close, random_inputs
from sample_masks import MASKS
from test_gradients import check

import compilemask as cm
from compilemask.runtime.cpu import attention_backward_cpu, upstream_mlir
from compilemask.runtime.descriptor import Descriptor

pytestmark = pytest.mark.skipif(upstream_mlir.find() is None, reason="upstream MLIR's bindings are not installed")


@pytest.fixture(autouse=True)
def only_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared with the oracle came from the compiled functions."""

    def refuse(*_: object) -> None:
        raise AssertionError("operations of PyTorch were used")

    monkeypatch.setattr(attention_backward_cpu, "gradients_by_tiles", refuse)


def gradients(mask: cm.Mask | Descriptor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Of a function of out and lse."""
    wanted = [x.detach().requires_grad_() for x in inputs]
    out, lse = cm.attention(*wanted, mask=mask, return_lse=True)
    return torch.autograd.grad(out.square().sum() + lse.masked_fill(lse == -torch.inf, 0).sin().sum(), wanted)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (17, 300), (300, 137)])
@pytest.mark.parametrize("name", MASKS)
def test_masks_and_lengths(name: str, queries: int, keys: int) -> None:
    check(MASKS[name](queries, keys), *random_inputs(2, 4, 2, queries, keys, 20))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [1, 13, 72, 256])
def test_head_dims(dtype: torch.dtype, head_dim: int) -> None:
    check(MASKS["shared prompt"](137, 137), *random_inputs(1, 6, 2, 137, 137, head_dim, dtype))


@pytest.mark.parametrize("bits", ["AVX2", "DEFAULT"])
def test_narrower_vectors(bits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: bits)
    check(cm.window(70), *random_inputs(1, 2, 1, 300, 300, 20))


@pytest.mark.parametrize("bits", ["AVX512", "AVX2", "DEFAULT"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 300), (9, 300), (300, 1), (300, 16), (7, 12)])
def test_few_rows(queries: int, keys: int, bits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: bits)
    check(cm.causal(align="bottom_right"), *random_inputs(2, 4, 2, queries, keys, 20))


def test_long_rows() -> None:
    check(cm.causal(), *random_inputs(1, 1, 1, 1500, 1500, 24))


@pytest.mark.parametrize("scale", [0.0, -0.7, 3.0])
def test_scales(scale: float) -> None:
    check(cm.causal(), *random_inputs(1, 2, 1, 50, 60, 8), scale=scale)


def test_equal_bit_by_bit_with_any_number_of_threads() -> None:
    inputs = random_inputs(2, 4, 2, 500, 500, 32)
    before = torch.get_num_threads()
    runs = []
    try:
        for threads in (1, 2, 5, 5):
            torch.set_num_threads(threads)
            runs.append(gradients(cm.causal(), *inputs))
    finally:
        torch.set_num_threads(before)
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))


def test_heads_of_a_group_have_masks_of_their_own() -> None:
    # Longest first means another order in each head.
    counts = torch.tensor([[300, 5, 128, 0, 290, 200]], dtype=torch.int32)
    check(cm.padding(counts) & cm.causal(), *random_inputs(2, 6, 2, 300, 300, 16))


def test_exactly_zero_whatever_is_held() -> None:
    mask = cm.rows(40, 60) & cm.cols(130, 200)
    q, k, v = random_inputs(1, 2, 1, 137, 300, 16)
    seeing, seen = torch.zeros(137, dtype=torch.bool), torch.zeros(300, dtype=torch.bool)
    seeing[40:60], seen[130:200] = True, True
    k[:, :, ~seen], v[:, :, ~seen], q[:, :, ~seeing] = torch.nan, torch.inf, torch.nan
    for gradient, positions in zip(gradients(mask, q, k, v), (seeing, seen, seen), strict=True):
        assert not gradient[:, :, ~positions].any()
        assert gradient[:, :, positions].isfinite().all()
        assert gradient[:, :, positions].any()


def test_faults_of_inputs_are_seen() -> None:
    q, k, v = random_inputs(1, 1, 1, 200, 200, 16)
    v[:, :, 150, 3] = torch.nan
    of_q, of_k, _ = gradients(cm.full(), q, k, v)
    assert of_q.isnan().all()
    assert of_k.isnan().all()


def test_no_room_in_one_head_of_a_group() -> None:
    counts = torch.tensor([[300, 200]], dtype=torch.int32)
    descriptor = cm.compile(cm.padding(counts) & cm.causal()).descriptor(300, gradient=True).clone()
    assert descriptor.transposed is not None
    descriptor.transposed.tiles[0, 1, 1, 1] = -1
    _, of_k, of_v = gradients(descriptor, *random_inputs(1, 2, 1, 300, 300, 16))
    for gradient in (of_k, of_v):
        assert gradient[:, :, 128:256].isnan().all()
        assert gradient[:, :, :128].isfinite().all()
        assert gradient[:, :, 256:].isfinite().all()


def test_bfloat16_is_rounded_once() -> None:
    inputs = random_inputs(1, 2, 2, 200, 200, 32, torch.bfloat16)
    exact = gradients(cm.causal(), *(x.float() for x in inputs))
    for gradient, reference in zip(gradients(cm.causal(), *inputs), exact, strict=True):
        assert_close(gradient, reference, 8e-3)
