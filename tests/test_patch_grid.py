"""Patched order against a walk over the image, position by position."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
import torch

from compilemask.errors import DTypeError, ShapeError
from compilemask.lowering.patch_grid import MISSING, Patches, PatchGrid, patch_shapes

GRIDS = [
    PatchGrid(0, (16, 32), (8, 16), 512),
    PatchGrid(5, (19, 37), (8, 16), 5 + 19 * 37 + 30),
    PatchGrid(128, (7, 3), (16, 8), 128 + 21),
    PatchGrid(200, (20, 33), (12, 16), 200 + 660 + 1),
    PatchGrid(1, (5, 9, 17), (2, 8, 8), 1 + 765 + 130),
    PatchGrid(0, (4, 4, 8), (4, 4, 8), 128),
]


def walk(grid: PatchGrid) -> list[int]:
    """The positions in patched order."""
    found = [p if p < grid.origin else MISSING for p in range(-(-grid.origin // grid.tile) * grid.tile)]
    for patch in product(*(range(-(-size // step)) for size, step in zip(grid.sizes, grid.patch, strict=True))):
        for inside in product(*map(range, grid.patch)):
            at = [p * step + i for p, step, i in zip(patch, grid.patch, inside, strict=True)]
            exists = all(x < size for x, size in zip(at, grid.sizes, strict=True))
            found.append(grid.origin + int(np.ravel_multi_index(at, grid.sizes)) if exists else MISSING)
    return found + list(range(grid.origin + prod(grid.sizes), grid.length))


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_positions(grid: PatchGrid) -> None:
    assert grid.positions.tolist() == walk(grid)
    assert (len(grid.positions), grid.tiles) == (grid.total, -(-grid.total // grid.tile))
    assert grid.positions[grid.places].tolist() == list(range(grid.length))


@pytest.mark.parametrize(
    ("origin", "sizes", "patch", "length"),
    [
        (0, (16, 32), (8, 16), 511),
        (-1, (16, 32), (8, 16), 600),
        (0, (0, 32), (8, 16), 600),
        (0, (16, 32), (8, 16, 1), 600),
        (0, (512,), (128,), 600),
    ],
)
def test_what_fits_no_sequence(origin: int, sizes: tuple[int, ...], patch: tuple[int, ...], length: int) -> None:
    with pytest.raises(ShapeError):
        PatchGrid(origin, sizes, patch, length)
    with pytest.raises(ShapeError):
        Patches(origin, sizes, length, patch, patch)


@pytest.mark.parametrize("wrong", [None, "a", True, 1.5, torch.tensor(1.5), torch.tensor([1, 2]), np.ones(2)], ids=repr)
@pytest.mark.parametrize("axis", range(7))
def test_sizes_that_are_no_integers(axis: int, wrong: object) -> None:
    """Each argument alone, and then one number of each shape."""
    given: list[Any] = [0, (16, 32), 600, (8, 16), (8, 16)]
    if axis in (0, 2):
        given[axis] = wrong
    elif axis < 5:
        given[axis] = (8, wrong)
    else:
        given[axis - 2] = wrong
    with pytest.raises(DTypeError, match=r"expected (an integer|a tuple of integers)"):
        Patches(*given)


def test_sizes_in_lists_and_of_numpy() -> None:
    given: Any = (np.int64(0), [16, np.int32(32)], torch.tensor(600), [8, 16], torch.Size([8, 16]))
    assert Patches(*given) == Patches(0, (16, 32), 600, (8, 16), (8, 16))
    assert hash(Patches(*given)) == hash(Patches(0, (16, 32), 600, (8, 16), (8, 16)))


def test_shapes() -> None:
    assert list(patch_shapes(128, 2)) == [(1, 128), (2, 64), (4, 32), (8, 16), (16, 8)]
    assert (12, 16) in patch_shapes(192, 2)
    assert {prod(shape) for shape in patch_shapes(128, 3)} == {128}
    patches = Patches(5, (19, 37), 1000, (12, 16), (8, 16))
    assert (patches.queries.tile, patches.keys.tile) == (192, 128)
