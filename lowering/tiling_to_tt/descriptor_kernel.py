"""What the kernels that build a descriptor have in common: their arguments, and where the sections lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import SSAValue

from compilemask.dialects import interval, tiling
from compilemask.lowering.descriptor_layout import KEYS, TILE_WORDS
from compilemask.lowering.interval_to_tiling import NormalForm, moving_bounds, normal_form
from compilemask.lowering.tiling_to_tt.builder import Arg, KernelBuilder, Value, i32, ptr
from compilemask.lowering.tiling_to_tt.interval_values import Binding, Scope, Table
from compilemask.passes.interval_patch import extra_arguments

SECTIONS = ("tiles", "order", "visits", "sources", "patterns", "columns")
SHAPE = ("batch", "heads", "queries", "keys")
CAPACITIES = ("pair_capacity", "pattern_capacity")


@dataclass(frozen=True)
class MaskFunctions:
    """A mask as its interval function and its tiling function."""

    intervals: interval.FuncOp
    tiles: tiling.FuncOp

    @property
    def form(self) -> NormalForm:
        """The parts of the set."""
        return normal_form(self.intervals)

    @property
    def rows(self) -> int:
        """R, the rows of a query tile."""
        return self.tiles.shape.rows.data

    @property
    def lanes(self) -> int:
        """R or the next power of two, how many rows tensors have: those behind R do not exist."""
        return 1 << (self.rows - 1).bit_length()

    @property
    def shared(self) -> bool:
        """Whether patterns are shared along diagonals."""
        return self.tiles.patterns == tiling.Patterns.SHARED

    @property
    def sees_own_positions(self) -> bool:
        """Whether the place of a row is that of the key at the same position."""
        patches = self.tiles.patches
        return patches is None or patches.query_shape == patches.key_shape

    @property
    def moving_bounds(self) -> list[SSAValue]:
        """The bounds that number shared patterns."""
        return moving_bounds(self.intervals)


class DescriptorKernel:
    """A kernel under construction with the arguments of all descriptor kernels.

    They are the descriptor, B, H, Sq, Skv, the first words of the sections, V, P, then per mask parameter an i32, or
    pointer, length, batch stride and head stride (in entries) of a table.
    """

    def __init__(self, name: str, mask: MaskFunctions) -> None:
        self.mask = mask
        arguments = [Arg("descriptor", ptr(i32), divisibility=16)]
        arguments += [Arg(key, i32) for key in SHAPE]
        # Sections start at multiples of 32 words; knowing it, Triton stores 16 bytes at a time.
        arguments += [Arg(key, i32, divisibility=16) for key in SECTIONS]
        arguments += [Arg(key, i32) for key in CAPACITIES]
        self._parameters = mask.intervals.body.block.args[3:]
        for index, parameter in enumerate(self._parameters):
            arguments += _parameter_arguments(f"parameter{index}", parameter)
        self.kb = KernelBuilder(f"{mask.intervals.sym_name.data}_{name}", arguments)
        kb = self.kb
        self.descriptor = kb.arg("descriptor")
        self.heads, self.queries, self.keys = kb.arg("heads"), kb.arg("queries"), kb.arg("keys")
        self.query_tiles = self._tiles(self.queries, mask.rows).named("query_tiles")
        self.key_tiles = self._tiles(self.keys, KEYS).named("key_tiles")

    def patch_words(self) -> list[Value | int]:
        """The header's words that say an image and its patches; none if tiles are not patches."""
        patches = self.mask.tiles.patches
        if patches is None:
            return []
        shapes = [[0] * (3 - len(shape)) + list(shape) for shape in (patches.query_shape, patches.key_shape)]
        origin, *sizes, length = self._image_arguments()
        return [origin, *[0] * (3 - len(sizes)), *sizes, length, *shapes[0], *shapes[1]]

    def count_keys(self) -> Value:
        """How many keys there are, missing ones not included."""
        return self.keys if self.mask.tiles.patches is None else self._image_arguments()[-1]

    def _image_arguments(self) -> list[Value]:
        """The last parameters in patched order: origin, sizes, length."""
        patches, count = self.mask.tiles.patches, len(self._parameters)
        assert patches is not None
        extra = len(extra_arguments(len(patches.key_shape)))
        return [self.kb.arg(f"parameter{index}") for index in range(count - extra, count)]

    def _tiles(self, positions: Value, size: int) -> Value:
        """positions / size rounded up."""
        if size & (size - 1):
            return self.kb.trunc_div(positions + (size - 1), size)
        return (positions + (size - 1)) >> (size.bit_length() - 1)

    def section(self, name: str) -> Value:
        """Pointer to the first word of a section."""
        return self.descriptor + self.kb.arg(name)

    def record(self, tile: Value) -> Value:
        """Pointers to the records of query tiles t."""
        return self.section("tiles") + tile * TILE_WORDS

    def scope(self, mask: Value, q: Value, queries: Value, keys: Value) -> Scope:
        """The interval function's values for rows q of mask g."""
        b = self.kb.trunc_div(mask, self.heads)
        h = mask - b * self.heads
        block = self.mask.intervals.body.block
        bindings: dict[SSAValue, Binding] = dict(zip(block.args[:3], (q, queries, keys), strict=True))
        for index, parameter in enumerate(self._parameters):
            bindings[parameter] = self._parameter(f"parameter{index}", parameter, b, h)
        scope = Scope(self.kb, block.args[0], bindings, rows=q.shape[0] if q.shape else 1)
        scope.run(block)
        return scope

    def _parameter(self, name: str, parameter: SSAValue, b: Value, h: Value) -> Binding:
        arg = self.kb.arg
        if not isinstance(parameter.type, MemRefType):
            return arg(name)
        offset = b * arg(f"{name}_batch_stride") + h * arg(f"{name}_head_stride")
        return Table(arg(name) + offset, arg(f"{name}_length"))

    def store_lanes(self, pointer: Value, words: Mapping[int, Value | int], count: int) -> None:
        """Store `count` consecutive words, 0 where none is given."""
        lane = self.kb.arange(0, count)
        result = self.kb.full((count,), 0, i32)
        for index, word in words.items():
            result = self.kb.where(lane == index, word, result)
        self.kb.store(pointer + lane, result)


def _parameter_arguments(name: str, parameter: SSAValue) -> list[Arg]:
    if not isinstance(parameter.type, MemRefType):
        return [Arg(name, i32)]
    return [Arg(name, ptr(i32)), *(Arg(f"{name}_{part}", i32) for part in ("length", "batch_stride", "head_stride"))]


@dataclass(frozen=True)
class QueryTile:
    """The rows of one query tile. Rows behind its last query repeat that, and `exists` is false for them."""

    tile: Value
    mask: Value
    q: Value
    exists: Value
    count: Value
    """How many rows exist."""

    @classmethod
    def of(cls, kernel: DescriptorKernel, tile: Value, mask: Value) -> QueryTile:
        """Query tile m of mask g."""
        kb, rows, lanes = kernel.kb, kernel.mask.rows, kernel.mask.lanes
        row = tile * rows + kb.arange(0, lanes)
        count = kb.minimum(kernel.queries - tile * rows, rows)
        end = kernel.queries if lanes == rows else tile * rows + count
        return cls(tile, mask, kb.minimum(row, end - 1), row < end, count)
