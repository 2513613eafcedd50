"""Masks of the language, compiled and built on the CPU: descriptors exact, attention equal to the dense oracle."""

from __future__ import annotations

import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, random_inputs
from descriptor_checks import check_against_dense
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_masks import MASKS

import compilemask
from compilemask.errors import DTypeError, ShapeError
from compilemask.runtime import Descriptor, attention, compile

LENGTHS = [(1, 1), (17, 17), (128, 128), (137, 300), (300, 200), (640, 640), (1000, 1000)]
ROWS = [128, 192, 64, 48, 256]


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("rows", [64, 128, 192])
@pytest.mark.parametrize("name", MASKS)
def test_descriptor_and_attention(name: str, rows: int, queries: int, keys: int) -> None:
    mask = MASKS[name](queries, keys)
    dense = mask.dense(queries, keys)
    descriptor = compile(mask).descriptor(queries, keys, rows=rows)
    assert descriptor.layout.rows == rows
    check_against_dense(descriptor, dense)
    q, k, v = random_inputs(2, 4, 2, queries, keys, 16, torch.float64)
    out, lse = attention(q, k, v, descriptor, return_lse=True)
    expected, expected_lse = dense_attention(q, k, v, dense)
    assert_close(out, expected, TOLERANCE[torch.float64], "out")
    assert_close(lse, expected_lse, 1e-12, "lse")


@settings(max_examples=60)
@given(st.sampled_from(sorted(MASKS)), st.integers(1, 700), st.integers(1, 700), st.sampled_from(ROWS))
def test_any_lengths(name: str, queries: int, keys: int, rows: int) -> None:
    mask = MASKS[name](queries, keys)
    check_against_dense(compile(mask).descriptor(queries, keys, rows=rows), mask.dense(queries, keys))


@settings(max_examples=60)
@given(st.integers(-700, 700), st.integers(0, 400), st.integers(1, 700), st.integers(1, 700), st.sampled_from(ROWS))
def test_shared_patterns_at_any_distance(begin: int, width: int, queries: int, keys: int, rows: int) -> None:
    mask = compilemask.band(begin, begin + width)
    descriptor = compile(mask).descriptor(queries, keys, rows=rows)
    assert descriptor.layout.shared
    check_against_dense(descriptor, mask.dense(queries, keys))


@pytest.mark.parametrize("name", MASKS)
def test_builds_are_equal(name: str) -> None:
    mask = MASKS[name](300, 300)
    one, two = compile(mask).descriptor(300), compile(MASKS[name](300, 300)).descriptor(300)
    assert one == two
    assert torch.equal(one.buffer, two.buffer)
    assert Descriptor.from_buffer(one.buffer) == one
    assert one != compile(mask).descriptor(300, 301)


@pytest.mark.parametrize("name", ["causal", "causal from the end", "window"])
def test_patterns_are_shared(name: str) -> None:
    small, large = (compile(MASKS[name](n, n)).descriptor(n) for n in (1024, 16384))
    assert small.layout.shared
    assert Descriptor.from_buffer(small.buffer) == small
    assert small.layout.pattern_capacity == large.layout.pattern_capacity


def test_rows_that_no_tile_has() -> None:
    for rows in (0, 8, 100, 512):
        with pytest.raises(ShapeError, match="multiple of 16"):
            compile(compilemask.causal()).descriptor(300, rows=rows)
    with pytest.raises(DTypeError, match="rows"):
        compile(compilemask.causal()).descriptor(300, rows=128.0)  # type: ignore[arg-type]


def test_rows_by_the_pipeline_and_against_it() -> None:
    passes = "mask-to-interval,interval-normalize,interval-to-tiling{rows=64}"
    compiled = compile(MASKS["hstu"](300, 300), pipeline=passes)
    assert compiled.descriptor(300).layout.rows == 64
    assert compiled.descriptor(300, rows=192) == compile(MASKS["hstu"](300, 300)).descriptor(300, rows=192)


@pytest.mark.parametrize("name", MASKS)
def test_reserved_room_is_linear(name: str) -> None:
    if name in ("labels", "scattered"):
        pytest.skip("nothing bounds the partial tiles of a predicate")
    length = 32768
    compiled = compile(MASKS[name](length, length))
    layout = compiled.program.layout(compiled.parameters, length, length)
    assert layout.pair_capacity <= 60 * layout.query_tiles * layout.masks
