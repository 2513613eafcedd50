"""How the Hopper kernel for gradients of keys and values is built: queries of a step, stages, what it sums."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

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


class Ahead(Enum):
    """Of which steps scores are computed at the end of the step before, beside its last products, so that products
    follow each other without a gap.
    """

    NONE = "none"
    FULL = "full"
    """Those whose pairs are all visible: a masked step has few registers left."""
    ALL = "all"
    """Only where no gradient of queries is summed."""


@dataclass(frozen=True)
class HopperBackwardConfig:
    """One variant of the kernel, which computes the gradients of 128 keys with two warpgroups.

    A step visits `queries` rows, of which `stages` buffers run ahead. `sums_queries` adds to the gradient of queries in
    memory, in any order: two runs may differ in the last bits. Without it that gradient is left to another kernel.
    `scores_ahead` says of which steps the scores are computed in the step before. Of the same steps each adds to the
    gradient of queries what belongs to the step before: a warpgroup need not wait for the other one then, unless it is
    a step ahead, and one computes weights while the products of the other run. Where every step waits, both compute
    weights at the same time, and full steps take 3 % longer. With a third of `stages` they take 2 to 4 % less; but
    masked steps take up to a fifth longer then, as what they spill has no room beside it in the first cache.
    With `notes` the producer tells consumers what they would otherwise look up and keep: a masked step of
    `queries` 64 and D 128 spills 1 register then, or 2, instead of 8 to 12.
    `hold_weights` and `pin_rounding` keep ptxas and LLVM from moving what should run beside a product, as
    `hold_softmax` and `pin_rounding` do in `HopperConfig`. With `query_patch` and `key_patch` tiles of queries and keys
    are such patches of an image (`lowering/patch_grid.py`).
    """

    queries: int = 64
    stages: int = 2
    sums_queries: bool = True
    hold_weights: bool = True
    pin_rounding: bool = True
    scores_ahead: Ahead = Ahead.NONE
    notes: bool = False
    consumer_registers: int = 240
    producer_registers: int = 24
    query_patch: Patch | None = None
    key_patch: Patch | None = None

    def __post_init__(self) -> None:
        if self.queries not in (ROWS, TILE):
            raise LoweringError(f"{self.queries} queries a step; {ROWS} or {TILE} are possible")
        if self.stages < 2:
            raise LoweringError(f"{self.stages} stages; queries of at least two steps are in memory")
        if self.sums_queries and self.scores_ahead is Ahead.ALL:
            raise LoweringError("scores of all steps are computed ahead only where no gradient of queries is summed")
        check_patches(self.query_patch, self.key_patch, TILE)

    @property
    def lags(self) -> bool:
        """Whether steps of which scores are computed ahead add to the gradient of queries for the step before."""
        return self.sums_queries and self.scores_ahead is Ahead.FULL

    @property
    def slots(self) -> int:
        """Buffers for the slopes of a step that warpgroups exchange: those of the steps that they may be at."""
        return 3 if self.lags else 2

    def shared_bytes(self, head_dim: int) -> int:
        """An upper bound on the shared memory of a program."""
        row = HALF_BYTES * head_dim
        rings = 2 * self.stages * self.queries * (row + FLOAT_BYTES)
        exchange = self.slots * TILE * self.queries * HALF_BYTES
        return rings + 2 * TILE * row + (exchange if self.sums_queries else 0) + BARRIER_BYTES

    @classmethod
    def choose(cls, head_dim: int, element_type: AnyFloat, *, sums_queries: bool = True) -> HopperBackwardConfig:
        """The variant for a head dimension and element type. Raises LoweringError if there is none."""
        check_supported(head_dim, element_type)
        if head_dim == 128:
            return cls(sums_queries=sums_queries, scores_ahead=Ahead.FULL if sums_queries else Ahead.ALL)
        # 128 queries a step cost registers: with `hold_weights`, or without sums, ptxas spills in the loop of steps.
        if sums_queries:
            return cls(queries=TILE, hold_weights=False)
        return cls(stages=4, sums_queries=False, scores_ahead=Ahead.ALL)
