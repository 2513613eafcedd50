"""Random masks: no lowering is refuted, and without rasters and predicates every claim is proved."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from strategies import LEAVES, masks

import compilemask as cm
from compilemask.dialects import mask
from compilemask.lowering import pipeline
from compilemask.passes.prove import prove_lowering

SIMPLE = LEAVES[:-2]


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(masks(300, depth=2, leaves=SIMPLE))
def test_random_masks_are_proved(subject: cm.Mask) -> None:
    module = subject.module()
    source = module.body.block.first_op
    assert isinstance(source, mask.FuncOp)
    for verdict in prove_lowering(source, pipeline.lower(module, "tiling"), 10_000):
        assert verdict.status == "proved", f"{verdict}\n{source}"
