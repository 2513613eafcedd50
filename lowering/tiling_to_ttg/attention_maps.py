"""Boxes of rows that TMA copies between a tensor [B, H, S, D] and shared memory, in the order of a descriptor's tiles.

Tiles follow one another in the sequence, or are patches of an image in it (`lowering/patch_grid.py`): then a box of the
image has its axes in place of rows, and tokens before and behind the image are copied as rows. TMA reads what does not
exist as 0 and does not write it, so that each part has a tensor map of its own that ends where the part does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from xdsl.dialects.builtin import AnyFloat

from compilemask.lowering.tiling_to_tt.builder import Arg, Value
from compilemask.lowering.tiling_to_tt.patch_order import PatchOrder
from compilemask.lowering.tiling_to_ttg.attention_config import Patch, slice_rows
from compilemask.lowering.tiling_to_ttg.builder import GpuKernelBuilder, tensor_map
from compilemask.lowering.tiling_to_ttg.builder_memory import Barrier, Buffer, Descriptor

Coordinates = list[Value | int]


def map_arguments(name: str, patch: Patch | None) -> list[Arg]:
    """The tensor maps of a tensor.

    If tiles are patches, `name` serves the tokens behind the image, `name_before` [B, H, origin, D] those before it,
    and `name_image` the image: [B, H, height, width, D], or [B * H, frames, height, width, D] as TMA has five
    dimensions.
    """
    parts = (name,) if patch is None else (name, f"{name}_before", f"{name}_image")
    return [tensor_map(part) for part in parts]


class Box(NamedTuple):
    """Where some rows of a head lie, in the maps of a tensor."""

    rows: Coordinates
    """[batch, head, row, 0]: in the map of the sequence, or of the tokens before the image."""
    image: Coordinates
    """In the map of the image; empty if tiles are no patches."""
    is_before: Value | None = None
    is_behind: Value | None = None
    """i1: the rows lie before or behind the image."""


class TileOrder:
    """The order in which the positions of queries or keys are tiles: that of the sequence, or patched order."""

    def __init__(self, kb: GpuKernelBuilder, length: str, patch: Patch | None, *, of_keys: bool = False) -> None:
        """`length` is the argument that has the length in this order."""
        self.kb, self.patch, self._length, self._of_keys = kb, patch, length, of_keys

    @property
    def length(self) -> Value:
        """Of the sequence, in positions."""
        return self.kb.arg(self._length if self.patch is None else "length")

    def positions(self, first: Value, inside: Value) -> Value:
        """The positions in places first + inside of one tile; `length` or more where there is none."""
        if self.patch is None:
            return first + inside
        order, tile, offset = self._tile_of(first, self.patch)
        position, exists = order.positions(tile, offset + inside)
        return self.kb.where(exists, position, self.length)

    def is_ragged(self, first: Value, rows: int) -> Value:
        """i1: some of the rows of the tile in places from `first` on do not exist."""
        return first + rows > self.length if self.patch is None else self.existing(first, rows) < rows

    def existing(self, first: Value, rows: int) -> Value:
        """How many of the rows of that tile exist."""
        if self.patch is None:
            return self.kb.minimum(self.length - first, rows)
        order, tile, _ = self._tile_of(first, self.patch)
        return order.existing(tile)

    def box(self, batch: Value, head: Value, first: Value) -> Box:
        """The box of rows in places from `first` on: whole slices of a patch, if they lie in one."""
        if self.patch is None:
            return Box([batch, head, first, 0], [])
        kb, (order, tile, offset) = self.kb, self._tile_of(first, self.patch)
        is_before, is_behind = tile < order.before_tiles, tile >= order.first_behind
        row = kb.where(is_before, first, order.row_behind(tile) + offset)
        outermost, *others = order.corner(tile)
        corner = [outermost + kb.trunc_div(offset, slice_rows(self.patch)), *others]
        lead = [batch, head] if len(self.patch) == 2 else [batch * self._heads() + head]
        return Box([batch, head, row, 0], [*lead, *corner, 0], is_before, is_behind)

    def _tile_of(self, first: Value, patch: Patch) -> tuple[PatchOrder, Value, Value]:
        """The tile in which a place lies, and the place inside it."""
        order = PatchOrder(self.kb, patch)
        return order, self.kb.trunc_div(first, order.tile), self.kb.trunc_rem(first, order.tile)

    def _heads(self) -> Value:
        heads = self.kb.arg("heads")
        return self.kb.trunc_div(heads, self.kb.arg("group")) if self._of_keys else heads


class TileMap:
    """A tensor of which boxes of so many rows are copied: its maps, in kernel arguments of `map_arguments`."""

    def __init__(
        self, kb: GpuKernelBuilder, name: str, rows: int, head_dim: int, element: AnyFloat, patch: Patch | None
    ) -> None:
        shape = (1, 1, rows, head_dim)
        self.kb, self.sequence = kb, kb.descriptor(name, shape, element)
        self.bytes = self.sequence.bytes
        if patch is not None:
            lead = (1, 1) if len(patch) == 2 else (1,)
            self.box = (*lead, rows // slice_rows(patch), *patch[1:], head_dim)
            self.before = kb.descriptor(f"{name}_before", shape, element)
            self.image = kb.descriptor(f"{name}_image", self.box, element)

    def load(self, box: Box, buffer: Buffer, barrier: Barrier) -> None:
        """Start to copy a box to a buffer [1, 1, rows, D]; its bytes arrive at the barrier."""
        self._copy(box, buffer, lambda source, at, target: source.load(at, target, barrier))

    def store(self, box: Box, buffer: Buffer) -> None:
        """Start to copy a buffer [1, 1, rows, D] to a box."""
        self._copy(box, buffer, lambda target, at, source: target.store(at, source))

    def _copy(self, box: Box, buffer: Buffer, copy: Callable[[Descriptor, Coordinates, Buffer], None]) -> None:
        """Copy through the map of the part in which a box lies."""
        if box.is_before is None or box.is_behind is None:
            copy(self.sequence, box.rows, buffer)
            return
        kb = self.kb
        with kb.if_else(box.is_before | box.is_behind) as part:
            with part.then(), kb.if_else(box.is_before) as side:
                with side.then():
                    copy(self.before, box.rows, buffer)
                with side.otherwise():
                    copy(self.sequence, box.rows, buffer)
            with part.otherwise():
                copy(self.image, box.image, buffer.reshape(*self.box))
