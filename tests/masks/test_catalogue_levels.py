"""Every mask of the catalogue is its published predicate at every level, and needs no more intervals than promised."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from catalogue import CATALOGUE, SIZES, full_shape
from compare import TOLERANCE, assert_close, dense_attention, random_inputs
from test_levels_agree import check_levels

import compilemask as cm
from compilemask.dialects import interval
from compilemask.dialects import mask as dialect
from compilemask.dialects.semantics import interval as interval_semantics
from compilemask.dialects.semantics import mask as mask_semantics
from compilemask.lowering import pipeline
from compilemask.passes import mask_transpose

REAL = 1024


@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("name", CATALOGUE)
def test_mask_is_its_predicate(name: str, queries: int, keys: int) -> None:
    mask = CATALOGUE[name].make(queries, keys)
    mask.check_lengths(queries, keys)
    expected = full_shape(CATALOGUE[name].visible(queries, keys))
    found = mask.dense(queries, keys).numpy()
    assert found.shape[:2] == mask.batch_shape
    different = np.argwhere(found != expected)
    assert not len(different), f"{len(different)} pairs differ, first {different[0]}"


@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("name", CATALOGUE)
def test_levels_agree(name: str, queries: int, keys: int) -> None:
    check_levels(CATALOGUE[name].make(queries, keys), queries, keys)


@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("name", CATALOGUE)
def test_attention_is_dense_attention(name: str, queries: int, keys: int) -> None:
    mask = CATALOGUE[name].make(queries, keys)
    batch, heads = mask.batch_shape
    q, k, v = random_inputs(batch, heads, heads, queries, keys, 16)
    out = cm.attention(q, k, v, mask)
    visible = torch.from_numpy(np.array(full_shape(CATALOGUE[name].visible(queries, keys))))
    assert_close(out, dense_attention(q, k, v, visible)[0], TOLERANCE[torch.float32])


def most_runs(visible: np.ndarray) -> int:
    """The greatest number of separate intervals in a row."""
    before = np.pad(visible, [(0, 0)] * 3 + [(1, 0)])[..., :-1]
    return int((visible & ~before).sum(axis=-1).max())


@pytest.mark.parametrize("name", [name for name, entry in CATALOGUE.items() if entry.intervals is not None])
def test_intervals_are_as_few_as_promised(name: str) -> None:
    promised = CATALOGUE[name].intervals
    assert promised is not None
    assert most_runs(full_shape(CATALOGUE[name].visible(REAL, REAL))) <= promised


@pytest.mark.parametrize("name", CATALOGUE)
def test_form_is_as_promised(name: str) -> None:
    """Exact masks ask no predicate at run time."""
    root = pipeline.interval_of(
        pipeline.lower(CATALOGUE[name].make(REAL, REAL).module(), "interval")
    ).body.block.last_op
    assert isinstance(root, interval.ReturnOp)
    assert isinstance(root.value.owner, interval.BetweenOp) != CATALOGUE[name].exact


USUAL: dict[str, tuple[cm.Mask, int]] = {
    "natten2d, window 7": (cm.natten2d(32, 32, 7), 7),
    "natten2d, window 13": (cm.natten2d(32, 32, 13), 13),
    "natten3d": (cm.natten3d(8, 8, 16, (3, 5, 7)), 15),
    "dilated_window": (cm.dilated_window(64, 2), 65),
    "clear": (cm.clear(32, 32, 8), 15),
    "strided": (cm.strided(32), 32 - 1),  # the nearest step touches the window
    "periodic": (cm.periodic(), 8),
    "sam_window": (cm.sam_window(32, 32, 14), 14),
    "sliding_tile2d": (cm.sliding_tile2d(8, 8, 16, 3), 3),
    "sliding_tile3d": (cm.sliding_tile3d(4, 4, 4, 16, (3, 3, 3)), 9),
}


@pytest.mark.parametrize("name", USUAL)
def test_usual_sizes_have_as_many_intervals_as_the_literature_counts(name: str) -> None:
    mask, intervals = USUAL[name]
    assert most_runs(mask.dense(REAL, REAL).numpy()) == intervals


@pytest.mark.parametrize("name", CATALOGUE)
def test_transposed_mask_is_the_transpose(name: str) -> None:
    queries, keys = 137, 200
    mask = CATALOGUE[name].make(queries, keys)
    expected = full_shape(CATALOGUE[name].visible(queries, keys))[0, 0].T
    transposed = mask_transpose.transposed(mask.module())
    func = transposed.body.block.first_op
    assert isinstance(func, dialect.FuncOp)
    assert np.array_equal(mask_semantics.visible(func, mask.arguments(), keys, queries), expected)
    intervals = pipeline.interval_of(pipeline.lower(transposed, "interval"))
    assert np.array_equal(interval_semantics.visible(intervals, mask.arguments(), keys, queries), expected)
