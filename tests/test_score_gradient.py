"""Gradients of score functions as the pass derives them, against PyTorch's of the same functions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from compare import assert_close
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import FunctionType, f32
from xdsl.ir import Block, Operation, Region, SSAValue

import compilemask as cm
from compilemask.dialects.semantics.score import Pairs, pulled_back, scored
from compilemask.dialects.tiling_score import SCORE_TYPES, ScoreOp, YieldOp
from compilemask.errors import GradientError
from compilemask.passes.score_gradient import float_tables, gradient_of
from compilemask.runtime.scoring import score_op

PAIRS = Pairs(np.zeros(1, int), np.zeros(1, int), np.arange(5)[:, None], np.arange(7))
TABLE = torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).abs() + 0.5

Mod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
MODS: dict[str, Mod] = {
    "add": lambda s, b, h, q, kv: s + TABLE[kv],
    "sub": lambda s, b, h, q, kv: TABLE[kv] - s,
    "mul": lambda s, b, h, q, kv: s * TABLE[kv] * s,
    "div": lambda s, b, h, q, kv: s / TABLE[kv] + TABLE[q] / (s + 9),
    "neg": lambda s, b, h, q, kv: -s * -TABLE[kv],
    "max": lambda s, b, h, q, kv: torch.maximum(s, TABLE[kv]),
    "min": lambda s, b, h, q, kv: torch.minimum(s, TABLE[kv]),
    "clamp": lambda s, b, h, q, kv: s.clamp(min=-0.5, max=0.5),
    "where": lambda s, b, h, q, kv: torch.where(s > TABLE[kv], s * s, 3 * TABLE[kv]),
    "exp": lambda s, b, h, q, kv: torch.exp(s * TABLE[kv]),
    "exp2": lambda s, b, h, q, kv: torch.exp2(s),
    "log": lambda s, b, h, q, kv: torch.log(s.abs() + TABLE[kv]),
    "log2": lambda s, b, h, q, kv: torch.log2(s.abs() + 1.0),
    "sqrt": lambda s, b, h, q, kv: torch.sqrt(s * s + TABLE[kv]),
    "rsqrt": lambda s, b, h, q, kv: torch.rsqrt(s * s + TABLE[kv]),
    "tanh": lambda s, b, h, q, kv: torch.tanh(s / TABLE[kv]) * TABLE[kv],
    "sin": lambda s, b, h, q, kv: torch.sin(s) * torch.cos(TABLE[kv] * s),
    "abs": lambda s, b, h, q, kv: (s - TABLE[kv]).abs(),
    "steps": lambda s, b, h, q, kv: s + torch.floor(s) * torch.ceil(TABLE[kv]),
    "distance": lambda s, b, h, q, kv: s * torch.where(q < kv, 2.0, (q - kv) * 0.5),
    "twice": lambda s, b, h, q, kv: TABLE[kv] * s + TABLE[q] * TABLE[kv],
    "no score": lambda s, b, h, q, kv: TABLE[kv] * 2.0,
}


@pytest.mark.parametrize("name", MODS)
def test_equal_to_autograd(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    scores, slopes = (torch.randn(5, 7, dtype=torch.float64, generator=generator) for _ in range(2))
    op = score_op(cm.from_score_mod(MODS[name]).plan.text)
    assert op is not None
    tables = float_tables(op)
    gradient = gradient_of(op, tables)
    gradient.verify()
    captured = [TABLE.numpy()[None, None]] * len(tables)
    sums = [np.zeros_like(table) for table in captured]
    found = pulled_back(gradient.body.block, scores.numpy(), slopes.numpy(), PAIRS, captured, sums)

    table, s = TABLE.clone().requires_grad_(), scores.clone().requires_grad_()
    place = [torch.from_numpy(np.asarray(x)) for x in (PAIRS.batch, PAIRS.head, PAIRS.query, PAIRS.key)]
    globals()["TABLE"] = table
    try:
        result = MODS[name](s, *place).expand(5, 7)
    finally:
        globals()["TABLE"] = table.detach()
    assert_close(
        torch.from_numpy(scored(op.body.block, scores.numpy(), PAIRS, captured).copy()), result, 1e-12, "score"
    )
    expected = torch.autograd.grad(result, (s, table), slopes, allow_unused=True, materialize_grads=True)
    assert_close(torch.from_numpy(np.array(found)), expected[0], 1e-6, "gradient of the score")
    assert_close(torch.from_numpy(sum(sums, np.zeros((1, 1, 7))))[0, 0], expected[1], 1e-6, "gradient of the table")


def test_pairs_that_are_not_visible_add_nothing() -> None:
    op = score_op(cm.from_score_mod(lambda s, b, h, q, kv: s * torch.log(TABLE[kv] * q)).plan.text)
    assert op is not None
    gradient = gradient_of(op, [0])
    sums = [np.zeros((1, 1, 7))]
    visible = np.broadcast_to(PAIRS.query > 0, (5, 7))
    ones = np.ones((5, 7))
    pulled_back(gradient.body.block, ones, ones * visible, PAIRS, [TABLE.numpy()[None, None]], sums, visible)
    assert_close(torch.from_numpy(sums[0][0, 0]), 4 / TABLE, 1e-12)


def function(make: Callable[[SSAValue], Operation]) -> ScoreOp:
    """A score function of one operation."""
    block = Block(arg_types=SCORE_TYPES)
    op = make(block.args[0])
    block.add_ops([op, YieldOp(op.results[0])])
    return ScoreOp("one", FunctionType.from_lists(SCORE_TYPES, [f32]), Region(block))


def test_what_has_no_derivative() -> None:
    with pytest.raises(GradientError, match=r"math.erf in @one has no derivative"):
        gradient_of(function(math.ErfOp), [])


@pytest.mark.parametrize("kind", [arith.MaxnumfOp, arith.MinnumfOp])
def test_extremes_of_equal_numbers_share_the_gradient(kind: Callable[[SSAValue, SSAValue], Operation]) -> None:
    gradient = gradient_of(function(lambda score: kind(score, score)), [])
    ones = np.ones((1, 1))
    assert pulled_back(gradient.body.block, ones, ones, PAIRS, [], []) == 1.0
