"""The backward kernels, executed in numpy over descriptors built on the CPU, against the oracle's gradients."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from compare import assert_close, dense_attention, dense_gradients, random_inputs
from sample_masks import MASKS
from test_attention_kernel import ELEMENT, memory
from xdsl.dialects.builtin import ModuleOp, bf16, f16, f32

import compilemask as cm
from compilemask.dialects.semantics.triton import MemoryFault, run_kernel
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt import (
    attention_backward_frame,
    attention_backward_keys,
    attention_backward_queries,
    attention_backward_rows,
)
from compilemask.lowering.tiling_to_tt.attention_backward_config import BackwardConfig
from compilemask.runtime.descriptor import Descriptor

TOLERANCE = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 8e-3}
WIDE = BackwardConfig(128, 128)


class Problem:
    """Inputs, the forward results, and gradients of the outputs; `mask` decides what is visible."""

    def __init__(
        self,
        mask: cm.Mask,
        queries: int,
        keys: int,
        heads: tuple[int, int] = (1, 1),
        batch: int = 1,
        head_dim: int = 16,
        dtype: torch.dtype = torch.float32,
        scale: float | None = None,
    ) -> None:
        self.scale = 1 / math.sqrt(head_dim) if scale is None else scale
        self.q, self.k, self.v = random_inputs(batch, *heads, queries, keys, head_dim, dtype)
        self.visible = mask.dense(queries, keys)
        self.descriptor = cm.compile(mask).descriptor(queries, keys, gradient=True).check()
        out, lse = dense_attention(self.q, self.k, self.v, self.visible, self.scale)
        self.out, self.lse = out.to(dtype), lse.float()
        self.grad, _, _ = random_inputs(batch, heads[0], 1, queries, 1, head_dim, dtype, seed=1)
        self.grad_lse = torch.randn(self.lse.shape, generator=torch.Generator().manual_seed(2))

    def poison(self) -> None:
        """Put NaN where nothing may be noticed: into keys that nobody sees, rows that see nothing, their gradients."""
        seen = self.visible.expand(self.q.shape[0], self.q.shape[1], -1, -1)
        unseen = ~seen.flatten(0, 2).any(dim=0)
        self.k[:, :, unseen], self.v[:, :, unseen] = torch.nan, torch.inf
        self.q[~seen.any(dim=-1)] = self.grad[~seen.any(dim=-1)] = torch.nan

    def own_descriptors(self) -> Descriptor:
        """The transposed descriptor; both are copies from now on, since others share what they were."""
        self.descriptor = self.descriptor.clone()
        assert self.descriptor.transposed is not None
        return self.descriptor.transposed

    def expected(self) -> tuple[torch.Tensor, ...]:
        """The oracle's gradients."""
        q, k, v, grad = (x.nan_to_num(0, 0, 0) for x in (self.q, self.k, self.v, self.grad))
        return dense_gradients(q, k, v, self.visible, grad, self.grad_lse, self.scale)


def backward(problem: Problem, keys: BackwardConfig, queries: BackwardConfig, **changed: int) -> list[torch.Tensor]:
    """Gradients of q, k and v by the kernels, in memory that was full of NaN; `changed` replaces arguments by name."""
    element, dim = ELEMENT[problem.q.dtype], problem.q.shape[3]
    shift, delta = rows_of(problem, queries.aligned)
    results: list[torch.Tensor] = []
    assert problem.descriptor.transposed is not None
    for emit, config, descriptor, outputs, module in (
        (attention_backward_queries.emit_queries, queries, problem.descriptor, [problem.q], attention_backward_queries),
        (
            attention_backward_keys.emit_keys,
            keys,
            problem.descriptor.transposed,
            [problem.k, problem.v],
            attention_backward_keys,
        ),
    ):
        gradients = [x.new_full(x.shape, torch.nan) for x in outputs]
        kernel = emit(dim, element, config)
        inputs = (problem.q, problem.k, problem.v, problem.grad)
        values = arguments(inputs, gradients, shift, delta, descriptor, problem.scale)
        names = [a.name for a in attention_backward_frame.kernel_arguments(module.OUTPUTS, f32, config.aligned)]
        given = dict(zip(names, values, strict=True)) | {n: v for n, v in changed.items() if n in names}
        heads = outputs[0].shape[1]
        grid = (descriptor.layout.query_tiles * config.programs_per_tile, heads, problem.q.shape[0])
        run_kernel(kernel, grid, given, seed=0)
        results += [
            torch.from_numpy(given[name]).view(x.dtype).view(x.shape)
            for name, x in zip(module.OUTPUTS, gradients, strict=True)
        ]
    return results


def rows_of(problem: Problem, aligned: bool, with_grad_lse: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """`shift` and `delta`."""
    kernel = attention_backward_rows.emit_rows(
        problem.q.shape[3], ELEMENT[problem.q.dtype], aligned=aligned, with_grad_lse=with_grad_lse
    )
    batch, heads, queries = problem.lse.shape
    shift, delta = (np.full(problem.lse.numel(), np.nan, np.float32) for _ in range(2))
    numbers = [problem.lse.numpy().ravel(), *([problem.grad_lse.numpy().ravel()] if with_grad_lse else [])]
    strides = [stride for x in (problem.out, problem.grad) for stride in x.stride()[:3]]
    values = [memory(problem.out), memory(problem.grad), *numbers, shift, delta, *strides, heads, queries, queries]
    run_kernel(kernel, (-(-queries // attention_backward_rows.ROWS), heads, batch), values, seed=0)
    return shift, delta


def arguments(
    inputs: tuple[torch.Tensor, ...],
    gradients: list[torch.Tensor],
    shift: np.ndarray,
    delta: np.ndarray,
    descriptor: Descriptor,
    scale: float,
) -> list[Any]:
    """What a kernel takes, in order."""
    q, k, layout, tensors = inputs[0], inputs[1], descriptor.layout, [*inputs, *gradients]
    sections = (descriptor.tiles, descriptor.order, descriptor.visits, descriptor.patterns, descriptor.columns)
    return [
        *(memory(x) for x in tensors),
        *(shift, delta),
        *(section.contiguous().numpy().reshape(-1) for section in sections),
        *(stride for x in tensors for stride in x.stride()[:3]),
        *(q.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2], q.shape[2], layout.query_tiles),
        *(layout.heads if layout.batch > 1 else 0, 1 if layout.heads > 1 else 0),
        scale,
    ]


def check(problem: Problem, keys: BackwardConfig = WIDE, queries: BackwardConfig = WIDE) -> None:
    """Gradients against the oracle's, exactly 0 where those are."""
    problem.poison()
    if problem.q.shape[3] % 8:
        keys, queries = replace(keys, aligned=False), replace(queries, aligned=False)
    found = backward(problem, keys, queries)
    for name, gradient, expected in zip("qkv", found, problem.expected(), strict=True):
        assert_close(gradient, expected, TOLERANCE[problem.q.dtype], f"gradient of {name}")
        assert not gradient[expected == 0].any(), f"gradient of {name} is not exactly 0"


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    per_head = name.endswith("per head")
    batch = 2 if name.endswith("per batch") else 1
    check(Problem(MASKS[name](300, 300), 300, 300, (4, 2) if per_head else (2, 1), batch))


@pytest.mark.parametrize("rows", [32, 64, 128])
@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_blocks(rows: int, width: int) -> None:
    config = BackwardConfig(rows, width)
    check(Problem(cm.causal() & cm.window(150), 200, 200), config, config)
    check(Problem(cm.full(), 260, 270), config, config)


@pytest.mark.parametrize("name", ["causal", "window", "clear", "scattered"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (17, 300), (300, 17), (129, 255), (200, 300)])
def test_lengths(name: str, queries: int, keys: int) -> None:
    check(Problem(MASKS[name](queries, keys), queries, keys))


def test_rows_that_see_nothing_and_keys_that_nobody_sees() -> None:
    check(Problem(cm.where(lambda q, kv: (q % 3 == 0) & (kv < 150) & (kv % 5 > 1)), 200, 200))
    check(Problem(cm.causal(align="bottom_right"), 300, 140))
    check(Problem(cm.padding(torch.zeros(1, dtype=torch.int32)), 140, 140))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("head_dim", [1, 24, 64])
def test_types_and_head_dims(dtype: torch.dtype, head_dim: int) -> None:
    check(Problem(cm.causal(), 200, 200, head_dim=head_dim, dtype=dtype))


@pytest.mark.parametrize("heads", [(9, 3), (4, 1), (3, 3)])
def test_grouped_heads_and_batches(heads: tuple[int, int]) -> None:
    check(Problem(cm.causal(), 150, 150, heads, 2))
    check(Problem(MASKS["hstu per batch"](200, 200), 200, 200, heads, 2))


@pytest.mark.parametrize("scale", [0.0, -0.3, 3.0])
def test_scales(scale: float) -> None:
    check(Problem(cm.causal(), 200, 200, scale=scale))


def test_without_a_gradient_of_lse() -> None:
    problem = Problem(cm.causal(), 100, 100)
    _, delta = rows_of(problem, True, with_grad_lse=False)
    assert_close(torch.from_numpy(delta), (problem.out * problem.grad).sum(-1).ravel(), 1e-6)


def test_a_tile_that_found_no_room_is_nan() -> None:
    problem = Problem(cm.causal(), 300, 300)
    expected = problem.expected()
    transposed = problem.own_descriptors()
    for descriptor, tile in ((problem.descriptor, 0), (transposed, 2)):
        descriptor.tiles[0, 0, tile, 1] = -1
    found = backward(problem, WIDE, WIDE)
    for gradient, reference, gap in zip(found, expected, ((0, 128), (256, 300), (256, 300)), strict=True):
        missing = torch.zeros(300, dtype=torch.bool)
        missing[slice(*gap)] = True
        assert gradient[0, 0, missing].isnan().all()
        assert_close(gradient[0, 0, ~missing], reference[0, 0, ~missing], 2e-5)


def test_strides_are_those_of_the_arguments() -> None:
    problem = Problem(cm.causal(), 140, 140, (4, 2), 2)
    expected = backward(problem, WIDE, WIDE)
    for name in ("q", "k", "v", "grad", "out"):
        setattr(problem, name, getattr(problem, name).transpose(1, 2).contiguous().transpose(1, 2))
    assert all(torch.equal(a, b) for a, b in zip(backward(problem, WIDE, WIDE), expected, strict=True))


@pytest.mark.parametrize("name", ["q_b", "k_h", "v_b", "grad_h", "grad_q_b", "grad_k_h", "grad_v_b"])
def test_offsets_of_heads_and_batches_are_64_bit(name: str) -> None:
    """A stride of 2**32 elements leads out of memory; with 32 bits it would be 0."""
    with pytest.raises(MemoryFault):
        backward(Problem(cm.causal(), 5, 5, (2, 2), 2), WIDE, WIDE, **{name: 2**32})


def kernels(head_dim: int, config: BackwardConfig) -> list[ModuleOp]:
    return [
        attention_backward_keys.emit_keys(head_dim, bf16, config),
        attention_backward_queries.emit_queries(head_dim, bf16, config),
    ]


def test_configurations() -> None:
    for target in ("cuda:80", "cuda:86", "cuda:89", "cuda:90", "cuda:100", "cuda:103", "cuda:120", "hip:gfx942"):
        for element in (f16, bf16, f32):
            for head_dim in (1, 64, 65, 128, 129, 256):
                for side in ("keys", "queries"):
                    config = BackwardConfig.choose(side, head_dim, element, target)
                    assert config.programs_per_tile * config.rows == 128
    for head_dim, target in ((0, "cuda:90"), (257, "cuda:90"), (64, "cuda:70"), (64, "sm_90")):
        with pytest.raises(LoweringError):
            BackwardConfig.choose("keys", head_dim, f16, target)
    for sizes in ((96, 64, 4, 2), (64, 256, 4, 2), (8, 64, 4, 2), (64, 64, 3, 2), (64, 64, 4, 0)):
        with pytest.raises(LoweringError):
            BackwardConfig(*sizes)
