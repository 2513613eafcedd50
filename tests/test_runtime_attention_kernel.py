"""The attention kernel as the runtime launches it, executed in numpy on a CPU descriptor, against the dense oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from compare import assert_close, dense_attention, random_inputs
from sample_masks import MASKS
from xdsl.dialects.builtin import f32

import compilemask
from compilemask.dialects.semantics.triton import run_kernel
from compilemask.lowering.tiling_to_tt.attention import AttentionConfig, attention_module, attention_op, emit
from compilemask.runtime import Descriptor, compile
from compilemask.runtime.gpu.attention_cuda import attention_kernel, kernel_arguments

WORD = 4


def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, descriptor: Descriptor, scale: float) -> list[torch.Tensor]:
    """out and lse of float32 inputs, from the runtime's own arguments; outputs start as NaN."""
    out, lse = torch.full_like(q, torch.nan), torch.full(q.shape[:3], torch.nan)
    config = AttentionConfig(block_q=64, block_kv=64)
    kernel = emit(attention_op(attention_module(q.shape[-1], f32)), config)
    tensors = [q, k, v, out, lse]
    memory: dict[int, Any] = {x.data_ptr(): x.numpy().reshape(-1) for x in tensors}
    buffer, layout = descriptor.buffer.numpy(), descriptor.layout
    for section in (layout.order, layout.visits, layout.patterns, layout.columns):
        memory[descriptor.buffer.data_ptr() + WORD * section] = buffer[section:]
    arguments = kernel_arguments(q, k, v, out, lse, descriptor)
    pointers, numbers = arguments[:9], arguments[9:]
    grid = (layout.query_tiles * config.programs_per_tile, q.shape[1], q.shape[0])
    run_kernel(kernel, grid, [*(memory[p] for p in pointers), *numbers, np.float32(scale)])
    return [out, lse]


@pytest.mark.parametrize("name", MASKS)
def test_equal_to_the_oracle(name: str) -> None:
    queries, keys = (137, 200)
    mask = MASKS[name](queries, keys)
    q, k, v = random_inputs(2, 4, 2, queries, keys, 16)
    out, lse = run(q, k, v, compile(mask).descriptor(queries, keys), 0.25)
    expected, expected_lse = dense_attention(q, k, v, mask.dense(queries, keys))
    assert_close(out, expected, 2e-5, "out")
    assert_close(lse, expected_lse, 1e-5, "lse")


STORED = {"documents": compilemask.document([0, 137]), "padding": compilemask.padding(137)}
SHARED = {"causal": compilemask.causal(), "window": compilemask.window(5)}


@pytest.mark.parametrize("name", [*STORED, *SHARED])
def test_keys_that_no_row_sees_are_not_read(name: str) -> None:
    mask = (STORED | SHARED)[name]
    q, k, v = random_inputs(1, 1, 1, 137, 300, 16)
    dense = mask.dense(137, 300)
    unseen = ~dense[0, 0].any(dim=0)
    k[:, :, unseen], v[:, :, unseen] = torch.nan, torch.nan
    out, lse = run(q, k, v, compile(mask).descriptor(137, 300), 0.25)
    k, v = k.nan_to_num(), v.nan_to_num()
    expected, expected_lse = dense_attention(q, k, v, dense)
    assert_close(out, expected, 2e-5, "out")
    assert_close(lse, expected_lse, 1e-5, "lse")


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "cuda:100", "cuda:120", "hip:gfx942"])
def test_a_kernel_is_emitted_once(target: str) -> None:
    kernel = attention_kernel(64, torch.float16, target)
    assert "tt.func" in kernel.text
    assert attention_kernel(64, torch.float16, target) is kernel
    assert attention_kernel(64, torch.float16, target, aligned=False).text != kernel.text
