"""Descriptors built on the CPU by compiled functions: word for word those that numpy and the device's kernels build."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from catalogue import CATALOGUE
from descriptor_checks import check_against_dense
from descriptor_digests import of_masks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interval_samples import SAMPLES
from sample_masks import MASKS
from strategies import Case, cases
from test_descriptor_build_cpu import built, dense, roomy
from test_from_mask_mod_random import formulas, mask_mod_of
from xdsl.parser import Parser

import compilemask as cm
from compilemask.dialects.registry import make_context
from compilemask.errors import MaskError
from compilemask.lowering.descriptor_layout import Layout
from compilemask.lowering.tiling_to_scf.descriptor import Source, descriptor
from compilemask.runtime import program
from compilemask.runtime.cpu import build_cpu_jit, upstream_mlir
from compilemask.runtime.cpu.host_code import HostFunction
from compilemask.runtime.descriptor import Descriptor

pytestmark = pytest.mark.skipif(upstream_mlir.find() is None, reason="upstream MLIR's bindings are not installed")
LENGTHS = [(1, 1), (17, 300), (128, 128), (137, 137), (400, 256), (300, 1000), (1025, 640)]


@lru_cache
def function_of(name: str, rows: int) -> HostFunction:
    function = build_cpu_jit.function_for(SAMPLES[name].func, rows, shared=False)
    assert function is not None
    return function


def compiled_build(compiled: cm.Compiled, queries: int, keys: int) -> Descriptor | None:
    """By the compiled function alone."""
    function = compiled.program._host_function
    assert function is not None
    return build_cpu_jit.build(function, *of_masks(compiled, queries, keys))


def assert_equal(found: Descriptor | None, expected: Descriptor) -> None:
    assert found is not None
    different = (found.defined() != expected.defined()).nonzero()
    assert not len(different), f"{len(different)} words differ, first {int(different[0])} of {expected.layout}"


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("rows", [128, 48])
@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name: str, rows: int, queries: int, keys: int) -> None:
    layout, parameters = roomy(queries, keys, rows=rows), SAMPLES[name].parameters(queries, keys)
    found = build_cpu_jit.build(function_of(name, rows), layout, [parameters])
    assert_equal(found, built(name, queries, keys, rows))
    assert found is not None
    check_against_dense(found, dense(name, queries, keys))


@pytest.mark.parametrize("rows", [64, 128, 192])
@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str, rows: int) -> None:
    for queries, keys in LENGTHS:
        compiled = cm.compile(MASKS[name](queries, keys))
        compiled = cm.Compiled(compiled.program.in_tiles_of(rows), compiled.parameters, compiled.limits)
        expected = compiled.descriptor(queries, keys, rows=rows)
        assert_equal(compiled_build(compiled, queries, keys), expected)


@pytest.mark.parametrize("name", CATALOGUE)
def test_catalogue(name: str) -> None:
    for queries, keys in [(300, 300), (137, 410)]:
        compiled = cm.compile(CATALOGUE[name].make(queries, keys))
        assert_equal(compiled_build(compiled, queries, keys), compiled.descriptor(queries, keys))
        transposed = compiled.transposed
        assert_equal(compiled_build(transposed, keys, queries), transposed.descriptor(keys, queries))


@settings(max_examples=40)
@given(st.sampled_from(sorted(SAMPLES)), st.integers(1, 700), st.integers(1, 700))
def test_any_lengths(name: str, queries: int, keys: int) -> None:
    found = build_cpu_jit.build(function_of(name, 128), roomy(queries, keys), [SAMPLES[name].parameters(queries, keys)])
    assert_equal(found, built(name, queries, keys))


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(cases(depth=2))
def test_composed_masks(case: Case) -> None:
    compiled = cm.compile(case.mask)
    # Also at lengths that the mask does not fit, as other levels are.
    expected = compiled.program._build_in_numpy(*of_masks(compiled, case.queries, case.keys))
    assert_equal(compiled_build(compiled, case.queries, case.keys), expected)


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(formulas)
def test_mask_mods(formula: str) -> None:
    """A build gives way where a number leaves 32 bits, or where numbers are shifted by others."""
    compiled = cm.compile(cm.from_mask_mod(mask_mod_of(formula)))
    if compiled.program._host_function is None:
        return
    try:
        expected = compiled.descriptor(137, 200)
    except MaskError:
        return
    if (found := compiled_build(compiled, 137, 200)) is not None:
        assert_equal(found, expected)


def test_too_little_room_is_left_to_the_other_build() -> None:
    layout = Layout(1, 1, 1000, 1000, 128, 5, 3, shared=False)
    assert build_cpu_jit.build(function_of("causal", 128), layout, [()]) is None


def test_numbers_that_leave_32_bits() -> None:
    compiled = cm.compile(cm.where(lambda q, kv: (q * 2000000) * kv > 5))
    assert compiled_build(compiled, 2000, 2000) is None
    with pytest.raises(MaskError, match="leaves 32 bits"):
        compiled.descriptor(2000)
    assert compiled_build(compiled, 8, 8) is not None


def test_division_by_zero_is_zero() -> None:
    mask = cm.where(lambda q, kv, by: (q // by[0] + q % by[0]) == kv, by=[0])
    compiled = cm.compile(mask)
    assert_equal(compiled_build(compiled, 200, 200), compiled.descriptor(200))


def test_compiled_once_builds_have_taken_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "WORTH_COMPILING", -1.0)
    compiled = cm.compile(cm.document(torch.tensor([0, 100, 230, 300])) & cm.causal())
    expected = compiled.program._build_in_numpy(*of_masks(compiled, 300, 300))
    monkeypatch.setattr(type(compiled.program), "_build_in_numpy", None)
    assert_equal(compiled.descriptor(300), expected)


@pytest.mark.parametrize("name", ["causal", "shared prompt", "clear", "labels", "hstu"])
@pytest.mark.parametrize("level", ["mask", "transposed"])
def test_upstream_and_xdsl_verify_functions(name: str, level: str) -> None:
    compiled = cm.compile(MASKS[name](300, 300))
    source = compiled.program if level == "mask" else compiled.program.transposed
    text = descriptor(Source(source.intervals, 128, source.room.shared))
    upstream_mlir.verify(text)
    module = Parser(make_context(), text).parse_module()
    module.verify()
    assert str(Parser(make_context(), str(module)).parse_module()) == str(module)
