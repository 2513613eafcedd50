"""Transposed masks: the mask with its axes exchanged at every level, in descriptors and proofs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from descriptor_checks import check_against_dense
from hypothesis import HealthCheck, given, settings
from proof_masks import MASKS as PROVED
from proof_masks import UNKNOWN
from sample_masks import MASKS
from strategies import Case, cases
from test_descriptor_kernels import build

import compilemask
from compilemask.dialects import mask as dialect
from compilemask.dialects.semantics import interval as interval_semantics
from compilemask.dialects.semantics.mask import visible
from compilemask.errors import DescriptorError, LoweringError, MaskError
from compilemask.lowering import pipeline
from compilemask.passes import mask_transpose
from compilemask.passes.prove import prove_lowering
from compilemask.runtime import compile
from compilemask.runtime.descriptor import Descriptor

LENGTHS = [(1, 1), (17, 300), (128, 128), (300, 137), (640, 640)]


def source_of(mask: compilemask.Mask) -> dialect.FuncOp:
    """The function of the transposed mask."""
    func = mask_transpose.transposed(mask.module()).body.block.first_op
    assert isinstance(func, dialect.FuncOp)
    return func


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(cases())
def test_any_mask_is_transposed(case: Case) -> None:
    dense = case.mask.dense(case.queries, case.keys)[0, 0].numpy()
    arguments = case.mask.arguments()
    transposed = mask_transpose.transposed(case.mask.module())
    func = transposed.body.block.first_op
    assert isinstance(func, dialect.FuncOp)
    assert np.array_equal(visible(func, arguments, case.keys, case.queries), dense.T)
    intervals = pipeline.interval_of(pipeline.lower(transposed, "interval"))
    assert np.array_equal(interval_semantics.visible(intervals, arguments, case.keys, case.queries), dense.T)
    again = mask_transpose.transposed(transposed).body.block.first_op
    assert isinstance(again, dialect.FuncOp)
    assert np.array_equal(visible(again, arguments, case.queries, case.keys), dense)


LENGTHS_IN_A_PREDICATE = """
mask.func @lengths() -> !mask.region {
  %visible = mask.where {
  ^bb0(%q: i32, %kv: i32):
    %keys = mask.keys
    %queries = mask.queries
    %after = arith.subi %keys, %kv : i32
    %before = arith.subi %queries, %q : i32
    %twice = arith.addi %before, %before : i32
    %nearer = arith.cmpi slt, %after, %twice : i32
    mask.yield %nearer
  }
  mask.return %visible
}
"""


def test_lengths_in_a_predicate_are_exchanged() -> None:
    mask = compilemask.parse(LENGTHS_IN_A_PREDICATE)
    found = visible(source_of(mask), mask.arguments(), 70, 50)
    assert np.array_equal(found, mask.dense(50, 70)[0, 0].numpy().T)


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("name", MASKS)
def test_descriptor_of_the_transpose(name: str, queries: int, keys: int) -> None:
    mask = MASKS[name](queries, keys)
    descriptor = compile(mask).descriptor(queries, keys, gradient=True)
    assert descriptor == compile(mask).descriptor(queries, keys)
    assert descriptor.transposed is not None
    check_against_dense(descriptor.transposed, mask.dense(queries, keys).transpose(-1, -2))


@pytest.mark.parametrize("name", MASKS)
def test_kernels_build_the_transpose(name: str) -> None:
    queries, keys = 300, 200
    compiled = compile(MASKS[name](queries, keys)).transposed
    expected = compiled.descriptor(keys, queries)
    assert build(compiled, expected.layout) == expected


def test_masks_of_one_structure_share_the_transposed_program() -> None:
    one, two = (compile(compilemask.hstu(history, 5)) for history in (100, 70))
    assert one.transposed.program is two.transposed.program
    assert one.transposed.program is not one.program


@pytest.mark.parametrize("name", MASKS)
def test_room_of_the_transpose_is_linear(name: str) -> None:
    if name in ("labels", "scattered"):
        pytest.skip("nothing bounds the partial tiles of a predicate")
    length = 32768
    compiled = compile(MASKS[name](length, length)).transposed
    layout = compiled.program.layout(compiled.parameters, length, length)
    assert layout.pair_capacity <= 60 * layout.query_tiles * layout.masks


def test_lengths_are_checked_on_their_axes() -> None:
    mask = compile(compilemask.padding(torch.tensor([50])))
    assert mask.transposed.descriptor(50, 10).layout.queries == 50
    with pytest.raises(MaskError, match="for 10 queries and 40 keys"):
        mask.transposed.descriptor(40, 10)
    with pytest.raises(MaskError, match="for 10 queries and 40 keys"):
        mask.descriptor(10, 40, gradient=True)


def test_only_a_transpose_is_one() -> None:
    causal = compile(compilemask.causal())
    with pytest.raises(DescriptorError, match="no transpose"):
        Descriptor(causal.descriptor(100, 200).buffer, causal.descriptor(100, 200).layout, causal.descriptor(100, 200))


def test_operations_without_a_rule_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_transpose, "_SYMMETRIC", ())
    with pytest.raises(LoweringError, match=r"mask-transpose: no rule for mask\.return"):
        mask_transpose.transposed(compilemask.causal().module())


@pytest.mark.parametrize("name", PROVED)
def test_lowering_of_the_transpose_is_proved(name: str) -> None:
    pytest.importorskip("z3")
    source = source_of(PROVED[name])
    for verdict in prove_lowering(
        source, pipeline.lower(mask_transpose.transposed(PROVED[name].module()), "tiling"), 10_000
    ):
        expected = "unknown" if (name, verdict.claim.name) in UNKNOWN else "proved"
        assert verdict.status == expected, str(verdict)


@pytest.mark.parametrize("name", PROVED)
def test_transpose_is_proved(name: str) -> None:
    """For all pairs: the transposed mask at (kv, q) is the mask at (q, kv)."""
    z3: Any = pytest.importorskip("z3")
    from compilemask.passes.smt import mask_terms
    from compilemask.passes.smt.call import Call
    from compilemask.passes.smt.world import World

    func = PROVED[name].module().body.block.first_op
    assert isinstance(func, dialect.FuncOp)
    world = World()
    call = Call.unknown(world, func.body.block.args)
    swapped = replace(call, q=call.kv, kv=call.q, queries=call.keys, keys=call.queries)
    one, other = mask_terms.visible(world, func, call), mask_terms.visible(world, source_of(PROVED[name]), swapped)
    solver = z3.Solver()
    solver.set("timeout", 10_000)
    solver.add(*world.closed_facts(), one != other)
    assert solver.check() == z3.unsat
