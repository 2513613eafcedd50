"""How the Hopper kernel for gradients of keys and values is built: queries of a step, stages, what it sums."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import AnyFloat

from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_ttg.attention_config import (
    BARRIER_BYTES,
    ROWS,
    TILE,
    Patch,
    check_patches,
    check_supported,
)

HALF_BYTES, FLOAT_BYTES = 2, 4
SLOTS = 3
"""Buffers for the slopes of a step that warpgroups exchange: those of the steps that they may be at."""


@dataclass(frozen=True)
class HopperBackwardConfig:
    """One variant of the kernel, which computes the gradients of 128 keys with two warpgroups.

    A step visits `queries` rows, of which `stages` buffers run ahead. `sums_queries` adds to the gradient of queries in
    memory, in any order: two runs may differ in the last bits. Without it that gradient is left to another kernel.
    `hold_weights` and `pin_rounding` keep ptxas and LLVM from moving what should run beside a product, as
    `hold_softmax` and `pin_rounding` do in `HopperConfig`. With `query_patch` and `key_patch` tiles of queries and keys
    are such patches of an image (`lowering/patch_grid.py`).
    """

    queries: int = 64
    stages: int = 2
    sums_queries: bool = True
    hold_weights: bool = True
    pin_rounding: bool = True
    consumer_registers: int = 240
    producer_registers: int = 24
    query_patch: Patch | None = None
    key_patch: Patch | None = None

    def __post_init__(self) -> None:
        if self.queries not in (ROWS, TILE):
            raise LoweringError(f"{self.queries} queries a step; {ROWS} or {TILE} are possible")
        if self.stages < 2:
            raise LoweringError(f"{self.stages} stages; queries of at least two steps are in memory")
        check_patches(self.query_patch, self.key_patch, TILE)

    def shared_bytes(self, head_dim: int) -> int:
        """An upper bound on the shared memory of a program."""
        row = HALF_BYTES * head_dim
        rings = 2 * self.stages * self.queries * (row + FLOAT_BYTES)
        exchange = SLOTS * TILE * self.queries * HALF_BYTES
        return rings + 2 * TILE * row + (exchange if self.sums_queries else 0) + BARRIER_BYTES

    @classmethod
    def choose(
        cls,
        head_dim: int,
        element_type: AnyFloat,
        *,
        sums_queries: bool = True,
        query_patch: Patch | None = None,
        key_patch: Patch | None = None,
    ) -> HopperBackwardConfig:
        """The variant for a head dimension and element type, by measurement. Raises LoweringError if there is none."""
        check_supported(head_dim, element_type)
        if head_dim == 128:
            # With a third stage full tiles take 4 % less time, partial ones up to 6 % more.
            queries, stages = ROWS, 3 if query_patch is None else 2
        else:
            queries, stages = TILE, 2 if sums_queries else 4
        # Where a step visits 128 queries, what holds the weights takes 2 % more time, with patches 5 %.
        hold = queries == ROWS
        return cls(queries, stages, sums_queries, hold, query_patch=query_patch, key_patch=key_patch)
