"""Claims about functions, and their proof or refutation for all lengths and parameters."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from xdsl.ir import SSAValue

from compilemask.passes.smt.call import Call, Counterexample, counterexample
from compilemask.passes.smt.library import Term, z3
from compilemask.passes.smt.linear import without_products
from compilemask.passes.smt.world import World

Status = Literal["proved", "refuted", "unknown"]


MOST_OFFERS = 24
"""Counterexamples of the solver that are executed before a claim counts as not refuted."""


@dataclass(frozen=True)
class Claim:
    """Something that holds for every pair of every call. `holds` states it; `violated` executes one call and looks."""

    function: str
    name: str
    meaning: str
    holds: Callable[[World, Call], Term]
    violated: Callable[[Counterexample], bool]


@dataclass(frozen=True)
class Verdict:
    """What became of a claim. A counterexample has been executed; `reason` says why nothing is known."""

    claim: Claim
    status: Status
    milliseconds: float
    counterexample: Counterexample | None = None
    reason: str = ""

    def __str__(self) -> str:
        detail = f": {self.counterexample}" if self.counterexample else f": {self.reason}" if self.reason else ""
        return f"@{self.claim.function}, {self.claim.name} ({self.claim.meaning}): {self.status}{detail}"


def decide(claim: Claim, parameters: Sequence[SSAValue], timeout_ms: int) -> Verdict:
    """Prove or refute a claim about functions with these mask parameters. Each question to the solver may take
    `timeout_ms`; there are a handful at most.
    """
    started = time.perf_counter()

    def verdict(status: Status, found: Counterexample | None = None, reason: str = "") -> Verdict:
        return Verdict(claim, status, (time.perf_counter() - started) * 1e3, found, reason)

    world = World()
    call = Call.unknown(world, parameters)
    goal = claim.holds(world, call)
    facts = world.closed_facts()
    refutation = [*facts, z3().Not(goal)]
    linear = without_products(refutation)
    if _ask(refutation if linear is None else linear, timeout_ms)[0] == "unsat":
        return verdict("proved")
    # Small numbers first: they are easier to find where there are products, and to read.
    search = [*refutation, *world.narrow]
    for conditions in ([*search, *call.small()], search):
        if (found := _counterexample(claim, call, conditions, timeout_ms)) is not None:
            return verdict("refuted", found)
    answer, _, reason = _ask(refutation, timeout_ms)
    if answer == "unsat" or (answer == "unknown" and _in_pieces(goal, facts, timeout_ms)):
        return verdict("proved")
    if answer == "sat":
        reason = "the solver's counterexample is none when it is executed"
    return verdict("unknown", reason=reason or "no answer in time")


def _counterexample(claim: Claim, call: Call, conditions: list[Term], timeout_ms: int) -> Counterexample | None:
    """Numbers that violate the claim when it is executed.

    What the solver offers may be none, since it knows searches and products by some of their laws only; it is then
    asked for another pair of positions.
    """
    conditions = list(conditions)
    for _ in range(MOST_OFFERS):
        _, model, _ = _ask(conditions, timeout_ms)
        found = None if model is None else counterexample(call, model)
        if found is None or claim.violated(found):
            return found
        conditions.append(z3().Not(z3().And(call.q == found.q, call.kv == found.kv)))
    return None


def _in_pieces(goal: Term, facts: list[Term], timeout_ms: int) -> bool:
    """Whether each piece of a goal can be proved by itself: the parts of a conjunction, both ways of an equivalence."""
    pieces = [goal]
    if z3().is_and(goal):
        pieces = goal.children()
    elif z3().is_eq(goal) and z3().is_bool(goal.arg(0)):
        a, b = goal.children()
        pieces = [z3().Implies(a, b), z3().Implies(b, a)]
    if len(pieces) < 2:
        return False
    return all(_ask([*facts, z3().Not(piece)], timeout_ms)[0] == "unsat" for piece in pieces)


def _ask(conditions: list[Term], timeout_ms: int) -> tuple[str, Any, str]:
    """ "unsat", "sat" or "unknown"; a model; why nothing is known.

    Each question has a context of its own, so that an answer does not depend on what was asked before.
    """
    own = z3().Context()
    solver = z3().Solver(ctx=own)
    solver.set("timeout", timeout_ms)
    solver.add(*(condition.translate(own) for condition in conditions))
    answer = str(solver.check())
    model = solver.model().translate(z3().main_ctx()) if answer == "sat" else None
    return answer, model, solver.reason_unknown() if answer == "unknown" else ""


__all__ = ["Claim", "Status", "Verdict", "decide"]
