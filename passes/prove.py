"""`prove`: translation validation. What lower levels say of a mask is compared with the mask itself, for all lengths.

The pass does not trust the lowerings: it interprets both functions on the terms of an SMT solver and asks for a pair,
lengths and parameters on which they disagree. It compares functions by name: `mask.func @m` with `interval.func @m`,
and a tiling function with the interval function that it asks. Two functions of one name stand in modules of their own
inside the module that is proved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from compilemask.dialects import interval, mask, tiling
from compilemask.errors import LoweringError
from compilemask.passes.prove_interval import interval_claims
from compilemask.passes.prove_tiling import tiling_claims
from compilemask.passes.smt.claims import Claim, Verdict, decide

TIMEOUT_MS = 10_000
"""How long one question to the solver may take."""


def prove_interval(
    func: interval.FuncOp, source: mask.FuncOp | None = None, timeout_ms: int = TIMEOUT_MS
) -> list[Verdict]:
    """What becomes of the claims about an interval function and the mask that it was lowered from."""
    parameters = func.body.block.args[3:]
    return [decide(claim, parameters, timeout_ms) for claim in interval_claims(func, source)]


def prove_tiling(func: tiling.FuncOp, module: ModuleOp, timeout_ms: int = TIMEOUT_MS) -> list[Verdict]:
    """What becomes of the claims about a tiling function; the module holds the interval function that it asks."""
    parameters = func.body.block.args[3:]
    return [decide(claim, parameters, timeout_ms) for claim in tiling_claims(func, module)]


def prove_lowering(source: mask.FuncOp, lowered: ModuleOp, timeout_ms: int = TIMEOUT_MS) -> Iterator[Verdict]:
    """The verdicts on all functions that a module holds of one mask, one after the other.

    Raises LoweringError if there is no interval function of the mask's name.
    """
    ranges = [op for op in lowered.walk() if isinstance(op, interval.FuncOp) and op.sym_name == source.sym_name]
    if len(ranges) != 1:
        raise LoweringError(
            f"prove: found {len(ranges)} interval.func @{source.sym_name.data} to compare with the mask"
        )
    yield from prove_interval(ranges[0], source, timeout_ms)
    for op in lowered.walk():
        if isinstance(op, tiling.FuncOp) and _asks(op, source.sym_name.data):
            yield from prove_tiling(op, lowered, timeout_ms)


def _asks(func: tiling.FuncOp, name: str) -> bool:
    return any(
        isinstance(op, tiling.ClassifyOp) and op.callee.root_reference.data == name for op in func.body.block.ops
    )


# ---- the pass ----


@dataclass(frozen=True)
class ProvePass(ModulePass):
    """Prove every function of a module. Raises LoweringError with a counterexample if one is refuted.

    What was found stays in the IR, as the attribute `proof` of each function below the mask level: names of claims
    that are `proved` and `unknown`. Each question to the solver may take `timeout_ms`.
    """

    name = "prove"

    timeout_ms: int = TIMEOUT_MS

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        sources = {func.sym_name.data: func for func in op.walk() if isinstance(func, mask.FuncOp)}
        for func in list(op.walk()):
            match func:
                case interval.FuncOp():
                    source = sources.pop(func.sym_name.data, None)
                    self._report(func, prove_interval(func, source, self.timeout_ms))
                case tiling.FuncOp():
                    self._report(func, prove_tiling(func, _module_of(func), self.timeout_ms))
                case _:
                    pass
        if sources:
            raise LoweringError(f"prove: no interval.func @{next(iter(sources))} to compare the mask with")

    def _report(self, func: Operation, verdicts: list[Verdict]) -> None:
        for verdict in verdicts:
            if verdict.status == "refuted":
                raise LoweringError(f"prove: {verdict}")
        kinds = ("proved", "unknown")
        found = {kind: [StringAttr(v.claim.name) for v in verdicts if v.status == kind] for kind in kinds}
        func.attributes["proof"] = DictionaryAttr({kind: ArrayAttr(names) for kind, names in found.items() if names})


def _module_of(op: Operation) -> ModuleOp:
    parent = op.parent_op()
    while not isinstance(parent, ModuleOp):
        assert parent is not None
        parent = parent.parent_op()
    return parent


__all__ = ["TIMEOUT_MS", "Claim", "ProvePass", "Verdict", "prove_interval", "prove_lowering", "prove_tiling"]
