"""Values that reach a mask behind its constructor's back: bound by name, written in place, or in a list used again."""

from __future__ import annotations

import pytest
import torch

import compilemask as cm
from compilemask.lowering import pipeline

Q = torch.randn(1, 1, 10, 4)


@pytest.mark.parametrize("offsets", [[0, 8, 3], [-5, 3, 10], [10, 0]])
def test_bound_offsets_ascend(offsets: list[int]) -> None:
    compiled = cm.compile(cm.document([0, 5, 10]))
    with pytest.raises(cm.MaskError, match="offsets"):
        compiled.bind(offsets=offsets)


def test_bound_tables_hold_integers() -> None:
    with pytest.raises(cm.DTypeError, match="float64"):
        cm.compile(cm.document([0, 5, 10])).bind(offsets=[0.5, 7.9])


def test_bound_images_have_a_width() -> None:
    with pytest.raises(cm.MaskError, match="width must be at least 1, got 0"):
        cm.compile(cm.clear(2, 2, 2)).bind(width=0)


def test_offsets_written_in_place_are_checked() -> None:
    offsets = torch.tensor([0, 5, 10], dtype=torch.int32)
    mask = cm.document(offsets)
    cm.attention(Q, Q, Q, mask)
    offsets[1] = 11
    with pytest.raises(cm.MaskError, match="must ascend"):
        cm.attention(Q, Q, Q, mask)


def test_a_list_that_changed_is_another_parameter() -> None:
    offsets = [0, 5, 10]
    before = cm.document(offsets)
    offsets[1] = 3
    after = cm.document(offsets)
    both = before & after
    assert torch.equal(both.dense(10, 10), before.dense(10, 10) & after.dense(10, 10))
    assert not torch.equal(cm.attention(Q, Q, Q, both), cm.attention(Q, Q, Q, before))


def test_tables_in_predicates_are_not_iterated_over() -> None:
    with pytest.raises(cm.MaskError, match="iterated"):
        cm.attention(Q, Q, Q, cm.where(lambda q, kv, t: sum(t) == q, t=[1, 2]))
    with pytest.raises(cm.MaskError, match="searched"):
        cm.attention(Q, Q, Q, cm.where(lambda q, kv, t: q in t, t=[1, 2]))


def test_numbers_beyond_32_bits_are_an_error() -> None:
    with pytest.raises(cm.CompileMaskError, match="32 bits"):
        cm.attention(Q, Q, Q, cm.where(lambda q, kv: q * 2**30 * 4 == 0))


def test_masks_nested_beyond_the_stack_are_an_error() -> None:
    mask = cm.causal()
    for step in range(3000):
        mask = ~(mask | cm.window(step, step))
    with pytest.raises(cm.CompileMaskError, match="nested"):
        cm.attention(Q, Q, Q, mask)


def test_repeated_symmetric_differences_stay_cheap() -> None:
    """Bounds share parts: comparing them must walk each part once. This took minutes when it did not."""
    mask = cm.causal()
    for reach in range(8):
        other = cm.window(reach, reach)
        mask = (mask - other) | (other - mask)
    func = pipeline.interval_of(pipeline.lower(mask.module(), "interval"))
    assert sum(1 for _ in func.walk()) < 400


def test_a_negative_radius_is_its_magnitude() -> None:
    text = """
    mask.func @disk(%radius: i32) -> !mask.region {
      %zero = arith.constant 0 : i32
      %eight = arith.constant 8 : i32
      %grid = mask.grid at %zero size %eight x %eight
      %disk = mask.disk %grid radius %radius
      mask.return %disk
    }
    """
    descriptors = [cm.compile(cm.parse(text, radius=radius)).descriptor(64) for radius in (3, -3)]
    assert torch.equal(descriptors[0].buffer, descriptors[1].buffer)


@pytest.mark.parametrize("mask", [cm.window(64, 64) | cm.rows(0, 8) | cm.cols(0, 8)])
def test_a_window_with_leading_globals_is_exact(mask: cm.Mask) -> None:
    assert "between" not in cm.compile(mask).ir("interval")
