"""Masks of a sequence with an image in it, and their descriptors in patched order, made from the dense masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compilemask.lowering.descriptor_layout import Layout
from compilemask.lowering.patch_grid import Patches, PatchGrid
from compilemask.runtime.cpu.build_cpu import RowsOfMask, build
from compilemask.runtime.cpu.row_intervals import IntervalSet
from compilemask.runtime.descriptor import Descriptor

Visible = NDArray[np.bool_]


def disk(patches: Patches, radius: int) -> Visible:
    """[S, S]: an image token sees the text and those within a radius, text sees everything."""
    image = patches.keys.end - patches.origin
    at = np.stack(np.unravel_index(np.arange(image), patches.sizes))
    near = ((at[:, :, None] - at[:, None, :]) ** 2).sum(axis=0) <= radius * radius
    visible = np.ones((patches.length, patches.length), dtype=np.bool_)
    visible[patches.origin : patches.origin + image, patches.origin : patches.origin + image] = near
    return visible


def scattered(patches: Patches, seed: int = 0) -> Visible:
    """[S, S]: a third of the pairs at random; some rows see nothing, and some keys are seen by none."""
    chance = np.random.default_rng(seed)
    visible = chance.random((patches.length, patches.length)) < 1 / 3
    visible[chance.random(patches.length) < 0.1] = False
    visible[:, chance.random(patches.length) < 0.1] = False
    return visible


def descriptor_of(visible: Visible, patches: Patches) -> Descriptor:
    """The descriptor in patched order of dense masks [B, H, S, S]."""
    rows, columns = patches.queries, patches.keys
    batch, heads = visible.shape[:2]
    capacity = batch * heads * rows.tiles * columns.tiles
    layout = Layout(batch, heads, rows.total, columns.total, rows.tile, capacity, capacity, shared=False)
    masks = [_rows_of(mask, rows, columns) for mask in visible.reshape(-1, *visible.shape[2:])]
    return build(layout, masks).check()


def _rows_of(visible: Visible, rows: PatchGrid, columns: PatchGrid) -> RowsOfMask:
    column, places = columns.positions, np.arange(rows.total)
    # A missing row may see what another row of its tile sees: here the last one before it.
    row = rows.positions[np.maximum.accumulate(np.where(rows.positions >= 0, places, 0))]
    patched = visible[np.ix_(row, column)] & (column >= 0)

    def predicate(q: NDArray[Any], kv: NDArray[Any]) -> Visible:
        exists = (q < rows.total) & (kv < columns.total)
        return exists & patched[np.where(exists, q, 0), np.where(exists, kv, 0)]

    everything = (np.zeros(rows.total, np.int64), np.full(rows.total, columns.total))
    outer = IntervalSet(rows.total, columns.total, [everything], [])
    return RowsOfMask(IntervalSet(rows.total, columns.total, [], []), outer, predicate)


def parts(x: torch.Tensor, grid: PatchGrid, storage: Callable[[torch.Tensor], NDArray[Any]]) -> list[NDArray[Any]]:
    """Views of a tensor [B, H, S, D] for the kernels' maps: all of it, the tokens before the image, the image."""
    memory = storage(x)
    batch, heads, _, dim = x.shape
    lead = (batch, heads) if len(grid.sizes) == 2 else (batch * heads,)
    image = memory[:, :, grid.origin : grid.end].reshape(*lead, *grid.sizes, dim)
    assert np.shares_memory(image, memory)
    return [memory, memory[:, :, : grid.origin], image]
