"""Products of unknowns as a function of which a few laws are known: that it is one, signs, and order.

What follows from formulas in this reading follows from them, and linear arithmetic is decided fast and reliably; what
does not follow may still be true. Together with the instances of lemmas.py it is enough for rasters and disks.
"""

from __future__ import annotations

from functools import reduce
from itertools import combinations

from compilemask.passes.smt import lemmas
from compilemask.passes.smt.library import Term, z3


def without_products(terms: list[Term]) -> list[Term] | None:
    """The formulas in that reading; None if they hold no product of unknowns, and so stay what they are."""
    reader = _Reader()
    read = [reader.read(z3().simplify(term, som=True)) for term in terms]
    return [*read, *reader.laws()] if reader.products else None


class _Reader:
    def __init__(self) -> None:
        integer = z3().IntSort()
        self.product = z3().Function("product", integer, integer, integer)
        self.products: dict[int, tuple[Term, Term, Term]] = {}
        """Factors and product, by the product's number."""
        self._read: dict[int, tuple[Term, Term]] = {}

    def read(self, term: Term) -> Term:
        """A term without products."""
        key = term.get_id()
        if key not in self._read:  # the term is kept with its reading: a number is used again once its term is gone
            self._read[key] = (term, self._fresh(term))
        return self._read[key][1]

    def _fresh(self, term: Term) -> Term:
        children = [self.read(child) for child in term.children()]
        if not children:
            return term
        if not z3().is_mul(term):
            return term.decl()(*children)
        factors = [child for child in children if not z3().is_int_value(child)]
        numbers = [child for child in children if z3().is_int_value(child)]
        if len(factors) < 2:
            return term.decl()(*children)
        # One order of the factors, whatever order they are written in.
        whole = reduce(self._multiply, sorted(factors, key=lambda factor: factor.get_id()))
        return reduce(lambda a, b: a * b, numbers, whole)

    def _multiply(self, a: Term, b: Term) -> Term:
        whole = self.product(a, b)
        self.products[whole.get_id()] = (a, b, whole)
        return whole

    def laws(self) -> list[Term]:
        """Instances of laws of multiplication for the products that were found."""
        found = list(self.products.values())
        laws = [lemmas.signs(a, b, whole) for a, b, whole in found]
        for (a, b, ab), (c, d, cd) in combinations(found, 2):
            for common, one, other in ((a, b, d), (a, b, c), (b, a, d), (b, a, c)):
                if common.eq(d if other is c else c):
                    laws += [lemmas.order(one, ab, other, cd, common), lemmas.order(other, cd, one, ab, common)]
        return laws


__all__ = ["without_products"]
