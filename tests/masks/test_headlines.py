"""The four headline masks at their usual sizes: visible pairs in closed form, counted in chunks of rows."""

from __future__ import annotations

import random

import pytest

import compilemask as cm
from compilemask.dialects.mask import FuncOp
from compilemask.dialects.semantics.mask import visible


def count(mask: cm.Mask, length: int, rows: int = 512) -> int:
    """Visible pairs of a square mask."""
    func = mask.module().body.block.first_op
    assert isinstance(func, FuncOp)
    arguments = mask.arguments()
    parts = (slice(begin, begin + rows) for begin in range(0, length, rows))
    return sum(int(visible(func, arguments, length, length, rows=part).sum()) for part in parts)


def answers(length: int) -> tuple[int, list[int]]:
    """The prompt's length and those of 8 answers that share it."""
    prompt, rng = length // 8, random.Random(0)
    weights = [0.5 + rng.random() for _ in range(8)]
    lengths = [int((length - prompt) * weight / sum(weights)) for weight in weights]
    lengths[-1] += length - prompt - sum(lengths)
    return prompt, lengths


@pytest.mark.parametrize("length", [1024, 4096])
def test_causal(length: int) -> None:
    assert count(cm.causal(), length) == length * (length + 1) // 2


@pytest.mark.parametrize("length", [1024, 4096])
def test_hstu(length: int) -> None:
    contexts, targets = 100, length // 8
    history = length - targets
    context_pairs = contexts * history
    history_pairs = (history * (history + 1) - contexts * (contexts + 1)) // 2
    assert count(cm.hstu(history, contexts), length) == context_pairs + history_pairs + targets * (history + 1)


@pytest.mark.parametrize("length", [1024, 4096])
def test_shared_prompt(length: int) -> None:
    prompt, lengths = answers(length)
    offsets = [0, prompt]
    for answer in lengths:
        offsets.append(offsets[-1] + answer)
    expected = prompt * (prompt + 1) // 2 + sum(n * (n + 1) // 2 + n * prompt for n in lengths)
    assert count(cm.shared_prompt(offsets), length) == expected


@pytest.mark.parametrize(("length", "height", "width"), [(1024, 16, 32), (4096, 56, 64)])
def test_clear(length: int, height: int, width: int) -> None:
    text, radius = 512, 16
    near = sum(
        (height - abs(dy)) * (width - abs(dx))
        for dy in range(1 - min(radius, height), min(radius, height))
        for dx in range(1 - min(radius, width), min(radius, width))
        if dy * dy + dx * dx < radius * radius
    )
    assert count(cm.clear(height, width, radius, text), length) == text * length + (length - text) * text + near
