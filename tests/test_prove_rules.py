"""Proofs find faults in the rules of lowerings: each rule that is broken on purpose is refuted by numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from xdsl.dialects import arith as xdsl_arith
from xdsl.ir import SSAValue

import compilemask as cm
from compilemask.dialects import interval, mask
from compilemask.lowering import mask_to_interval, pipeline
from compilemask.passes.interval_normalize import Enclosure, Normalizer
from compilemask.passes.interval_sets import Range, SetAlgebra
from compilemask.passes.prove import prove_lowering

LABELS = cm.where(lambda q, kv, label: label[q] == label[kv], label=[1, 2, 1])


def off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A band ends before its upper bound."""

    def band(self: mask_to_interval.FunctionLowering, op: mask.BandOp) -> SSAValue:
        assert op.upper is not None
        end = self.insert(xdsl_arith.AddiOp(self.q, self.values[op.upper]))
        return self.insert(interval.RangeOp(self.constant(0), end))

    monkeypatch.setitem(mask_to_interval._RULES, mask.BandOp, band)


def dropped_clamp(monkeypatch: pytest.MonkeyPatch) -> None:
    """An intersection forgets the upper bound of its second operand."""

    def meet(self: SetAlgebra, a: Range, b: Range) -> Range:
        return Range(self.bounds.maximum(a.lo, b.lo), a.hi)

    monkeypatch.setattr(SetAlgebra, "_meet", meet)


def wrong_monotonicity(monkeypatch: pytest.MonkeyPatch) -> None:
    """A complement takes its operand to grow with it: the sides do not change places."""

    def complement(self: Normalizer, op: interval.ComplementOp) -> Enclosure:
        part = self.enclosure(op.value)
        return Enclosure(self.algebra.complement(part.inner), self.algebra.complement(part.outer))

    monkeypatch.setattr(Normalizer, "_complement", complement)


FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], cm.Mask, str]] = {
    "off by one": (off_by_one, cm.causal(), "visible"),
    "dropped clamp": (dropped_clamp, cm.causal() & cm.cols(0, 9), "visible"),
    "wrong monotonicity": (wrong_monotonicity, ~(cm.causal() & LABELS), "inner"),
}


def statuses(source: cm.Mask) -> dict[str, str]:
    """What becomes of each claim."""
    module = source.module()
    func = module.body.block.first_op
    assert isinstance(func, mask.FuncOp)
    return {v.claim.name: v.status for v in prove_lowering(func, pipeline.lower(module, "interval"))}


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_rule_is_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_rule, source, claim = FAULTS[name]
    assert statuses(source)[claim] == "proved"
    break_rule(monkeypatch)
    assert statuses(source)[claim] == "refuted"
