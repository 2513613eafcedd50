"""The benchmark of decoding, piece by piece, on the CPU."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from compare import assert_close, dense_attention, random_inputs

import compilemask as cm
from compilemask.runtime.gpu import attention_split_cuda
from compilemask.runtime.gpu.compile_kernel import Options
from compilemask.runtime.gpu.split_keys import Split, split_of

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
decode: Any = import_module("decode")


@pytest.mark.parametrize("name", ["causal-q1-g4", "causal-q4-g1", "cached-q4-g4", "window-q16-g4"])
def test_a_case_is_one_mask(name: str) -> None:
    """As a mask, as a predicate, and as PyTorch's own attention takes it."""
    keys, shape = 4096, decode.Shape.of(name)
    case = decode.decoding_case(name, keys, "cpu")
    zero = torch.zeros((), dtype=torch.int64)
    visible = case.predicate(zero, zero, torch.arange(shape.rows)[:, None], torch.arange(keys)[None])
    assert torch.equal(case.mask.dense(shape.rows, keys)[0, 0], visible)
    assert case.visible_pairs == int(visible.sum())
    q, k, v = random_inputs(1, 4, 4 // shape.group, shape.rows, keys, 16)
    expected, _ = dense_attention(q, k, v, visible[None, None])
    assert_close(decode.sdpa(case, q, k, v).forward(), expected, 1e-5)
    assert_close(cm.attention(q, k, v, case.mask), expected, 1e-5)


def test_names_say_how_keys_are_split() -> None:
    expected = {"compilemask": Split(16, 8), "sdpa": Split(16, 8), "compilemask-unsplit": None}
    for name, split in (expected | {"compilemask-split7": Split(7, 8)}).items():
        found = decode._within(name, lambda: split_of(1, 16, 2, 4, 4096, 132))
        assert found() == split, name


def test_names_say_how_the_kernel_is_scheduled() -> None:
    def scheduled() -> tuple[bool, Options]:
        kernel = attention_split_cuda.split_kernel(64, torch.float16, "cuda:90", 8)
        return "tensor<32x64x!tt.ptr<f16>>" in kernel.text, kernel.options

    usual = scheduled()
    assert decode._within("compilemask-split3-32x2x5", scheduled)() == (True, Options(2, 5))
    assert scheduled() == usual != (True, Options(2, 5))
