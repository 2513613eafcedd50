"""Tensor maps of tensors [B, H, S, D] in which an image lies, whose patches are tiles of a kernel.

The kernels for Hopper copy patches straight from raster order, through a map in which the image has its axes in place
of S (`lowering/tiling_to_ttg/attention_maps.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

import torch

from compilemask.lowering.descriptor_layout import Layout
from compilemask.lowering.patch_grid import PatchGrid
from compilemask.lowering.tiling_to_ttg.attention_config import Patch, slice_rows
from compilemask.runtime.gpu.tensor_map import TensorMaps, is_readable

IMAGE_AXES = 2
"""Of an image, as against a video. TMA has five dimensions: batches and heads of a video must be one."""


class PatchMaps(NamedTuple):
    """The maps of tensors that differ in their address alone, in the order of a kernel's arguments."""

    sequence: TensorMaps
    before: TensorMaps
    """Of the tokens before the image."""
    image: TensorMaps
    offset: int
    """Bytes from the first position to the image."""

    @classmethod
    def of(
        cls, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, rows: int, grid: PatchGrid
    ) -> PatchMaps:
        """For boxes of so many positions, of tensors of which `has_patch_maps` holds."""
        batch, heads, _, head_dim = shape
        view = _image_view(shape, stride, grid.sizes)
        assert view is not None
        sequence = TensorMaps(shape, stride, dtype, rows)
        # A map has no dimension of length 0; one that is never used may be any.
        before = TensorMaps((batch, heads, grid.origin, head_dim), stride, dtype, rows) if grid.origin else sequence
        box = (rows // slice_rows(grid.patch), *grid.patch[1:])
        return cls(sequence, before, TensorMaps(*view, dtype, box), grid.origin * stride[2] * dtype.itemsize)

    def at(self, address: int) -> tuple[bytes, bytes, bytes]:
        """The maps of the tensor at an address."""
        return self.sequence[address], self.before[address], self.image[address + self.offset]


def patch_shapes_of(layout: Layout) -> tuple[Patch | None, Patch | None]:
    """Query and key patch of a descriptor's tiles, if they are patches."""
    return (None, None) if layout.patches is None else (layout.patches.query_patch, layout.patches.key_patch)


def geometry_of(layout: Layout) -> tuple[int, ...]:
    """What a kernel must know of the image; nothing if tiles are no patches."""
    return () if layout.patches is None else layout.patches.queries.geometry


def has_patch_maps(shape: Sequence[int], stride: Sequence[int], size: int, sizes: Sequence[int]) -> bool:
    """Whether TMA can read patches of an image of `sizes` in tensors that it can read, of elements of so many bytes."""
    view = _image_view(shape, stride, sizes)
    return view is not None and is_readable(*view, size)


def _image_view(
    shape: Sequence[int], stride: Sequence[int], sizes: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Shape and strides of the image: [B, H, height, width, D], or [B * H, frames, height, width, D] if that exists."""
    lead, lead_stride = tuple(shape[:2]), tuple(stride[:2])
    if len(sizes) > IMAGE_AXES:
        if 1 not in lead and stride[0] != shape[1] * stride[1]:
            return None
        lead, lead_stride = (shape[0] * shape[1],), (stride[0] if shape[1] == 1 else stride[1],)
    steps = list(accumulate(reversed(sizes[1:]), mul, initial=stride[2]))
    return (*lead, *sizes, shape[3]), (*lead_stride, *reversed(steps), stride[3])
