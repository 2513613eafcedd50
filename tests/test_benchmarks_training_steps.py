"""The benchmark of training steps, piece by piece, on the CPU."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
training_steps: Any = import_module("training_steps")
answer_offsets: Any = import_module("cases").answer_offsets


def test_a_step_gives_the_gradients_of_its_lengths() -> None:
    inputs = [torch.randn(1, 2, 256, 16, requires_grad=True) for _ in "qkv"]
    grad = torch.randn(1, 2, 256, 16)
    plain, deterministic = (
        training_steps.implementation(name, inputs, grad) for name in ("compilemask", "compilemask-deterministic")
    )
    found = [step(answer_offsets(256, seed)) for seed in (0, 1) for step in (plain, deterministic)]
    assert not torch.are_deterministic_algorithms_enabled()
    for a, b in zip(found[0], found[1], strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    assert not torch.allclose(found[0][0], found[2][0])


def test_what_is_compiled_after_the_first_step_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    monkeypatch.setattr(triton, "compile", lambda *_: None)
    seen: list[list[int]] = []

    def stable(offsets: list[int]) -> None:
        seen.append(offsets)

    def unstable(offsets: list[int]) -> None:
        triton.compile("kernel")

    lengths = [answer_offsets(512, seed) for seed in range(4)]
    measured = training_steps.measure({"a": stable, "b": unstable}, lengths, lambda: None)
    assert seen == lengths
    assert {name: (len(times), compiled) for name, (times, compiled) in measured.items()} == {"a": (3, 0), "b": (3, 3)}
    first, second = training_steps.records(measured, (1, 2, 512, 16), "float32")
    assert (first["impl"], first["S"], first["pass"], first["steps"], first["recompiles"]) == (
        "a",
        512,
        "training",
        3,
        0,
    )
    assert second["recompiles"] == 3
    assert float(str(first["ms_min"])) <= float(str(first["ms_median"])) <= float(str(first["ms_max"]))
