"""Calls past the dispatcher, and launches through the driver, on the GPU: streams, threads, graphs and faults."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, random_inputs
from sample_masks import MASKS

import compilemask
from compilemask.errors import DeviceError
from compilemask.runtime import compile, operator
from compilemask.runtime.direct import is_direct


def inputs(length: int, dim: int = 128, seed: int = 0) -> tuple[torch.Tensor, ...]:
    return random_inputs(2, 4, 2, length, length, dim, torch.bfloat16, "cuda", seed)


@pytest.mark.parametrize("dim", [64, 96, 128])
@pytest.mark.parametrize("name", MASKS)
def test_the_same_as_through_the_operator(name: str, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = inputs(500, dim)
    mask = MASKS[name](500, 500)
    assert is_direct(q, k, v)
    with torch.no_grad():
        direct = operator.attention(q, k, v, mask, return_lse=True)
        monkeypatch.setattr(operator, "is_direct", lambda *_: False)
        through = operator.attention(q, k, v, mask, return_lse=True)
    assert all(torch.equal(a, b) for a, b in zip(direct, through, strict=True))
    assert_close(direct[0], dense_attention(q, k, v, mask.dense(500, 500).cuda())[0], TOLERANCE[q.dtype], "out")


def test_new_addresses_and_lengths() -> None:
    """Tensor maps and sizes are remembered: what moves or changes must be seen."""
    mask = compilemask.causal()
    kept = []
    for seed in range(40):
        q, k, v = inputs(200 + 8 * (seed % 5), seed=seed)
        kept.append((q, k, v, operator.attention(q, k, v, mask)))
    for q, k, v, out in kept:
        expected, _ = dense_attention(q, k, v, mask.dense(q.shape[2], q.shape[2]).cuda())
        assert_close(out, expected, TOLERANCE[q.dtype], "out")


def test_threads_that_never_used_cuda() -> None:
    mask = compile(MASKS["shared prompt"](500, 500))
    q, k, v = inputs(500)
    expected = operator.attention(q, k, v, mask)
    torch.cuda.synchronize()
    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            out = pool.submit(operator.attention, q, k, v, mask).result()
        assert torch.equal(out, expected)


def test_constant_masks_in_a_graph() -> None:
    mask = compilemask.hstu(400, 30)
    q, k, v = inputs(500)
    expected = operator.attention(q, k, v, mask)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = operator.attention(q, k, v, mask)
    out.fill_(torch.nan)
    graph.replay()
    assert torch.equal(out, expected)


def test_faults_of_a_launch_are_raised() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    kernels = compile(compilemask.causal()).program.loaded(device)
    arguments: list[int] = [0] * (len(kernels["count"].binary.offsets) - len(kernels["count"].binary.scratch))
    with pytest.raises(DeviceError, match="fails to launch causal_count: CUDA_ERROR_INVALID_VALUE"):
        kernels["count"]((1, 2**20, 1), 0, arguments)


def test_builds_see_new_offsets_and_other_tables() -> None:
    """Arguments of a build are kept by addresses and sizes: what is written to a table must be seen, and others too."""
    q, k, v = inputs(500)
    tables = [torch.tensor(ends, dtype=torch.int32, device="cuda") for ends in ([0, 100, 300, 500], [0, 20, 500])]
    masks = [compilemask.shared_prompt(table) for table in tables]
    for ends in ([0, 100, 300, 500], [0, 7, 250, 500]):
        tables[0].copy_(torch.tensor(ends))
        for mask in masks:
            expected, _ = dense_attention(q, k, v, mask.dense(500, 500).cuda())
            assert_close(operator.attention(q, k, v, mask), expected, TOLERANCE[q.dtype], "out")


def test_results_are_contiguous_and_of_their_mode() -> None:
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs(300))
    out, lse = operator.attention(q, k, v, compilemask.causal(), return_lse=True)
    assert out.is_contiguous()
    assert lse.is_contiguous()
    assert (out.shape, lse.shape, lse.dtype) == (q.shape, q.shape[:3], torch.float32)
    with torch.inference_mode():
        assert operator.attention(q, k, v, compilemask.causal()).is_inference()
