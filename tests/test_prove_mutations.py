"""Proofs find faults: lowered functions are broken on purpose, and each fault is refuted by numbers that show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest
from proof_masks import MASKS
from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i32
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from compilemask.dialects import arith, interval, mask, tiling
from compilemask.dialects.semantics import interval as interval_semantics
from compilemask.dialects.semantics import mask as mask_semantics
from compilemask.lowering import pipeline
from compilemask.passes.prove import prove_interval, prove_tiling
from compilemask.passes.smt.call import Counterexample

TIMEOUT_MS = 5_000

Mutation = Callable[[Operation], bool]
"""Changes an operation in place, if it is of the kind that the mutation changes."""


def replaced(op: Operation, kind: type[Operation]) -> bool:
    """The operation becomes one of another kind with the same operands."""
    Rewriter.replace_op(op, kind.create(operands=list(op.operands), result_types=[op.results[0].type]))
    return True


def other_extreme(op: Operation) -> bool:
    """A minimum instead of a maximum, and the other way round."""
    match op:
        case xdsl_arith.MinSIOp():
            return replaced(op, xdsl_arith.MaxSIOp)
        case xdsl_arith.MaxSIOp():
            return replaced(op, xdsl_arith.MinSIOp)
    return False


def other_sign(op: Operation) -> bool:
    """A sum instead of a difference, and the other way round."""
    match op:
        case xdsl_arith.AddiOp() if op.result.type == i32:
            return replaced(op, xdsl_arith.SubiOp)
        case xdsl_arith.SubiOp():
            return replaced(op, xdsl_arith.AddiOp)
    return False


def no_guard(op: Operation) -> bool:
    """A selection always takes its first value."""
    if not isinstance(op, arith.SelectOp):
        return False
    op.result.replace_all_uses_with(op.lhs)
    op.detach()
    return True


def strict(op: Operation) -> bool:
    """> instead of >=, and the other way round; <= instead of <."""
    other = {"sge": "sgt", "sgt": "sge", "slt": "sle", "sle": "slt", "eq": "ne"}
    if not isinstance(op, arith.CmpiOp) or op.predicate_name not in other:
        return False
    number = arith.CMPI_PREDICATES.index(other[op.predicate_name])
    op.properties["predicate"] = IntegerAttr(number, op.properties["predicate"].type)  # type: ignore[attr-defined]
    return True


def one_more(position: int) -> Mutation:
    """A bound of a range or of a member, or a family's first or last line, is larger by one."""

    def mutate(op: Operation) -> bool:
        if not isinstance(op, interval.RangeOp | interval.MemberOp | interval.FamilyOp):
            return False
        one = xdsl_arith.ConstantOp(IntegerAttr(1, i32))
        more = xdsl_arith.AddiOp(op.operands[position], one.result)
        assert op.parent is not None
        op.parent.insert_ops_before([one, more], op)
        op.operands[position] = more.result
        return True

    return mutate


MUTATIONS: dict[str, Mutation] = {
    "min for max": other_extreme,
    "wrong sign": other_sign,
    "guard dropped": no_guard,
    "comparison off by one": strict,
    "lower bound off by one": one_more(0),
    "upper bound off by one": one_more(1),
}


def mutants(func: interval.FuncOp, mutation: Mutation) -> Iterator[interval.FuncOp]:
    """Copies of the function in which one operation is changed."""
    for position in range(len(list(func.body.walk()))):
        copy = func.clone()
        if mutation(list(copy.body.walk())[position]):
            yield copy


def source_of(module: ModuleOp) -> mask.FuncOp:
    """The mask function of a module."""
    func = module.body.block.first_op
    assert isinstance(func, mask.FuncOp)
    return func


def disagrees(source: mask.FuncOp, func: interval.FuncOp, found: Counterexample) -> bool:
    """Whether execution shows what a counterexample claims: another visible pair, or a set that is malformed."""
    arguments, queries, keys = found.arguments(), found.queries, found.keys
    seen = mask_semantics.visible(source, arguments, queries, keys)
    if seen[found.q, found.kv] != interval_semantics.visible(func, arguments, queries, keys)[found.q, found.kv]:
        return True
    return malformed(func, arguments, queries, keys) or encloses_wrongly(func, found, bool(seen[found.q, found.kv]))


def malformed(func: interval.FuncOp, arguments: list, queries: int, keys: int) -> bool:
    """Whether the set is not in normal form on this data."""
    try:
        interval_semantics.check_normal_form(func, arguments, queries, keys)
    except AssertionError:
        return True
    return False


def encloses_wrongly(func: interval.FuncOp, found: Counterexample, visible: bool) -> bool:
    """Whether the inner set of a `between` shows what is not visible, or the outer one hides what is."""
    sets = interval_semantics.evaluate(func, found.arguments(), found.queries, found.keys)
    if sets.between is None:
        return False
    inner, outer = (
        interval_semantics.dense_of(side, found.keys)[found.q, found.kv]
        for side in (sets.between.inner, sets.between.outer)
    )
    return bool(inner and not visible) or bool(visible and not outer)


def random_arguments(source: mask.FuncOp, random: np.random.Generator) -> list[int | np.ndarray]:
    """Parameters that a constructor would take: numbers of at least one, ascending tables."""
    return [
        int(random.integers(1, 12)) if argument.type == i32 else np.sort(random.integers(0, 40, 4))
        for argument in source.body.block.args
    ]


def differs_somewhere(source: mask.FuncOp, func: interval.FuncOp) -> bool:
    """Whether execution on random data finds a fault."""
    random = np.random.default_rng(0)
    for _ in range(60):
        arguments = random_arguments(source, random)
        queries, keys = (int(number) for number in random.integers(1, 60, 2))
        seen = mask_semantics.visible(source, arguments, queries, keys)
        try:
            if (seen != interval_semantics.visible(func, arguments, queries, keys)).any():
                return True
        except OverflowError:
            continue
        if malformed(func, arguments, queries, keys):
            return True
    return False


SUBJECTS = ("causal from the end", "window", "hstu", "shared prompt", "sink and window", "chunked")
RASTERS = [
    ("disk", "guard dropped"),
    ("disk", "lower bound off by one"),
    ("box", "wrong sign"),
    ("box", "upper bound off by one"),
]
"""Each fault of these takes the solver up to a second."""


@pytest.mark.parametrize(("name", "mutation"), [*product(SUBJECTS, MUTATIONS), *RASTERS])
def test_faults_are_refuted(name: str, mutation: str) -> None:
    module = MASKS[name].module()
    source, func = source_of(module), pipeline.interval_of(pipeline.lower(module, "interval"))
    for broken in mutants(func, MUTATIONS[mutation]):
        verdicts = prove_interval(broken, source, TIMEOUT_MS)
        refuted = [verdict for verdict in verdicts if verdict.status == "refuted"]
        for verdict in refuted:
            assert verdict.counterexample is not None
            assert disagrees(source, broken, verdict.counterexample), f"{verdict}\n{broken}"
        if not refuted:
            assert not differs_somewhere(source, broken), f"not refuted: {[*map(str, verdicts)]}\n{broken}"


# ---- the tiling level ----


def swap(op: Operation, one: int, other: int) -> None:
    """Exchange two operands."""
    op.operands[one], op.operands[other] = op.operands[other], op.operands[one]


def swap_lengths(func: tiling.FuncOp) -> None:
    """Envelopes are asked of (keys, queries)."""
    for op in func.body.block.ops:
        if isinstance(op, tiling.EnvelopeOp):
            swap(op, 1, 2)


def swap_parameters(func: tiling.FuncOp) -> None:
    """Envelopes are asked with the mask's parameters in another order."""
    for op in func.body.block.ops:
        if isinstance(op, tiling.EnvelopeOp):
            swap(op, len(op.operands) - 2, len(op.operands) - 1)


def classify_other(func: tiling.FuncOp) -> None:
    """Tiles are classified for another call."""
    for op in func.body.block.ops:
        if isinstance(op, tiling.ClassifyOp):
            swap(op, len(op.operands) - 2, len(op.operands) - 1)


def forget_envelope(func: tiling.FuncOp) -> None:
    """The classification does not know of the last part of the set."""
    for op in list(func.body.block.ops):
        if isinstance(op, tiling.ClassifyOp):
            less = tiling.ClassifyOp(op.callee, op.rows, list(op.envelopes)[:-1], list(op.arguments))
            Rewriter.replace_op(op, less)


def next_tile(func: tiling.FuncOp) -> None:
    """The rows described are those of the next tile."""
    for op in list(func.body.block.ops):
        if isinstance(op, tiling.RowsOp):
            one = xdsl_arith.ConstantOp(IntegerAttr(1, i32))
            tile: SSAValue = op.tile
            more = xdsl_arith.AddiOp(tile, one.result)
            Rewriter.insert_op([one, more], InsertPoint.before(op))
            op.operands[0] = more.result


@pytest.mark.parametrize(
    ("name", "break_", "claim"),
    [
        ("full", swap_lengths, "cover"),
        ("window", swap_parameters, "core"),
        ("window", classify_other, "classes"),
        ("hstu", forget_envelope, "cover"),
        ("shared prompt", forget_envelope, "cover"),
        ("causal", next_tile, "rows"),
    ],
)
def test_faults_of_tiling_are_refuted(name: str, break_: Callable[[tiling.FuncOp], None], claim: str) -> None:
    tiled = pipeline.lower(MASKS[name].module(), "tiling")
    func = pipeline.tiling_of(tiled)
    break_(func)
    verdicts = {verdict.claim.name: verdict for verdict in prove_tiling(func, tiled, TIMEOUT_MS)}
    assert verdicts[claim].status == "refuted", str(verdicts[claim])
