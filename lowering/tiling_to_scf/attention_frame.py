"""What all parts of the attention function share: its arguments, its blocks and its scratch memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from compilemask.lowering.descriptor_layout import KEYS, PATTERN_ROW_WORDS
from compilemask.lowering.tiling_to_scf.builder import F32, I32, I64, INDEX, FunctionBuilder, Value, memref

TENSORS = ("query", "key", "value", "out", "lse")
SIZES = (
    *("items", "query_tiles", "query_heads", "group", "queries", "rows"),
    *("batch_masks", "head_masks", "order", "visits", "patterns"),
    *("query_batch", "query_head", "query_row"),
    *("key_batch", "key_head", "key_row"),
    *("value_batch", "value_head", "value_row"),
)
"""Integers that a call gets: how many query tiles there are in all batches and heads, the sizes of the problem, by how
many masks the next batch and head are further, the first words of the descriptor's sections, and strides in elements.
"""


def arguments() -> dict[str, str]:
    """Names and types of the function's arguments, in order.

    All memory is one-dimensional: tensors f32 (`out` and `lse` contiguous, rows of the others too), the descriptor,
    `SIZES`, and a counter that starts at 0, from which all calls that work on one attention draw their tiles.
    """
    floats = dict.fromkeys(TENSORS, memref(F32))
    integers = {"descriptor": memref(I32), "sizes": memref(I64, len(SIZES)), "counter": memref(I64, 1)}
    return {**floats, **integers, "scale": F32}


@dataclass(frozen=True)
class Blocks:
    """How much is computed in registers at once: products of `lanes` query rows with `keys` keys, and sums of `lanes`
    rows by `dims` of the head dimension."""

    lanes: int
    keys: int
    dims: int

    @classmethod
    def choose(cls, vector_bits: int) -> Blocks:
        """For a machine whose vectors have so many bits: accumulators fill half of its registers."""
        floats = vector_bits // 32
        if floats >= 16:
            return cls(2 * floats, 8, 8)
        return cls(2 * floats, 4, 4)


@dataclass(frozen=True)
class Frame:
    """The function being written."""

    fb: FunctionBuilder
    head_dim: int
    blocks: Blocks
    sizes: Mapping[str, Value]

    @classmethod
    def open(cls, name: str, head_dim: int, blocks: Blocks) -> Frame:
        """A function of which nothing is written yet but the loads of its sizes."""
        fb = FunctionBuilder(name, arguments())
        found = fb.arg("sizes")
        return cls(fb, head_dim, blocks, {n: fb.index(fb.load(found, fb.constant(i))) for i, n in enumerate(SIZES)})

    @cached_property
    def query(self) -> Value:
        """Scaled queries [D, lanes]."""
        return self.fb.scratch(self.head_dim * self.blocks.lanes, F32)

    @cached_property
    def sums(self) -> Value:
        """Weighted sums of values, [D, lanes]."""
        return self.fb.scratch(self.head_dim * self.blocks.lanes, F32)

    @cached_property
    def weights(self) -> Value:
        """Scores of a key tile and then their exponentials, [keys, lanes]."""
        return self.fb.scratch(KEYS * self.blocks.lanes, F32)

    @cached_property
    def words(self) -> Value:
        """A pattern's words of the lanes' rows, [4, lanes]."""
        return self.fb.scratch(PATTERN_ROW_WORDS * self.blocks.lanes, I32)

    @cached_property
    def read_keys(self) -> Value:
        """Keys that are read, and room for one more block."""
        return self.fb.scratch(KEYS + self.blocks.keys, INDEX)

    @cached_property
    def read_words(self) -> Value:
        """Where the words of those keys begin in `words`."""
        return self.fb.scratch(KEYS + self.blocks.keys, INDEX)

    @cached_property
    def read_bits(self) -> Value:
        """The bit of those keys in their word."""
        return self.fb.scratch(KEYS + self.blocks.keys, I32)

    def zeros(self) -> Value:
        """A zero in each lane."""
        return self.fb.constant(0.0, f"vector<{self.blocks.lanes}x{F32}>")
