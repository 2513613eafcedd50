"""The nonlinear facts that proofs are given, proved themselves; and what `interval.segment_of` promises."""

from __future__ import annotations

from typing import Any

import pytest

from compilemask.passes.smt import lemmas
from compilemask.passes.smt.world import Table, World

z3: Any = pytest.importorskip("z3")

a, b, c, d, e = z3.Ints("a b c d e")


def holds(claim: Any, *facts: Any) -> None:
    """Raises unless the claim follows from the facts."""
    solver = z3.Solver()
    solver.set("timeout", 10_000)
    solver.add(*facts, z3.Not(claim))
    assert solver.check() == z3.unsat, f"{solver.reason_unknown()}: {claim}"


def test_products_keep_order() -> None:
    """Each further lemma is this one and linear arithmetic."""
    holds(z3.Implies(z3.And(a >= 0, b >= 0), a * b >= 0))


def test_signs() -> None:
    holds(lemmas.signs(a, b, a * b))


def test_order() -> None:
    """With a <= b, (b - a) * factor >= 0; with a < b, (b - a - 1) * factor >= 0."""
    steps = [z3.Implies(z3.And(c >= 0, n >= 0), n * c >= 0) for n in (b - a, b - a - 1)]
    for step in steps:
        holds(step)
    holds(lemmas.order(a, a * c, b, b * c, c), *(z3.simplify(step, som=True) for step in steps))


def test_raster() -> None:
    """With y < height, (height - 1 - y) * width >= 0; with y >= height, (y - height) * width >= 0; so for 0."""
    y, x, height, width = a, b, c, d
    steps = [z3.Implies(z3.And(width >= 1, n >= 0), n * width >= 0) for n in (height - 1 - y, y - height, y, -1 - y)]
    for step in steps:
        holds(step)
    holds(lemmas.raster(y, x, height, width), *(z3.simplify(step, som=True) for step in steps))


def test_cells() -> None:
    line, first, last, pitch = a, b, c, d
    steps = [z3.Implies(z3.And(pitch >= 1, n >= 0), n * pitch >= 0) for n in (line - first, last - 1 - line)]
    for step in steps:
        holds(step)
    holds(lemmas.cells(line, first, last, pitch), *(z3.simplify(step, som=True) for step in steps))


def test_chord() -> None:
    """Squares are in the order of what is squared, as (x - y) * (x + y) >= 0 for x >= y >= 0."""
    distance, square, root = a, b, c
    steps = []
    for size in (distance, -distance):
        for small, large in ((size, root), (root + 1, size)):
            ordered = z3.And(small >= 0, large >= small)
            steps.append(z3.Implies(ordered, (large - small) * (large + small) >= 0))
    steps.append(distance * distance >= 0)
    for step in steps:
        holds(step)
    holds(lemmas.chord(distance, square, root), *(z3.simplify(step, som=True) for step in steps))


def test_disk() -> None:
    radius = c
    steps = [a * a >= 0, b * b >= 0]
    for leg in (a, -a, b, -b):
        steps.append(z3.Implies(z3.And(radius >= 0, leg >= radius), (leg - radius) * (leg + radius) >= 0))
    for step in steps:
        holds(step)
    holds(lemmas.disk(a, b, radius), *(z3.simplify(step, som=True) for step in steps))


def test_square_roots_are_unique() -> None:
    """So an unknown that fulfils the definition is the value that execution gives."""
    one, other, square = a, b, c
    defined = [lemmas.is_root(one, square), lemmas.is_root(other, square)]
    product = z3.simplify(z3.Implies(one > other, (one - other - 1) * (one + other + 1) >= 0), som=True)
    facts = [z3.Implies(other >= 0, product)]
    holds(z3.Implies(other >= 0, z3.Implies(one > other, (one - other - 1) * (one + other + 1) >= 0)))
    holds(z3.Not(one > other), *defined, *facts)


def test_segments_keep_their_promise() -> None:
    """0 <= begin <= position + 1 <= end, and neither falls as the position rises (dialects/interval.py)."""
    world = World()
    table = Table(world, "offsets")
    begin, end = table.bounds_of(a)
    next_begin, next_end = table.bounds_of(b)
    promise = z3.And(begin >= 0, begin <= a + 1, a + 1 <= end)
    holds(promise, *world.closed_facts(), a >= 0)
    holds(z3.And(begin <= next_begin, end <= next_end), *world.closed_facts(), a >= 0, a <= b)


def test_keys_of_one_segment_are_an_interval() -> None:
    """The definition of `mask.same` gives the interval that `interval.segment_of` says."""
    world = World()
    table = Table(world, "offsets")
    (on_q, q_segment), (on_kv, kv_segment) = table.segment_of(a), table.segment_of(b)
    begin, end = table.bounds_of(a)
    same = z3.And(on_q, on_kv, q_segment == kv_segment)
    holds(same == z3.And(begin <= b, b < end), *world.closed_facts(), a >= 0, b >= 0)


def test_quotients_are_unique() -> None:
    """As are those of division: a == b * d + c with 0 <= c < d determines b."""
    other = z3.Int("other")
    facts = [a == b * d + c, c >= 0, c < d, a == other * d + e, e >= 0, e < d]
    step = z3.Implies(z3.And(d >= 1, b > other), (b - other - 1) * d >= 0)
    holds(step)
    holds(z3.Not(b > other), *facts, z3.simplify(step, som=True))
