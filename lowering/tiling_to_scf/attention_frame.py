"""What all parts of an attention function share: its arguments, its blocks and its scratch memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from compilemask.lowering.descriptor_layout import KEYS, PATTERN_ROW_WORDS
from compilemask.lowering.tiling_to_scf.builder import F32, I32, I64, INDEX, FunctionBuilder, Value, memref

_SIZES = (
    *("items", "tiles", "positions", "heads", "group", "queries", "rows"),
    *("batch_masks", "head_masks", "order", "records", "visits", "patterns"),
)
_FEWEST_LANES = 8


@dataclass(frozen=True)
class Signature:
    """Which tensors an attention function takes. All are f32 and all memory is one-dimensional."""

    name: str
    strided: tuple[str, ...]
    """Tensors [B, H, S, D] with rows whose numbers lie side by side."""
    per_query: tuple[str, ...]
    """Contiguous tensors [B, Hq, Sq]."""

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """Integers that a call gets.

        They are how many tiles of rows there are in all batches and heads and in one; how many rows a head has; how
        many heads a batch has, and query heads a key head; the number of queries; rows of a tile; by how many masks the
        next batch and query head are further; the first words of the descriptor's sections `order`, `tiles`, `visits`
        and `patterns`; and strides of tensors in elements.
        """
        return (*_SIZES, *(f"{name}_{step}" for name in self.strided for step in ("batch", "head", "row")))

    @property
    def arguments(self) -> dict[str, str]:
        """Names and types of the function's arguments, in order: tensors, the descriptor, the `sizes`, and a counter
        that starts at 0, from which all calls that work on one attention draw their tiles."""
        floats = dict.fromkeys((*self.strided, *self.per_query), memref(F32))
        integers = {"descriptor": memref(I32), "sizes": memref(I64, len(self.sizes)), "counter": memref(I64, 1)}
        return {**floats, **integers, "scale": F32}


@dataclass(frozen=True)
class Blocks:
    """How much is computed in registers at once: products of `lanes` rows with `keys` listed ones, and sums of `lanes`
    rows by `dims` of the head dimension."""

    lanes: int
    keys: int
    dims: int

    @classmethod
    def choose(cls, vector_bits: int, rows: int = KEYS) -> Blocks:
        """For a machine whose vectors have so many bits, and tiles of so many rows.

        Accumulators fill half of the machine's registers, with two vectors side by side. Few rows, as in decoding, get
        fewer lanes: others would be computed for nothing.
        """
        floats = vector_bits // 32
        lanes = 2 * floats
        while lanes // 2 >= max(rows, _FEWEST_LANES):
            lanes //= 2
        size = 8 if floats >= 16 or lanes <= floats else 4
        return cls(lanes, size, size)


@dataclass(frozen=True)
class Frame:
    """The function being written."""

    fb: FunctionBuilder
    head_dim: int
    blocks: Blocks
    sizes: Mapping[str, Value]
    _scratch: dict[str, Value] = field(default_factory=dict[str, Value])

    @classmethod
    def open(cls, signature: Signature, head_dim: int, blocks: Blocks) -> Frame:
        """A function of which nothing is written yet but the loads of its sizes."""
        fb = FunctionBuilder(signature.name, signature.arguments)
        given = enumerate(signature.sizes)
        return cls(fb, head_dim, blocks, {n: fb.index(fb.load(fb.arg("sizes"), fb.constant(i))) for i, n in given})

    def _memory(self, name: str, size: int, element: str) -> Value:
        if name not in self._scratch:
            self._scratch[name] = self.fb.scratch(size, element)
        return self._scratch[name]

    def rows_of(self, name: str) -> Value:
        """Memory [D, lanes] for rows of a tensor."""
        return self._memory(f"rows of {name}", self.head_dim * self.blocks.lanes, F32)

    def tile_of(self, name: str) -> Value:
        """Memory [keys, lanes] for a number per pair of a tile, by its name."""
        return self._memory(f"tile of {name}", KEYS * self.blocks.lanes, F32)

    def lanes_of(self, name: str) -> Value:
        """Memory [lanes] for a number per row, by its name."""
        return self._memory(f"lanes of {name}", self.blocks.lanes, F32)

    @property
    def words(self) -> Value:
        """A pattern's words of the lanes' rows, [4, lanes]."""
        return self._memory("words", PATTERN_ROW_WORDS * self.blocks.lanes, I32)

    @property
    def read_keys(self) -> Value:
        """Keys that are read, and room for one more block."""
        return self._memory("read keys", KEYS + self.blocks.keys, INDEX)

    @property
    def read_words(self) -> Value:
        """Where the words of those keys begin in `words`."""
        return self._memory("read words", KEYS + self.blocks.keys, INDEX)

    @property
    def read_bits(self) -> Value:
        """The bit of those keys in their word."""
        return self._memory("read bits", KEYS + self.blocks.keys, I32)

    def zeros(self) -> Value:
        """A zero in each lane."""
        return self.fb.constant(0.0, f"vector<{self.blocks.lanes}x{F32}>")

    def start(self, name: str, batch: Value, head: Value) -> Value:
        """Where the rows of one batch and head begin in a tensor."""
        return batch * self.sizes[f"{name}_batch"] + head * self.sizes[f"{name}_head"]

    def mask(self, batch: Value, query_head: Value) -> Value:
        """The number of the mask of one batch and query head."""
        return batch * self.sizes["batch_masks"] + query_head * self.sizes["head_masks"]

    def word(self, place: Value) -> Value:
        """A word of the descriptor."""
        return self.fb.index(self.fb.load(self.fb.arg("descriptor"), place))
