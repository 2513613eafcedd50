"""Masks of the language, compiled and built on the CPU: descriptors exact, attention equal to the dense oracle."""

from __future__ import annotations

import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, random_inputs
from descriptor_checks import check_against_dense
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_masks import MASKS

from compilemask.runtime import Descriptor, attention, compile

LENGTHS = [(1, 1), (17, 17), (128, 128), (137, 300), (300, 200), (640, 640), (1000, 1000)]


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("name", MASKS)
def test_descriptor_and_attention(name: str, queries: int, keys: int) -> None:
    mask = MASKS[name](queries, keys)
    dense = mask.dense(queries, keys)
    descriptor = compile(mask).descriptor(queries, keys)
    check_against_dense(descriptor, dense)
    q, k, v = random_inputs(2, 4, 2, queries, keys, 16, torch.float64)
    out, lse = attention(q, k, v, descriptor, return_lse=True)
    expected, expected_lse = dense_attention(q, k, v, dense)
    assert_close(out, expected, TOLERANCE[torch.float64], "out")
    assert_close(lse, expected_lse, 1e-12, "lse")


@settings(max_examples=60)
@given(st.sampled_from(sorted(MASKS)), st.integers(1, 700), st.integers(1, 700))
def test_any_lengths(name: str, queries: int, keys: int) -> None:
    mask = MASKS[name](queries, keys)
    check_against_dense(compile(mask).descriptor(queries, keys), mask.dense(queries, keys))


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


@pytest.mark.parametrize("name", MASKS)
def test_reserved_room_is_linear(name: str) -> None:
    if name in ("labels", "scattered"):
        pytest.skip("nothing bounds the partial tiles of a predicate")
    length = 32768
    compiled = compile(MASKS[name](length, length))
    layout = compiled.program.layout(compiled.parameters, length, length)
    assert layout.pair_capacity <= 60 * layout.query_tiles * layout.masks
