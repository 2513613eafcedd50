"""When keys are split among programs, and what the runtime gives the kernels: executed in numpy, against the oracle."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from compare import assert_close, dense_attention, random_inputs
from sample_masks import MASKS

import compilemask as cm
from compilemask.dialects.semantics.triton import run_kernel
from compilemask.dialects.triton import tt
from compilemask.dialects.triton.types import PointerType
from compilemask.language.text import parse_module
from compilemask.lowering.patch_grid import Patches
from compilemask.lowering.tiling_to_tt.attention_split_frame import MOST_SPLITS
from compilemask.runtime.gpu import attention_split_cuda, hopper, split_keys
from compilemask.runtime.gpu.attention_split_cuda import split_for, split_kernel
from compilemask.runtime.gpu.split_keys import Split, best_splits, split_of
from compilemask.runtime.scoring import UNMODIFIED, Scoring

PROCESSORS = 132
WORD = 4


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((1, 8, 8, 1, 32768), Split(32, 1)),
        ((1, 32, 8, 1, 32768), Split(32, 4)),
        ((1, 8, 1, 1, 1 << 20), Split(251, 8)),
        ((1, 1, 1, 16, 100_000), Split(251, 1)),
        ((1, 8, 8, 1, 4096), Split(16, 1)),
        ((1, 8, 8, 128, 32768), Split(16, 1)),
        ((2, 16, 16, 4, 65536), Split(8, 1)),
        ((1, 8, 8, 1, 4095), None),
        ((1, 8, 8, 129, 32768), None),
        ((4, 32, 32, 1, 32768), None),
        ((16, 64, 8, 1, 32768), Split(2, 8)),
        ((256, 64, 8, 1, 32768), Split(1, 8)),
        ((16, 16, 8, 1, 32768), None),
        ((1, 0, 0, 1, 32768), None),
        ((0, 8, 8, 1, 32768), None),
        ((1, 8, 8, 0, 32768), None),
    ],
)
def test_sizes_decide(sizes: tuple[int, int, int, int, int], expected: Split | None) -> None:
    """Batch, heads, key heads, queries and keys; on a GPU with 132 processors."""
    assert split_of(*sizes, PROCESSORS) == expected


def test_heads_that_differ_are_computed_apart() -> None:
    assert split_of(1, 32, 8, 1, 32768, PROCESSORS, heads_differ=True) == Split(8, 1)
    assert split_of(4, 32, 8, 1, 32768, PROCESSORS, heads_differ=True) is None


def test_splits_fill_rounds_of_programs() -> None:
    for programs, at_once, most in product((1, 7, 8, 64, 100, 132, 150, 264, 300, 1000), (216, 264), (1, 2, 8, 100)):
        splits = best_splits(programs, at_once, most)
        assert 1 <= splits <= most
        if programs * most >= at_once and programs <= at_once:
            rounds = programs * splits / at_once
            assert rounds / -(-rounds // 1) > 0.5
    assert best_splits(1, 10_000, 10_000) <= MOST_SPLITS


def test_the_decision_can_be_overridden() -> None:
    sizes = (1, 8, 2, 1, 300)
    assert split_of(*sizes, PROCESSORS) is None
    with split_keys.forced(3):
        assert split_of(*sizes, PROCESSORS) == Split(3, 4)
        assert split_of(*sizes, PROCESSORS, heads_differ=True) == Split(3, 1)
        with split_keys.forced(0):
            assert split_of(1, 8, 8, 1, 32768, PROCESSORS) is None
        assert split_of(*sizes, PROCESSORS) == Split(3, 4)
    assert split_of(*sizes, PROCESSORS) is None
    for splits in (-1, MOST_SPLITS + 1):
        with pytest.raises(ValueError, match="splits; expected"), split_keys.forced(splits):
            pass


def test_what_a_split_kernel_does_not_take() -> None:
    q, k, _ = random_inputs(1, 8, 2, 1, 5000, 16)
    full = cm.compile(cm.full()).descriptor(1, 5000)
    assert split_for(q, k, full.layout, UNMODIFIED, PROCESSORS) == Split(19, 4)
    assert split_for(q, k, full.layout, _scoring(cm.score.softcap(2.0)), PROCESSORS) == Split(19, 1)
    assert split_for(q, k, full.layout, _scoring(cm.score.silu()), PROCESSORS) is None
    padding = cm.compile(cm.padding(torch.full((1, 8), 3000, dtype=torch.int32))).descriptor(1, 5000)
    assert split_for(q, k, padding.layout, UNMODIFIED, PROCESSORS) == Split(19, 1)
    low = cm.compile(cm.full()).descriptor(1, 5000, rows=64)
    assert split_for(q, k, low.layout, UNMODIFIED, PROCESSORS) is None
    patches = Patches(0, (16, 16), 256, (8, 16), (8, 16))
    image = cm.compile(cm.clear(16, 16, 3, 0)).descriptor(256, 256, patches=patches)
    x, _, _ = random_inputs(1, 1, 1, 256, 256, 16)
    with split_keys.forced(2):
        assert split_for(x, x, image.layout, UNMODIFIED, PROCESSORS) is None


def _scoring(score: cm.Score) -> Scoring:
    return Scoring(score.plan.text, [table.data for table in score.plan.captured], score.plan.numbers)


def test_the_split_kernel_is_asked_for_tiles_of_128_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the Hopper kernel alone would ask for lower ones."""
    monkeypatch.setattr(hopper, "_processors", lambda _: PROCESSORS)
    monkeypatch.setattr(hopper, "_best_rows", lambda _: 64)
    q, k, v = (x.bfloat16() for x in random_inputs(1, 2, 2, 1, 5000, 64))
    assert hopper.best_rows(q, k, v) is None
    with split_keys.forced(0):
        assert hopper.best_rows(q, k, v) == 64
    assert hopper.best_rows(q, k[:, :, :4000], v[:, :, :4000]) == 64


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("queries", [3, 137])
def test_equal_to_the_oracle(name: str, queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, head_dim = 400, 16
    mask = MASKS[name](queries, keys)
    q, k, v = random_inputs(2, 4, 2, queries, keys, head_dim)
    descriptor = cm.compile(mask).descriptor(queries, keys)
    monkeypatch.setattr(hopper, "_processors", lambda _: PROCESSORS)
    machine = _Machine([q, k, v, descriptor.buffer])
    machine.replace(monkeypatch)
    with split_keys.forced(3):
        out, lse = hopper.attention_gpu(q, k, v, descriptor, 0.25)
    assert machine.launched == ["attention_split", "attention_combine"]
    expected, expected_lse = dense_attention(q, k, v, mask.dense(queries, keys))
    assert_close(out, expected, 2e-5, "out")
    assert_close(lse, expected_lse, 1e-5, "lse")


class _Machine:
    """Launches kernels in numpy; memory that is allocated is full of NaN."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        self.launched: list[str] = []

    def replace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = attention_split_cuda
        monkeypatch.setattr(module, "target_of", lambda _: "cuda:90")
        monkeypatch.setattr(module, "empty", self.empty)
        monkeypatch.setattr(module, "kernels_for", lambda sources, _: [source.text() for source in sources])
        monkeypatch.setattr(module, "launch", self.launch)

    def empty(self, shape: Any, stride: Any, dtype: torch.dtype, _: torch.device) -> torch.Tensor:
        self.tensors.append(torch.full(tuple(shape), torch.nan, dtype=dtype))
        assert self.tensors[-1].stride() == tuple(stride)
        return self.tensors[-1]

    def launch(self, text: str, grid: tuple[int, int, int], _: torch.device, arguments: list[Any]) -> None:
        kernel = parse_module(text)
        function = kernel.body.block.first_op
        assert isinstance(function, tt.FuncOp)
        self.launched.append(function.sym_name.data)
        types = function.function_type.inputs
        pointers = [x for x, kind in zip(arguments, types, strict=True) if isinstance(kind, PointerType)]
        run_kernel(kernel, grid, [*(self.memory(x, pointers) for x in pointers), *arguments[len(pointers) :]])

    def memory(self, address: int, pointers: list[int]) -> np.ndarray:
        """What lies at an address, up to where another pointer points."""
        for x in self.tensors:
            words, end = x.numpy().reshape(-1), x.data_ptr() + WORD * x.numel()
            if x.data_ptr() <= address < end:
                end = min(other for other in (*pointers, end) if other > address)
                return words[(address - x.data_ptr()) // WORD :][: (end - address) // WORD]
        raise AssertionError(f"{address} is in no tensor")


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "cuda:100", "cuda:120", "hip:gfx942"])
def test_a_kernel_is_emitted_once(target: str) -> None:
    kernel = split_kernel(64, torch.float16, target, 8)
    assert "tt.func" in kernel.text
    assert split_kernel(64, torch.float16, target, 8) is kernel
    assert split_kernel(64, torch.float16, target, 8, aligned=False).text != kernel.text
    blocks = {rows: split_kernel(64, torch.float16, target, rows).block_q for rows in (1, 16, 17, 64, 128)}
    assert blocks == {1: 16, 16: 16, 17: 32, 64: 64, 128: 64}
