"""The unknowns of one claim and what is known about them."""

from __future__ import annotations

from itertools import combinations, count

from compilemask.passes.smt import lemmas
from compilemask.passes.smt.library import Term, z3


class World:
    """Makes unknowns and collects facts about them, which hold whatever the unknowns are called to stand for.

    `narrow` holds further conditions for the search for counterexamples: they single out cases in which every unknown
    has the value that execution would give it.
    """

    def __init__(self) -> None:
        self.facts: list[Term] = []
        self.narrow: list[Term] = []
        self.tables: list[Table] = []
        self._numbers = count()
        self._quotients: dict[tuple[int, int], tuple[Term, Term, Term, Term]] = {}
        self._roots: dict[int, tuple[Term, Term]] = {}
        self._distances: list[Term] = []

    def know(self, *facts: Term) -> None:
        """Adds facts."""
        self.facts.extend(facts)

    def integer(self, name: str) -> Term:
        """A new unknown integer."""
        return z3().Int(f"{name}!{next(self._numbers)}")

    def flag(self, name: str) -> Term:
        """A new unknown truth value."""
        return z3().Bool(f"{name}!{next(self._numbers)}")

    def closed_facts(self) -> list[Term]:
        """All facts, with those that relate unknowns to each other."""
        chords = [lemmas.chord(d, square, root) for square, root in self._roots.values() for d in self._distances]
        ordered = [fact for table in self.tables for fact in table.order()]
        return [*self.facts, *chords, *ordered]

    # ---- functions that z3 lacks, or is weak at ----

    def quotient(self, a: Term, b: Term) -> tuple[Term, Term]:
        """floor(a / b) and a - b * floor(a / b), the same unknowns for the same terms; nothing is known for b = 0."""
        a, b = z3().simplify(z3().IntVal(0) + a), z3().simplify(z3().IntVal(0) + b)
        key = (a.get_id(), b.get_id())
        if key not in self._quotients:
            whole, rest = self.integer("quotient"), self.integer("rest")
            self._quotients[key] = (whole, rest, a, b)
            positive = z3().And(a == whole * b + rest, rest >= 0, rest < b)
            negative = z3().And(a == whole * b + rest, b < rest, rest <= 0)
            self.know(z3().Implies(b > 0, positive), z3().Implies(b < 0, negative))
        return self._quotients[key][:2]

    def truncated_quotient(self, a: Term, b: Term) -> Term:
        """a / b rounded towards zero."""
        whole, rest = self.quotient(a, b)
        return z3().If(z3().Or(rest == 0, (a < 0) == (b < 0)), whole, whole + 1)

    def root(self, square: Term) -> Term:
        """The integer square root; -1 for a negative number."""
        square = z3().simplify(z3().IntVal(0) + square)
        key = square.get_id()
        if key not in self._roots:
            root = self.integer("root")
            self._roots[key] = (square, root)
            self.know(lemmas.is_root(root, square))
        return self._roots[key][1]

    def distance(self, value: Term) -> None:
        """Notes a term whose square is compared with squares of roots."""
        self._distances.append(value)

    def opaque(self, name: str, operands: list[Term], boolean: bool = False) -> Term:
        """The value of a function about which only this is known: equal operands give equal results."""
        sorts = [operand.sort() for operand in operands]
        result = z3().BoolSort() if boolean else z3().IntSort()
        signature = ".".join(sort.name() for sort in sorts)
        return z3().Function(f"{name}.{signature}", *sorts, result)(*operands)


FAR = 2**30
"""Where a search ends that finds its value before or behind a table (`interval.search`)."""


class Table:
    """An unknown table of an unknown number of entries, at least one. `ascending` says that its entries never fall."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.length = world.integer(f"length of {name}")
        self.entries = z3().Function(f"{name}!entries", z3().IntSort(), z3().IntSort())
        self.segment = z3().Function(f"{name}!segment", z3().IntSort(), z3().IntSort())
        self.ascending = False
        self.indices: list[Term] = []
        """Where the table is looked at."""
        world.know(self.length >= 1, self.length <= FAR)  # no index is as far as the ends of a search
        world.tables.append(self)

    def read(self, index: Term) -> Term:
        """The entry at an index, or the nearest one."""
        last = self.length - 1
        inside = z3().If(index < 0, z3().IntVal(0), z3().If(index > last, last, index))
        return self._entry(inside)

    def _entry(self, index: Term) -> Term:
        self.indices.append(index)
        return self.entries(index)

    def segment_of(self, position: Term) -> tuple[Term, Term]:
        """Whether a position lies in a segment offsets[s] <= position < offsets[s + 1], and which: by definition."""
        self.ascending = True
        last = self.length - 1
        inside = z3().And(self._entry(z3().IntVal(0)) <= position, position < self._entry(last))
        s = self.segment(position)
        holds = z3().And(s >= 0, s < last, self._entry(s) <= position, position < self._entry(s + 1))
        self.world.know(z3().Implies(inside, holds))
        return inside, s

    def bounds_of(self, position: Term) -> tuple[Term, Term]:
        """Begin and end of the segment that holds a position, as `interval.segment_of` has them."""
        inside, s = self.segment_of(position)
        begin = self._entry(s)
        begin = z3().If(begin < 0, z3().IntVal(0), begin)
        return z3().If(inside, begin, position + 1), z3().If(inside, self._entry(s + 1), position + 1)

    def search(self, value: Term) -> Term:
        """The first index at which a read gives at least `value`, as `interval.search` has it."""
        first, last = self._entry(z3().IntVal(0)), self._entry(self.length - 1)
        found = z3().Function(f"{self.name}!search", z3().IntSort(), z3().IntSort())(value)
        before, there = self._entry(found - 1), self._entry(found)
        inside = z3().And(found >= 1, found < self.length, before < value, value <= there)
        self.world.know(
            z3().If(first >= value, found == -FAR, z3().If(last < value, found == FAR, inside)),
        )
        return found

    def order(self) -> list[Term]:
        """That entries ascend, at all indices that are looked at."""
        if not self.ascending:
            return []
        unique = list({index.get_id(): index for index in self.indices}.values())
        facts: list[Term] = []
        for i, j in combinations(unique, 2):
            inside = [i >= 0, i < self.length, j >= 0, j < self.length]
            facts.append(z3().Implies(z3().And(*inside, i <= j), self.entries(i) <= self.entries(j)))
            facts.append(z3().Implies(z3().And(*inside, j <= i), self.entries(j) <= self.entries(i)))
        return facts


__all__ = ["Table", "World"]
