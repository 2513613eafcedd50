"""The pass `prove` and the command `compilemask prove`: what they say of right and of wrong lowerings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from proof_masks import MASKS, SORTED_LABELS
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, i32
from xdsl.parser import Parser

from compilemask.dialects import interval, tiling
from compilemask.dialects.registry import make_context
from compilemask.errors import LoweringError, MissingDependencyError
from compilemask.lowering import pipeline
from compilemask.lowering.interval_to_tiling import IntervalToTilingPass
from compilemask.passes.prove import ProvePass, prove_interval
from compilemask.passes.smt import library
from compilemask.passes.smt.claims import Claim, Verdict
from compilemask.tools import cli, prove
from compilemask.tools.examples import HEADLINES, SAMPLES

WRONG = """
interval.func @wrong(%q: i32, %queries: i32, %keys: i32, %left: i32) -> !interval.set<2> {
  %zero = arith.constant 0 : i32
  %lo = arith.subi %q, %left : i32
  %first = interval.range %zero to %lo
  %second = interval.range %zero to %q
  %visible = interval.concat %first, %second : (!interval.set<1>, !interval.set<1>) -> !interval.set<2>
  interval.return %visible : !interval.set<2>
}
"""
CAUSAL = (
    "mask.func @m() -> !mask.region {\n  %c = arith.constant 0 : i32\n  %m = mask.band to %c\n  mask.return %m\n}\n"
)
BEFORE = """
interval.func @m(%q: i32, %queries: i32, %keys: i32) -> !interval.set<1> {
  %c = arith.constant 0 : i32
  %s = interval.range %c to %q
  %visible = interval.concat %s : (!interval.set<1>) -> !interval.set<1>
  interval.return %visible : !interval.set<1>
}
"""


def parsed(text: str) -> ModuleOp:
    """A module."""
    return Parser(make_context(), text).parse_module()


def both(first: str, second: str) -> ModuleOp:
    """Two modules in one, so that functions of both may have one name."""
    return parsed(f"builtin.module {{ {first} }}\nbuiltin.module {{ {second} }}")


def run(module: ModuleOp) -> ModuleOp:
    """The module after `prove`."""
    ProvePass(timeout_ms=5_000).apply(make_context(), module)
    return module


@pytest.mark.parametrize("name", ["causal", "hstu", "labels"])
def test_pass_notes_what_it_proved(name: str) -> None:
    mask = MASKS[name]
    lowered = run(both(str(mask.module().body.block.first_op), _inner(pipeline.lower(mask.module(), "tiling"))))
    for kind in (interval.FuncOp, tiling.FuncOp):
        (func,) = (op for op in lowered.walk() if isinstance(op, kind))
        proof = func.attributes["proof"]
        assert isinstance(proof, DictionaryAttr)
        assert set(proof.data) == {"proved"}
    lowered.verify()


def _inner(module: ModuleOp) -> str:
    return "\n".join(str(op) for op in module.body.block.ops)


def test_pass_refutes_with_numbers() -> None:
    with pytest.raises(LoweringError, match=r"@m, visible \(.*\): refuted: q = \d+, kv = \d+, queries = \d+, keys"):
        run(both(CAUSAL, BEFORE))


def test_pass_refutes_a_malformed_set() -> None:
    with pytest.raises(LoweringError, match=r"@wrong, sorted .*: refuted: .*left = "):
        run(parsed(WRONG))


def test_pass_wants_something_to_compare_with() -> None:
    with pytest.raises(LoweringError, match=r"no interval\.func @m to compare the mask with"):
        run(parsed(CAUSAL))


def test_pass_wants_the_same_parameters() -> None:
    with pytest.raises(LoweringError, match="@m does not take the parameters of its mask"):
        run(both(CAUSAL.replace("@m()", "@m(%size: i32)"), BEFORE))


def test_unknown_is_said_to_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = pipeline.lower(MASKS["disk"].module(), "interval")
    func = pipeline.interval_of(lowered)
    verdicts = prove_interval(func, None, timeout_ms=10_000)
    doubtful = [Verdict(v.claim, "unknown", v.milliseconds, reason="no answer in time") for v in verdicts]
    monkeypatch.setattr("compilemask.passes.prove.prove_interval", lambda *arguments: doubtful)
    run(lowered)
    assert "unknown = [" in str(func)
    assert "no answer in time" in str(doubtful[0])


def test_missing_solver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "z3", None)
    library.z3.cache_clear()
    try:
        with pytest.raises(MissingDependencyError, match="pip install z3-solver"):
            run(pipeline.lower(MASKS["hstu"].module(), "interval"))
    finally:
        library.z3.cache_clear()


# ---- the command ----


@pytest.mark.parametrize("name", [*HEADLINES, "document"])
def test_command_proves_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["prove", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all("proved" in line and line.endswith("ms") for line in lines if line.startswith("@"))


def test_command_refutes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.mlir"
    path.write_text(WRONG)
    assert cli.main(["prove", str(path), "--timeout", "5000"]) == 1
    out = capsys.readouterr().out
    assert "refuted" in out
    assert "@wrong, sorted: q = " in out


def test_command_fails_where_something_is_not_proved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The solver may give up: then nothing is wrong, and nothing is known."""
    verdicts = list(prove.prove_module(parsed((SAMPLES / "hstu.mlir").read_text())))
    verdicts[1] = Verdict(verdicts[1].claim, "unknown", 5.0, reason="no answer in time")
    monkeypatch.setattr(prove, "prove_module", lambda *_: verdicts)
    assert cli.main(["prove", "hstu"]) == 1
    assert "no answer in time" in capsys.readouterr().out


def test_command_needs_something_to_prove(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.mlir"
    path.write_text("builtin.module {}\n")
    assert cli.main(["prove", str(path)]) == 2
    assert "nothing to prove" in capsys.readouterr().err


def test_samples_are_proved_with_parameters_of_any_value() -> None:
    """A radius is a parameter in the sample, a constant in the constructor."""
    verdicts = list(prove.prove_module(parsed((SAMPLES / "clear.mlir").read_text())))
    assert {verdict.status for verdict in verdicts} == {"proved"}, [*map(str, verdicts)]


def test_claims_are_named_once() -> None:
    lowered = pipeline.lower(MASKS["clear"].module(), "tiling")
    claims: list[Claim] = [verdict.claim for verdict in prove.prove_module(lowered)]
    assert len({(claim.function, claim.name) for claim in claims}) == len(claims)


SWAYING = """
interval.func @swaying(%q: i32, %queries: i32, %keys: i32) -> !interval.set<1> {
  %zero = arith.constant 0 : i32
  %seven = arith.constant 7 : i32
  %hi = arith.remsi %q, %seven : i32
  %range = interval.range %zero to %hi
  %visible = interval.concat %range : (!interval.set<1>) -> !interval.set<1>
  interval.return %visible : !interval.set<1>
}
"""


def test_reserve_is_refuted_if_a_bound_does_not_move_as_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every bound to rise with q, as only some do."""
    monkeypatch.setattr("compilemask.passes.bound_motion._rises", lambda value, q: True)
    lowered = pipeline.lower(parsed(SWAYING), "tiling")
    with pytest.raises(LoweringError, match=r"@swaying_tiles, motion .*: refuted"):
        run(lowered)


@pytest.mark.parametrize("rows", [64, 192])
@pytest.mark.parametrize("name", ["causal", "window", "hstu", "document"])
def test_reserve_is_proved_in_tiles_of_other_heights(name: str, rows: int) -> None:
    module = MASKS[name].module()
    lowered = pipeline.apply(module, [*pipeline.passes_to("interval"), IntervalToTilingPass(rows)])
    proof = pipeline.tiling_of(run(lowered)).attributes["proof"]
    assert isinstance(proof, DictionaryAttr)
    assert set(proof.data) == {"proved"}


def test_reserve_that_is_unknown_claims_nothing() -> None:
    lowered = pipeline.lower(parsed(SWAYING), "tiling")
    assert pipeline.tiling_of(lowered).reserve.is_unknown
    assert "motion" not in {verdict.claim.name for verdict in prove.prove_module(lowered)}


def test_tables_ascend_only_if_the_mask_says_so() -> None:
    lowered = _inner(pipeline.lower(parsed(SORTED_LABELS), "interval"))
    run(both(SORTED_LABELS, lowered))
    with pytest.raises(LoweringError, match=r"takes label to ascend, its mask does not say so"):
        run(both(SORTED_LABELS.replace(" {ascending = [0]}", ""), lowered))
    with pytest.raises(LoweringError, match=r"visible .*: refuted: .*label = \["):
        run(
            both(
                SORTED_LABELS.replace(" {ascending = [0]}", ""),
                lowered.replace("attributes {ascending = [3 : i64]}", ""),
            )
        )


def test_a_part_that_the_set_has_not_is_named() -> None:
    module = pipeline.lower(Parser(make_context(), CAUSAL).parse_module(), "tiling")
    envelope = next(op for op in module.walk() if isinstance(op, tiling.EnvelopeOp))
    envelope.part = IntegerAttr(7, i32)
    with pytest.raises(LoweringError, match="part 7 of a set that has 1"):
        ProvePass().apply(make_context(), module)
