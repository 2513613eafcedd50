"""Affine masks and their intervals are equal as parametric integer sets, says another library than the proofs use."""

from __future__ import annotations

import pytest
from proof_masks import MASKS

from compilemask.dialects import interval, mask
from compilemask.lowering import pipeline

pytest.importorskip("islpy")
from isl_sets import NotAffine, Plane, seen, visible

AFFINE = (
    "full",
    "causal",
    "causal from the end",
    "window",
    "window from the end",
    "band",
    "rows",
    "columns",
    "hstu",
    "hstu with padding",
    "padding",
    "sink and window",
    "prefix",
    "longformer",
    "outside a window",
)


@pytest.mark.parametrize("name", AFFINE)
def test_sets_are_equal(name: str) -> None:
    source = MASKS[name].module().body.block.first_op
    assert isinstance(source, mask.FuncOp)
    func = pipeline.interval_of(pipeline.lower(MASKS[name].module(), "interval"))
    plane = Plane([f"p{index}" for index in range(len(source.body.block.args))])
    expected = visible(source, plane)
    assert expected.is_equal(seen(func, plane))
    assert name == "full" or not expected.is_equal(plane.pairs)


@pytest.mark.parametrize("name", ["document", "labels", "disk"])
def test_others_are_not_affine(name: str) -> None:
    source = MASKS[name].module().body.block.first_op
    assert isinstance(source, mask.FuncOp)
    with pytest.raises(NotAffine):
        visible(source, Plane([f"p{index}" for index in range(len(source.body.block.args))]))


def test_a_fault_makes_sets_differ() -> None:
    source = MASKS["window"].module().body.block.first_op
    assert isinstance(source, mask.FuncOp)
    func = pipeline.interval_of(pipeline.lower(MASKS["window"].module(), "interval"))
    ranges = next(op for op in func.walk() if isinstance(op, interval.RangeOp))
    ranges.operands[0] = func.body.block.args[0]
    plane = Plane(["left", "right"])
    assert not visible(source, plane).is_equal(seen(func, plane))
