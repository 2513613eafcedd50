"""Facts of nonlinear arithmetic that a solver needs help with.

Each function gives a formula that holds for all integers (tests/test_prove_lemmas.py proves them on unknowns). The
interpretation of a function adds the instances that its own terms need; with them, claims about rasters and disks
are linear in their products.
"""

from __future__ import annotations

from compilemask.passes.smt.library import Term, z3


def signs(a: Term, b: Term, product: Term) -> Term:
    """The sign of a product a * b."""
    same, other = (z3().Or(z3().And(a >= 0, x), z3().And(a <= 0, y)) for x, y in ((b >= 0, b <= 0), (b <= 0, b >= 0)))
    return z3().And(z3().Implies(same, product >= 0), z3().Implies(other, product <= 0))


def order(a: Term, a_times: Term, b: Term, b_times: Term, factor: Term) -> Term:
    """Products with a factor that is not negative are in the order of the other factors, and as far apart."""
    not_less = z3().Implies(a <= b, a_times <= b_times)
    apart = z3().Implies(a < b, a_times + factor <= b_times)
    return z3().Implies(factor >= 0, z3().And(not_less, apart))


def raster(y: Term, x: Term, height: Term, width: Term) -> Term:
    """A position y * width + x, x being a column, lies in a raster of `height` lines exactly if y is one of them."""
    offset = y * width + x
    inside = z3().And(offset >= 0, offset < height * width)
    return z3().Implies(z3().And(x >= 0, x < width), inside == z3().And(y >= 0, y < height))


def cells(line: Term, first: Term, last: Term, pitch: Term) -> Term:
    """The cells of lines are in the order of the lines."""
    behind = z3().Implies(first <= line, first * pitch <= line * pitch)
    before = z3().Implies(line < last, line * pitch + pitch <= last * pitch)
    return z3().Implies(pitch >= 1, z3().And(behind, before))


def is_root(root: Term, square: Term) -> Term:
    """What defines an integer square root: the largest integer whose square is at most `square`, or else -1."""
    some = z3().And(root >= 0, root * root <= square, square < root * root + 2 * root + 1)
    return z3().If(square < 0, root == -1, some)


def chord(distance: Term, square: Term, root: Term) -> Term:
    """A distance whose square is at most `square` is one of at most its root, in either direction."""
    near = z3().And(-root <= distance, distance <= root)
    return z3().Implies(is_root(root, square), (distance * distance <= square) == near)


def disk(a: Term, b: Term, radius: Term) -> Term:
    """Both legs of a triangle are shorter than its longest side."""
    inside = a * a + b * b < radius * radius
    legs = z3().And(-radius < a, a < radius, -radius < b, b < radius)
    return z3().Implies(z3().And(radius >= 0, inside), legs)


__all__ = ["cells", "chord", "disk", "is_root", "order", "raster", "signs"]
