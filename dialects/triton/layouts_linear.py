"""Layouts as bases: where each bit of a register, lane and warp index leads, and what a reshape makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.utils.exceptions import VerifyException

from compilemask.dialects.triton.layouts import WGMMA_ROWS, LinearLayout, NvidiaMmaLayout, RegisterLayout

_LANES = ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0))
"""Lanes of an accumulator: four side by side with two columns each, eight rows (PTX, wgmma's D fragment)."""


def linear_form(layout: RegisterLayout, shape: Sequence[int]) -> LinearLayout:
    """A layout of tensors of a shape as bases: a linear layout, or a wgmma accumulator of one row of instructions.

    Raises VerifyException for others.
    """
    if isinstance(layout, LinearLayout):
        return layout
    if not isinstance(layout, NvidiaMmaLayout) or layout.version_major.data != 3 or len(shape) != 2:
        raise VerifyException(f"the bases of {layout} are not known; convert the tensor to a linear layout first")
    warps = [count.data for count in layout.warps_per_cta]
    if warps[1] != 1 or shape[0] != WGMMA_ROWS * warps[0]:
        raise VerifyException(f"the bases of {layout} are known for {WGMMA_ROWS * warps[0]} rows, not {shape[0]}")
    columns = [(0, 1 << bit) for bit in range(3, shape[1].bit_length() - 1)]
    rows = [(WGMMA_ROWS << bit, 0) for bit in range(warps[0].bit_length() - 1)]
    return LinearLayout.of([(0, 1), (8, 0), *columns], _LANES, rows)


def reshaped(layout: RegisterLayout, shape: Sequence[int], target: Sequence[int]) -> LinearLayout:
    """The layout after a reshape in row-major order: every thread keeps its elements."""
    linear = linear_form(layout, shape)
    if prod(shape) != prod(target):
        raise VerifyException(f"{tuple(shape)} and {tuple(target)} differ in the number of elements")
    bits = (
        [_unravel(_ravel([size.data for size in basis], shape), target) for basis in bases]
        for bases in (linear.register, linear.lane, linear.warp)
    )
    return LinearLayout.of(*bits)


def permuted(layout: RegisterLayout, order: Sequence[int]) -> LinearLayout:
    """The layout after a permutation of dimensions: every thread keeps its elements. Takes a linear layout."""
    if not isinstance(layout, LinearLayout):
        raise VerifyException(f"the bases of {layout} are not known; convert the tensor to a linear layout first")
    bits = (
        [[basis.data[dim].data for dim in order] for basis in bases]
        for bases in (layout.register, layout.lane, layout.warp)
    )
    return LinearLayout.of(*bits)


def _ravel(index: Sequence[int], shape: Sequence[int]) -> int:
    offset = 0
    for position, size in zip(index, shape, strict=True):
        offset = offset * size + position
    return offset


def _unravel(offset: int, shape: Sequence[int]) -> list[int]:
    index: list[int] = []
    for size in reversed(shape):
        offset, position = divmod(offset, size)
        index.append(position)
    return index[::-1]
