"""Tensors in patched order: what follows a descriptor whose tiles are patches, and loads tiles as runs of rows, gets
its inputs in that order and gives its results so. Kernels that load patches themselves need none of this.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import torch

from compilemask.lowering.patch_grid import PatchGrid
from compilemask.runtime.calls.gradient_inputs import GradientInputs, Gradients
from compilemask.runtime.descriptor import Descriptor

Backend: TypeAlias = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, Descriptor, float], tuple[torch.Tensor, torch.Tensor]
]


def attend_in_patched_order(
    attend: Backend,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    descriptor: Descriptor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse along a descriptor whose tiles are patches, by a backend that knows of none."""
    patches = descriptor.layout.patches
    assert patches is not None
    moved = to_places(query, patches.queries), to_places(key, patches.keys), to_places(value, patches.keys)
    out, lse = (to_positions(x, patches.queries) for x in attend(*moved, descriptor.of_places, scale))
    return out, lse


def gradients_in_patched_order(compute: Callable[[GradientInputs], Gradients], inputs: GradientInputs) -> Gradients:
    """The gradients along such a descriptor."""
    patches = inputs.descriptor.layout.patches
    assert patches is not None
    queries, keys = patches.queries, patches.keys
    moved = inputs._replace(
        grad_out=to_places(inputs.grad_out, queries),
        grad_lse=None if inputs.grad_lse is None else to_places(inputs.grad_lse, queries),
        query=to_places(inputs.query, queries),
        key=to_places(inputs.key, keys),
        value=to_places(inputs.value, keys),
        out=to_places(inputs.out, queries),
        lse=to_places(inputs.lse, queries),
        descriptor=inputs.descriptor.of_places,
    )
    query, key, value, tables = compute(moved)
    return Gradients(to_positions(query, queries), to_positions(key, keys), to_positions(value, keys), tables)


def to_places(x: torch.Tensor, grid: PatchGrid) -> torch.Tensor:
    """[..., S, D] or [..., S] with one more axis kept: rows along axis 2 in patched order, 0 where one is missing."""
    positions, exists = _positions(grid, x.device)
    moved = x.index_select(2, positions)
    return moved.masked_fill_(~exists.view(-1, *[1] * (x.dim() - 3)), 0)


def to_positions(x: torch.Tensor, grid: PatchGrid) -> torch.Tensor:
    """The inverse: rows along axis 2 in raster order, those of missing places dropped."""
    return x.index_select(2, _places(grid, x.device))


@lru_cache(maxsize=64)
def _positions(grid: PatchGrid, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    positions = torch.from_numpy(grid.positions).to(device)
    return positions.clamp(min=0), positions >= 0


@lru_cache(maxsize=64)
def _places(grid: PatchGrid, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(grid.places).to(device)
