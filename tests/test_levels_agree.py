"""One mask, executed at the mask, interval and tiling level, is one set; and the levels are as tight as promised."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import Case, cases

import compilemask as cm
from compilemask.dialects import interval
from compilemask.dialects.semantics import interval as interval_semantics
from compilemask.dialects.semantics import mask as mask_semantics
from compilemask.dialects.semantics import tiling as tiling_semantics
from compilemask.lowering import pipeline
from compilemask.lowering.interval_to_tiling import IntervalToTilingPass
from compilemask.lowering.visited_tiles import most_partial_tiles


def check_levels(mask: cm.Mask, queries: int, keys: int, rows: int = 128) -> None:
    """All levels give the mask level's pairs; classes are exact; partial tiles fit the room that was reserved."""
    arguments = mask.arguments()
    source = mask.module()
    dense = mask_semantics.visible(source.body.block.first_op, arguments, queries, keys)  # type: ignore[arg-type]
    lowered = pipeline.lower(source, "interval")
    intervals = pipeline.interval_of(lowered)
    assert np.array_equal(interval_semantics.visible(intervals, arguments, queries, keys), dense)
    interval_semantics.check_normal_form(intervals, arguments, queries, keys)
    tiled = pipeline.apply(lowered, [IntervalToTilingPass(rows)])
    tiles = pipeline.tiling_of(tiled)
    assert np.array_equal(tiling_semantics.visible(tiles, tiled, arguments, queries, keys), dense)
    classes = tiling_semantics.classes(tiling_semantics.runs(tiles, tiled, arguments, queries, keys), -(-keys // 128))
    assert np.array_equal(classes, tiling_semantics.brute_force_classes(dense, rows))
    partial = int((classes == tiling_semantics.PARTIAL).sum())
    argument = tiles.reserve.pitch_argument.data
    pitch = arguments[argument - 3] if tiles.reserve.lines.data else None
    query_tiles, key_tiles = classes.shape
    width = None if pitch is None else int(pitch)
    room = pipeline.room(tiled).partial_tiles(query_tiles, key_tiles, width, rows=rows)
    assert partial <= room
    for known in (arguments, [None] * len(arguments)):
        integers = [value if isinstance(value, int) else None for value in known]
        assert partial <= most_partial_tiles(intervals, integers, queries, keys, rows)


@settings(max_examples=850, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(cases(), st.sampled_from([128, 128, 192, 64]))
def test_levels_agree(case: Case, rows: int) -> None:
    check_levels(case.mask, case.queries, case.keys, rows)


def answers(total: int, seed: int = 0) -> list[int]:
    """Offsets of a prompt of an eighth of the tokens and 8 answers of random lengths."""
    rng = random.Random(seed)
    weights = [0.5 + rng.random() for _ in range(8)]
    prompt = total // 8
    lengths = [int((total - prompt) * weight / sum(weights)) for weight in weights]
    lengths[-1] += total - prompt - sum(lengths)
    return np.cumsum([0, prompt, *lengths]).tolist()


def clear(total: int) -> cm.Mask:
    """CLEAR with 512 text tokens where there is room, on an image 16 wide, radius 16."""
    text = 512 if total > 512 else total % 16
    return cm.clear(max(1, (total - text) // 16), 16, 16, text)


HEADLINES = {
    "causal": (lambda n: cm.causal(), 1),
    "hstu": (lambda n: cm.hstu(n - n // 8, min(100, n // 2)), 2),
    "shared_prompt": (lambda n: cm.shared_prompt(answers(n)), 2),
    "clear": (clear, 32),
}


@pytest.mark.parametrize("name", HEADLINES)
@pytest.mark.parametrize(("queries", "keys"), [(1024, 1024), (1000, 1000), (257, 640), (640, 129), (1, 1), (17, 17)])
@pytest.mark.parametrize("rows", [64, 128, 192])
def test_headline_levels_agree(name: str, queries: int, keys: int, rows: int) -> None:
    check_levels(HEADLINES[name][0](max(queries, keys)), queries, keys, rows)


@pytest.mark.parametrize("name", HEADLINES)
def test_headline_arity(name: str) -> None:
    build, arity = HEADLINES[name]
    func = pipeline.interval_of(pipeline.lower(build(1024).module(), "interval"))
    assert interval.set_of(func.body.block.last_op.operands[0]).count == arity  # type: ignore[union-attr]


@pytest.mark.parametrize("name", HEADLINES)
@pytest.mark.parametrize("size", [1024, 4096])
def test_tiling_visits_no_empty_tile_and_no_full_tile_is_partial(name: str, size: int) -> None:
    mask = HEADLINES[name][0](size)
    tiled = pipeline.lower(mask.module(), "tiling")
    found = tiling_semantics.runs(pipeline.tiling_of(tiled), tiled, mask.arguments(), size, size)
    dense = mask.dense(size, size)[0, 0].numpy().reshape(size // 128, 128, size // 128, 128)
    visible = dense.sum(axis=(1, 3))
    classes = tiling_semantics.classes(found, size // 128)
    assert not ((classes != tiling_semantics.EMPTY) & (visible == 0)).any()
    assert not ((classes == tiling_semantics.PARTIAL) & (visible == 128 * 128)).any()
    assert ((classes == tiling_semantics.FULL) == (visible == 128 * 128)).all()
    assert ((classes != tiling_semantics.EMPTY) == (visible > 0)).all()


@pytest.mark.parametrize(
    ("mask", "shared"),
    [
        (cm.full(), True),
        (cm.causal(), True),
        (cm.causal(align="bottom_right"), True),
        (cm.window(100, 7), True),
        (cm.causal() - cm.window(64, 0), True),
        (cm.hstu(100, 5), False),
        (cm.cols(0, 4) | cm.window(8, 0), False),
    ],
)
def test_translation_invariant_masks_share_patterns(mask: cm.Mask, shared: bool) -> None:
    assert pipeline.room(pipeline.lower(mask.module(), "tiling")).shared is shared


def test_new_lengths_have_the_same_ir() -> None:
    assert cm.hstu(100, 5).key == cm.hstu(7, 3).key
    assert cm.shared_prompt([0, 5, 9]).key == cm.shared_prompt([0, 50, 90, 100]).key


@pytest.mark.parametrize("name", HEADLINES)
def test_constants_and_bounds_have_names(name: str) -> None:
    text = str(pipeline.lower(HEADLINES[name][0](1024).module(), "interval"))
    assert not re.search(r"%\d+ = (arith.constant|interval\.)", text)
    assert re.search(r"interval.range %zero to %hi", text)
    assert "interval.return %visible" in text
