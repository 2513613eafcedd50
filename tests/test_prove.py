"""The lowerings of the whole catalogue, proved for all lengths and parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from proof_masks import MASKS, UNKNOWN

import compilemask as cm
from compilemask.dialects import mask
from compilemask.lowering import pipeline
from compilemask.passes.prove import prove_lowering
from compilemask.passes.prove_interval import interval_claims
from compilemask.passes.prove_tiling import tiling_claims
from compilemask.passes.smt.call import Call
from compilemask.passes.smt.claims import Claim, Verdict
from compilemask.passes.smt.world import Table, World

z3: Any = pytest.importorskip("z3")

TIMEOUT_MS = 10_000


def source_of(subject: cm.Mask) -> mask.FuncOp:
    """The mask's function."""
    func = subject.module().body.block.first_op
    assert isinstance(func, mask.FuncOp)
    return func


def verdicts_of(subject: cm.Mask) -> list[Verdict]:
    """What becomes of all claims about a mask's lowering."""
    return list(prove_lowering(source_of(subject), pipeline.lower(subject.module(), "tiling"), TIMEOUT_MS))


@pytest.mark.parametrize("name", MASKS)
def test_lowering_is_proved(name: str, record_property: Callable[[str, object], None]) -> None:
    for verdict in verdicts_of(MASKS[name]):
        record_property(verdict.claim.name, f"{verdict.status} in {verdict.milliseconds:.0f} ms")
        expected = "unknown" if (name, verdict.claim.name) in UNKNOWN else "proved"
        assert verdict.status == expected, str(verdict)


def check_assumptions(subject: cm.Mask) -> None:
    """A claim proved from contradictory facts would say nothing: each one has calls to speak of."""
    source = source_of(subject)
    lowered = pipeline.lower(subject.module(), "tiling")
    func, tiles = pipeline.interval_of(lowered), pipeline.tiling_of(lowered)
    claims: list[Claim] = [interval_claims(func, source)[0], tiling_claims(tiles, lowered)[-1]]
    for claim in claims:
        world = World()
        call = Call.unknown(world, func.body.block.args[3:])
        claim.holds(world, call)
        numbers = [value == 4 for value in call.parameters if not isinstance(value, Table)]
        solver = z3.Solver()
        solver.set("timeout", TIMEOUT_MS)
        solver.add(*world.closed_facts(), *world.narrow, *call.small(), *numbers, call.q == 128, call.kv == 5)
        assert solver.check() == z3.sat, f"{claim.name}: no call satisfies the facts"


@pytest.mark.parametrize("name", MASKS)
def test_what_is_assumed_is_possible(name: str) -> None:
    check_assumptions(MASKS[name])
