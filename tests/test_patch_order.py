"""Patched order as kernels compute it, executed in numpy, against `lowering/patch_grid.py`."""

from __future__ import annotations

import numpy as np
import pytest
from test_patch_grid import GRIDS

from compilemask.dialects.semantics.triton import run_kernel
from compilemask.lowering.patch_grid import MISSING, PatchGrid
from compilemask.lowering.tiling_to_tt.builder import Arg, KernelBuilder, i32, ptr
from compilemask.lowering.tiling_to_tt.patch_order import PatchOrder, geometry_arguments

ROWS = 64


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_positions(grid: PatchGrid) -> None:
    kb = KernelBuilder("positions", [Arg("out", ptr(i32)), *geometry_arguments(grid.patch)])
    tile, inside = kb.program_id(0), kb.program_id(1) * ROWS + kb.arange(0, ROWS)
    position, exists = PatchOrder(kb, grid.patch).positions(tile, inside)
    kb.store(kb.arg("out") + (tile * grid.tile + inside), kb.where(exists, position, MISSING))
    out = np.full(grid.tiles * grid.tile, -7, np.int32)
    programs = (grid.tiles, grid.tile // ROWS, 1)
    run_kernel(kb.finish(), programs, [out, grid.origin, grid.length, *grid.sizes], seed=0)
    assert out[: grid.total].tolist() == grid.positions.tolist()
    assert (out[grid.total :] == MISSING).all()


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_positions_of_tiles(grid: PatchGrid) -> None:
    kb = KernelBuilder("existing", [Arg("out", ptr(i32)), *geometry_arguments(grid.patch)])
    tile = kb.program_id(0)
    kb.store(kb.arg("out") + tile, PatchOrder(kb, grid.patch).existing(tile))
    out = np.full(grid.tiles, -7, np.int32)
    run_kernel(kb.finish(), (grid.tiles, 1, 1), [out, grid.origin, grid.length, *grid.sizes], seed=0)
    behind = np.full(grid.tiles * grid.tile - grid.total, MISSING)
    places = np.concatenate([grid.positions, behind]).reshape(grid.tiles, grid.tile)
    assert out.tolist() == (places != MISSING).sum(axis=1).tolist()


def test_no_patches_need_no_geometry() -> None:
    assert geometry_arguments(None) == []
