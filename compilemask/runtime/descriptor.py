"""The descriptor as a value: one int32 tensor and the layout that says where its sections lie (docs/descriptor.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from compilemask.errors import DescriptorError, ShapeError
from compilemask.lowering.descriptor_layout import (
    HEADER_WORDS,
    KEYS,
    MAGIC,
    ORDER_WORDS,
    PATTERN_ROW_WORDS,
    STATUS_OVERFLOW,
    TILE_WORDS,
    VERSION,
    Layout,
    tile_cost,
)
from compilemask.lowering.patch_grid import PATCH_WORDS, Patches

HEADER_FIELDS: tuple[str, ...] = (
    "magic",
    "version",
    "batch",
    "heads",
    "queries",
    "keys",
    "rows",
    "keys_of_a_tile",
    "query_tiles",
    "key_tiles",
    "pair_capacity",
    "pattern_capacity",
    "pairs",
    "patterns",
    "status",
    "shared",
    *(f"patches{number}" for number in range(PATCH_WORDS)),
)
"""Names of the header's words, in order; the last ones are those of `Patches.words`."""


SIZES = 8
"""How many numbers say a layout without patches."""
NUMBERS = SIZES + PATCH_WORDS
"""How many numbers say a layout."""


class TileVisits(NamedTuple):
    """What one query tile visits: `partial` (key tile, pattern) pairs, `full` runs (first, last + 1) of key tiles."""

    tile: int
    partial: tuple[tuple[int, int], ...]
    full: tuple[tuple[int, int], ...]
    cost: int


@dataclass(frozen=True, eq=False)
class Descriptor:
    """Which tiles of keys each tile of query rows visits, for `layout.batch` x `layout.heads` masks.

    `buffer` is a contiguous int32 tensor of `layout.words` words on the device that will use it; the properties are
    views of it. `transposed` is the descriptor of the transposed masks, if gradients will be needed: which tiles of
    queries each tile of keys is seen by.
    """

    buffer: torch.Tensor
    layout: Layout
    transposed: Descriptor | None = None
    numbers: torch.Tensor | None = field(default=None, repr=False)
    """The layout as operators take it: int64 [19] on the CPU. Made from the layout if not given."""

    def __post_init__(self) -> None:
        if self.numbers is None:
            object.__setattr__(self, "numbers", _numbers_of(self.layout))
        _check_tensor(self.buffer)
        if self.transposed is not None:
            self._check_transposed(self.transposed)
        if self.buffer.dtype != torch.int32 or self.buffer.shape != (self.layout.words,):
            raise DescriptorError(
                f"a descriptor of this layout is an int32 tensor of shape ({self.layout.words},), "
                f"got {self.buffer.dtype} of shape {tuple(self.buffer.shape)}"
            )
        if not self.buffer.is_contiguous():
            raise DescriptorError("a descriptor must be contiguous")

    # ---- as operators take it ----

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Buffer and numbers; then those of the transpose, if there is one.

        Numbers in a tensor are data to torch.compile: it compiles nothing for other ones.
        """
        assert self.numbers is not None
        own = [self.buffer, self.numbers]
        return own if self.transposed is None else own + self.transposed.tensors

    @classmethod
    def of_tensors(cls, tensors: Sequence[torch.Tensor]) -> Descriptor:
        """The descriptor with these `tensors`."""
        buffer, numbers, *others = tensors
        transposed = cls.of_tensors(others) if others else None
        return cls(buffer, _layout_of_numbers(tuple(cast("list[int]", numbers.tolist()))), transposed, numbers)

    def _check_transposed(self, other: Descriptor) -> None:
        layout, expected = other.layout, self.layout
        sizes = (layout.batch, layout.heads, *reversed(layout.lengths))
        if sizes != (expected.batch, expected.heads, *expected.lengths) or other.device != self.device:
            raise DescriptorError(f"{other} is no transpose of a descriptor of {self}")

    @classmethod
    def from_buffer(cls, buffer: torch.Tensor) -> Descriptor:
        """The descriptor in an int32 tensor, e.g. one that was loaded from a file. Waits for the device.

        Raises DescriptorError if the header is not one of this version, or the size is not what the header says.
        """
        _check_tensor(buffer)
        if buffer.dtype != torch.int32 or buffer.dim() != 1 or buffer.numel() < HEADER_WORDS:
            raise DescriptorError(
                f"a descriptor is an int32 tensor of rank 1 with at least {HEADER_WORDS} words, "
                f"got {buffer.dtype} of shape {tuple(buffer.shape)}"
            )
        if buffer.device.type == "meta":
            raise DescriptorError("a descriptor on meta holds no words; expected one on a CPU or GPU")
        header = _header(buffer)
        for name, expected in (("magic", MAGIC), ("version", VERSION), ("keys_of_a_tile", KEYS)):
            if header[name] != expected:
                raise DescriptorError(
                    f"not a descriptor of version {VERSION}: {name} is {header[name]}, expected {expected}"
                )
        layout = _layout_of(header)
        if layout.words != buffer.numel():
            raise DescriptorError(
                f"a descriptor with this header has {layout.words} words, got {buffer.numel()}: damaged or cut off"
            )
        return cls(buffer.contiguous(), layout)

    # ---- sections ----

    @property
    def device(self) -> torch.device:
        """Where the descriptor lives."""
        return self.buffer.device

    @property
    def header(self) -> torch.Tensor:
        """int32 [32]."""
        return self.buffer[:HEADER_WORDS]

    @property
    def tiles(self) -> torch.Tensor:
        """int32 [B, H, NQ, 8], a record per query tile."""
        shape = (self.layout.batch, self.layout.heads, self.layout.query_tiles, TILE_WORDS)
        return self._section(self.layout.tiles, shape)

    @property
    def order(self) -> torch.Tensor:
        """int32 [B, H, NQ, 8], a record per query tile in launch order."""
        shape = (self.layout.batch, self.layout.heads, self.layout.query_tiles, ORDER_WORDS)
        return self._section(self.layout.order, shape)

    @property
    def visits(self) -> torch.Tensor:
        """int32 [V, 2], the pairs."""
        return self._section(self.layout.visits, (self.layout.pair_capacity, 2))

    @property
    def sources(self) -> torch.Tensor:
        """int32 [P, 2], (tile, key tile) of each pattern; [0, 2] if patterns are shared."""
        return self._section(self.layout.sources, (0 if self.layout.shared else self.layout.pattern_capacity, 2))

    @property
    def patterns(self) -> torch.Tensor:
        """int32 [P, R, 4], bits."""
        return self._section(self.layout.patterns, (self.layout.pattern_capacity, self.layout.rows, PATTERN_ROW_WORDS))

    @property
    def columns(self) -> torch.Tensor:
        """int32 [P, ceil(R / 64), 4], bits of the keys that some of each 64 rows of the pattern sees."""
        groups = self.layout.column_groups
        return self._section(self.layout.columns, (self.layout.pattern_capacity, groups, PATTERN_ROW_WORDS))

    def _section(self, start: int, shape: tuple[int, ...]) -> torch.Tensor:
        words = 1
        for size in shape:
            words *= size
        return self.buffer[start : start + words].view(shape)

    # ---- questions that wait for the device ----

    @property
    def _host(self) -> Descriptor:
        """A copy in host memory, made anew: replays of a CUDA graph build into the same buffer again."""
        return self if self.device.type == "cpu" else Descriptor(self.buffer.cpu(), self.layout)

    @property
    def of_places(self) -> Descriptor:
        """This descriptor for inputs that are in patched order themselves."""
        transposed = None if self.transposed is None else self.transposed.of_places
        return Descriptor(self.buffer, replace(self.layout, patches=None), transposed)

    def clone(self) -> Descriptor:
        """A copy in memory of its own, its transpose included: masks hand out the same descriptor again and again."""
        transposed = None if self.transposed is None else self.transposed.clone()
        return Descriptor(self.buffer.clone(), self.layout, transposed)

    def check(self) -> Descriptor:
        """This descriptor, if its build had room for everything, else DescriptorError; waits for the device."""
        header = _header(self.buffer)
        if header["magic"] != MAGIC or header["version"] != VERSION:
            raise DescriptorError(
                f"not a descriptor of version {VERSION}: its first words are {self.header[:2].tolist()}"
            )
        if header["status"] & STATUS_OVERFLOW:
            raise DescriptorError(
                f"the mask has more partial tiles or runs than were reserved ({self.layout.pair_capacity} pairs, "
                f"{self.layout.pattern_capacity} patterns)"
            )
        return self

    def tiles_of(self, batch: int = 0, head: int = 0) -> list[TileVisits]:
        """What each query tile of one mask visits, for tools and tests; waits for the device."""
        host = self._host
        records, visits = cast("list[list[int]]", host.tiles[batch, head].tolist()), host.visits
        result: list[TileVisits] = []
        for tile, (first, n_partial, n_runs, _, partial, _, full, _) in enumerate(records):
            n_partial = max(n_partial, 0)
            pairs = [(a, b) for a, b in cast("list[list[int]]", visits[first : first + n_partial + n_runs].tolist())]
            cost = tile_cost(partial, full)
            result.append(TileVisits(tile, tuple(pairs[:n_partial]), tuple(pairs[n_partial:]), cost))
        return result

    def defined(self) -> torch.Tensor:
        """A copy on the CPU in which every word that no reader uses is 0: equal masks have equal copies."""
        host = self._host
        copy = Descriptor(torch.zeros_like(host.buffer), self.layout)
        copy.buffer[: self.layout.order] = host.buffer[: self.layout.order]
        copy.order.copy_(host.order)
        pairs, patterns = (int(x) for x in host.header[12:14])
        pairs = min(pairs, self.layout.pair_capacity)
        copy.visits[:pairs] = host.visits[:pairs]
        if self.layout.shared:
            used = cast("torch.Tensor", torch.unique(_patterns_named(host))).long()
        else:
            used = torch.arange(min(patterns, self.layout.pattern_capacity))
            copy.sources[used] = host.sources[used]
        copy.patterns[used] = host.patterns[used]
        copy.columns[used] = host.columns[used]
        _clear_missing_rows(copy)
        return copy.buffer

    def __eq__(self, other: object) -> bool:
        """Whether all words that a reader uses are equal, wherever the two descriptors live."""
        if not isinstance(other, Descriptor):
            return NotImplemented
        return self.layout == other.layout and torch.equal(self.defined(), other.defined())

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        layout = self.layout
        return (
            f"Descriptor({layout.batch}x{layout.heads} masks, {layout.lengths[0]}x{layout.lengths[1]} positions, "
            f"{'shared' if layout.shared else 'stored'} patterns, {layout.words * 4 / 1024:.1f} KiB on {self.device})"
        )


def _numbers_of(layout: Layout) -> torch.Tensor:
    """A tensor of its own for each descriptor: torch.compile tells arguments that are one tensor from others."""
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            return _numbers_of(layout)
    return torch.from_numpy(_kept_numbers(layout).copy())


@lru_cache(maxsize=64)
def _kept_numbers(layout: Layout) -> NDArray[np.int64]:
    """No tensor: under a mode one of no content might be kept."""
    sizes = [layout.batch, layout.heads, layout.queries, layout.keys, layout.rows]
    numbers = [*sizes, layout.pair_capacity, layout.pattern_capacity, int(layout.shared)]
    numbers += [0] * PATCH_WORDS if layout.patches is None else layout.patches.words
    return np.array(numbers, dtype=np.int64)


@lru_cache(maxsize=1024)
def _layout_of_numbers(numbers: tuple[int, ...]) -> Layout:
    *sizes, shared = numbers[:SIZES]
    return Layout(*sizes, shared=bool(shared), patches=Patches.of_words(numbers[SIZES:]))


def _check_tensor(buffer: object) -> None:
    if not isinstance(buffer, torch.Tensor):
        raise DescriptorError(f"a descriptor is an int32 tensor, got a {type(buffer).__name__}")
    if buffer.is_nested or buffer.layout != torch.strided:
        kind = "nested" if buffer.is_nested else str(buffer.layout)
        raise DescriptorError(f"a descriptor is a dense int32 tensor, got a {kind} one")


def _header(buffer: torch.Tensor) -> dict[str, int]:
    """The header's words by name; waits for the device."""
    words = cast("list[int]", buffer[: len(HEADER_FIELDS)].tolist())
    return dict(zip(HEADER_FIELDS, words, strict=True))


def _layout_of(header: dict[str, int]) -> Layout:
    """The layout that a header describes. Raises DescriptorError if one of its numbers cannot be."""
    if header["shared"] not in (0, 1):
        raise DescriptorError(f"damaged descriptor: shared is {header['shared']}, expected 0 or 1")
    for name in ("batch", "heads", "queries", "keys", "rows", "pair_capacity", "pattern_capacity"):
        least = 1 if name == "rows" else 0
        if header[name] < least:
            raise DescriptorError(f"damaged descriptor: {name} is {header[name]}, expected at least {least}")
    return Layout(
        header["batch"],
        header["heads"],
        header["queries"],
        header["keys"],
        header["rows"],
        header["pair_capacity"],
        header["pattern_capacity"],
        bool(header["shared"]),
        _patches_of(header),
    )


def _patches_of(header: dict[str, int]) -> Patches | None:
    """The image that a header describes. Raises DescriptorError if it does not go with the lengths."""
    words = [header[f"patches{number}"] for number in range(PATCH_WORDS)]
    try:
        found = Patches.of_words(words)
    except ShapeError as error:
        raise DescriptorError(f"damaged descriptor: {error}") from None
    if found is not None:
        expected = (found.queries.total, found.keys.total, found.queries.tile, found.keys.tile)
        if (header["queries"], header["keys"], header["rows"], KEYS) != expected:
            raise DescriptorError(f"damaged descriptor: {found} has lengths and tiles {expected}")
    return found


def _patterns_named(descriptor: Descriptor) -> torch.Tensor:
    """The patterns that partial tiles name."""
    records = descriptor.tiles.reshape(-1, TILE_WORDS)
    first, count = records[:, 0].long(), records[:, 1].clamp(min=0).long()
    within = torch.arange(int(count.sum())) - torch.repeat_interleave(count.cumsum(0) - count, count)
    return descriptor.visits[torch.repeat_interleave(first, count) + within, 1]


def _clear_missing_rows(descriptor: Descriptor) -> None:
    """Zero the bits of rows behind the last query: their value is undefined (stored patterns)."""
    layout = descriptor.layout
    rest = layout.queries % layout.rows
    if rest and not layout.shared:
        last = descriptor.sources[:, 0] % layout.query_tiles == layout.query_tiles - 1
        descriptor.patterns[last, rest:] = 0
