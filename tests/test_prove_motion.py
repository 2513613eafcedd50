"""The table of passes/bound_motion.py, proved: how many key tiles one bound makes partial for one tile of queries.

A bound whose values over the rows of a query tile reach from `low` to `high` can make key tile n partial only if
128 * n < high and low < 128 * (n + 1): otherwise all keys of n lie on the same side of it in every row. Values are
clipped to [0, keys] first. What is proved for any `low <= high` holds for the rows that attain them.
"""

from __future__ import annotations

from typing import Any

import pytest

from compilemask.passes.bound_motion import TILE, Motion

z3: Any = pytest.importorskip("z3")

low, high, tile, offset, keys, n, m, p = z3.Ints("low high tile offset keys n m p")


def proved(claim: Any, *facts: Any) -> bool:
    """Whether the claim follows from the facts, for all integers."""
    solver = z3.Solver()
    solver.set("timeout", 10_000)
    solver.add(*facts, z3.Not(claim))
    answer = solver.check()
    assert answer != z3.unknown, solver.reason_unknown()
    return answer == z3.unsat


def crossed(number: Any, begin: Any = low, end: Any = high) -> Any:
    """Key tile `number` may be partial by a bound with values from `begin` to `end`."""
    return z3.And(TILE * number < end, begin < TILE * (number + 1))


def diagonal(distance: Any, rows: int = TILE) -> list[Any]:
    """The bound q + distance over the rows of tile `tile`, the last of which may have fewer."""
    return [low == rows * tile + distance, low <= high, high <= rows * tile + rows - 1 + distance]


def at_most(count: int, *facts: Any) -> bool:
    """Whether at most so many key tiles are crossed: no two lie `count` or more apart."""
    return proved(m - n < count, *facts, crossed(n), crossed(m))


def test_a_key_tile_that_is_not_crossed_is_not_partial() -> None:
    """A bound cuts no tile outside: for every row, all its keys are before the bound, or none is."""
    row, first, second = z3.Ints("row first second")
    inside = [low <= row, row <= high]
    inside += [z3.And(TILE * n <= key, key < TILE * (n + 1)) for key in (first, second)]
    assert proved((first < row) == (second < row), z3.Not(crossed(n)), *inside)
    other_row = z3.Int("other_row")
    same = (first < row) == (first < other_row)
    assert proved(same, z3.Not(crossed(n)), *inside, low <= other_row, other_row <= high)


def test_bound_of_zero_makes_no_tile_partial() -> None:
    assert proved(z3.Not(crossed(n)), low == 0, high == 0, n >= 0)


def test_constant_bound_makes_one_tile_partial() -> None:
    assert proved(n == m, low == high, crossed(n), crossed(m))


@pytest.mark.parametrize("remainder", [0, 1])
def test_aligned_diagonal_makes_one_tile_partial(remainder: int) -> None:
    assert proved(n == m, *diagonal(offset * TILE + remainder), crossed(n), crossed(m))


@pytest.mark.parametrize("remainder", [-1, 2, 64])
def test_other_diagonals_need_two(remainder: int) -> None:
    """The exception for 0 and 1 is as wide as it may be."""
    assert not proved(n == m, *diagonal(offset * TILE + remainder), crossed(n), crossed(m))


def test_diagonal_makes_at_most_two_tiles_partial() -> None:
    assert proved(z3.Not(z3.And(n < m, m < p)), *diagonal(offset), crossed(n), crossed(m), crossed(p))


@pytest.mark.parametrize("rows", [16, 48, 64, 128, 192, 256])
def test_diagonals_in_tiles_of_other_heights(rows: int) -> None:
    """What Motion counts for tiles of so many rows is enough, and one less is not."""
    motion = Motion(None, rows)  # type: ignore[arg-type]
    aligned = [diagonal(offset * motion.unit + remainder, rows) for remainder in (0, 1)]
    assert all(at_most(motion.on_aligned_diagonal, *facts) for facts in aligned)
    assert not all(at_most(motion.on_aligned_diagonal - 1, *facts) for facts in aligned)
    assert at_most(motion.on_diagonal, *diagonal(offset, rows))
    assert not at_most(motion.on_diagonal - 1, *diagonal(offset, rows))
    # Both remainders are one leaf: together they cross no more.
    low_and_high = [low == rows * tile + offset * motion.unit, low <= high, high <= low + rows]
    assert at_most(motion.on_aligned_diagonal, *low_and_high)


def test_shared_diagonals_are_one_leaf() -> None:
    """q + 128 c and q + 128 c + 1 cross the same tile, so that Motion may count them once."""
    one, other = diagonal(offset * TILE), z3.Ints("other_low other_high")
    shifted = [other[0] == low + 1, other[1] == high + 1]
    assert proved(n == m, *one, *shifted, crossed(n), crossed(m, *other))


def clipped(value: Any) -> Any:
    """A bound as it is read: inside [0, keys]. A last tile that keys end in is partial where the bound is `keys`."""
    return z3.If(value < 0, 0, z3.If(value > keys, keys, value))


def test_clipping_changes_no_number() -> None:
    """The same limits hold inside [0, keys]; a last tile that is not whole counts as crossed."""
    facts = [keys >= 0, low <= high]
    first, second, third = (crossed(number, clipped(low), clipped(high)) for number in (n, m, p))
    assert proved(n == m, *facts, low == high, first, second)
    for remainder in (0, 1):
        assert proved(n == m, *facts, *diagonal(offset * TILE + remainder), first, second)
    assert proved(z3.Not(z3.And(n < m, m < p)), *facts, *diagonal(offset), first, second, third)


def test_monotone_bound_makes_one_tile_partial_and_one_more_for_each_that_it_passes() -> None:
    """Summed over query tiles: at most one per query tile, and one per key tile in all.

    A rising bound goes from `low` to `high` here and starts the next query tile at `following` >= `high`. The tiles
    that it crosses are at most 1 + what floor(bound / 128) rises by until the next query tile starts; these rises sum
    up to at most the number of key tiles.
    """
    following = z3.Int("following")
    count = (high + TILE - 1) / TILE - low / TILE
    facts = [low >= 0, low <= high, high <= following, following <= keys]
    assert proved(crossed(n) == z3.And(low / TILE <= n, n < low / TILE + count), *facts, low < high)
    assert proved(count <= 1 + following / TILE - low / TILE, *facts)
    assert proved(following / TILE <= (keys + TILE - 1) / TILE, *facts)


def test_falling_bound_is_a_rising_one_read_backwards() -> None:
    """Rows in the other order: nothing above asked in which order the rows come, only that the tiles are in order."""
    last = z3.Int("last")
    assert proved((p <= m) == (last - m <= last - p))


def test_monotone_condition_switches_in_one_query_tile() -> None:
    """So a switch adds every key tile at most once. If a query tile sees both answers, no other one does."""
    rises = z3.Function("rises", z3.IntSort(), z3.BoolSort())
    rows = z3.Ints("a b c d")
    a, b, c, d = rows
    monotone = [z3.Implies(z3.And(x <= y, rises(x)), rises(y)) for x in rows for y in rows]
    tiles = [a / TILE == b / TILE, c / TILE == d / TILE]
    assert proved(a / TILE == c / TILE, *monotone, *tiles, z3.Not(rises(a)), rises(b), z3.Not(rises(c)), rises(d))


def test_extreme_has_the_value_of_one_of_its_leaves() -> None:
    """And between two rows it passes over values of the leaves' own ranges, extended to where they meet: tiles that
    the minimum crosses, one of two rising leaves crosses too.
    """
    first, second = z3.Ints("first_low first_high"), z3.Ints("second_low second_high")

    def least(x: Any, y: Any) -> Any:
        return z3.If(x <= y, x, y)

    begin, end = least(first[0], second[0]), least(first[1], second[1])
    facts = [first[0] <= first[1], second[0] <= second[1], crossed(n, begin, end)]
    assert proved(z3.Or(crossed(n, *first), crossed(n, *second)), *facts)
