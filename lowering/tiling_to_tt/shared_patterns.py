"""Patterns that all tiles of a diagonal share (docs/descriptor.md): which slot a tile uses, and what a slot holds."""

from __future__ import annotations

from compilemask.lowering.descriptor_layout import KEYS, diagonal_steps, diagonal_unit
from compilemask.lowering.tiling_to_tt.builder import Value, i32
from compilemask.lowering.tiling_to_tt.descriptor_bits import keys_below
from compilemask.lowering.tiling_to_tt.descriptor_kernel import DescriptorKernel
from compilemask.lowering.tiling_to_tt.interval_values import Scope
from compilemask.lowering.tiling_to_tt.row_sets import MaskRows

FAR_ROW = 2**28
"""A row in whose reach neither end of any sequence lies."""
FAR_END = 2**29


class SharedPatterns:
    """The slots of the masks that a kernel builds patterns for."""

    def __init__(self, kernel: DescriptorKernel) -> None:
        self.kernel, self.kb = kernel, kernel.kb
        self.bounds = kernel.mask.moving_bounds
        self.unit = diagonal_unit(kernel.mask.rows)
        self.steps = diagonal_steps(kernel.mask.rows)
        self.cut = len(self.steps) * len(self.bounds)
        """The slot of the cut at the last key alone."""
        self.slots = 2 * self.cut + 1
        """Slots of one mask."""

    def _scope(self, mask: Value, q: Value) -> Scope:
        kernel = self.kernel
        return kernel.scope(mask, q, kernel.queries + FAR_END, kernel.keys + FAR_END)

    def diagonals(self, mask: Value) -> list[Value]:
        """The diagonals of the slots before the cut."""
        scope = self._scope(mask, self.kb.constant(FAR_ROW, i32))
        offsets = [scope[bound] - FAR_ROW for bound in self.bounds]
        return [(offset + step) >> (self.unit.bit_length() - 1) for offset in offsets for step in self.steps]

    def pattern(self, mask: Value, diagonals: list[Value], tile: Value, key_tile: Value) -> Value:
        """Numbers of the patterns that partial tiles use."""
        kb, kernel = self.kb, self.kernel
        slot = kb.full(key_tile.shape, -1, i32) if key_tile.shape else kb.constant(-1, i32)
        for number, diagonal in reversed(list(enumerate(diagonals))):
            slot = kb.where(self._units(key_tile, KEYS) - self._units(tile, kernel.mask.rows) == diagonal, number, slot)
        is_cut = ((kernel.keys & (KEYS - 1)) != 0) & (key_tile == kernel.key_tiles - 1)
        return mask * self.slots + kb.where(is_cut, self.cut + 1 + slot, slot)

    def _units(self, tile: Value, size: int) -> Value:
        """Where a tile of `size` positions starts."""
        return tile if size == self.unit else tile * (size // self.unit)

    def words(self, pattern: Value) -> Value:
        """The bits of a pattern: [lanes, 4]."""
        kb, kernel = self.kb, self.kernel
        mask = kb.trunc_div(pattern, self.slots)
        slot = pattern - mask * self.slots
        uncut = kb.where(slot > self.cut, slot - (self.cut + 1), slot)
        rows = self._scope(mask, kb.arange(FAR_ROW, FAR_ROW + kernel.mask.lanes))
        start = kb.constant(FAR_ROW, i32)
        for number, diagonal in enumerate(self.diagonals(mask)):
            start = kb.where(uncut == number, diagonal * self.unit + FAR_ROW, start)
        seen = MaskRows(rows, kernel.mask.intervals, kernel.keys + FAR_END).words(start)
        rest = kernel.keys & (KEYS - 1)
        limit = kb.where((slot >= self.cut) & (rest != 0), rest, KEYS)
        return kb.where(slot == self.cut, -1, seen) & keys_below(kb, limit, kb.arange(0, 4)[None, :])
