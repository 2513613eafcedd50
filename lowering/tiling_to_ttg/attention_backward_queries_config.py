"""How the Hopper kernel for gradients of queries is built: keys of a step, stages."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import AnyFloat

from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_ttg.attention_backward_config import HALF_BYTES
from compilemask.lowering.tiling_to_ttg.attention_config import BARRIER_BYTES, ROWS, TILE, check_supported


@dataclass(frozen=True)
class HopperQueriesConfig:
    """One variant of the kernel, which computes the gradients of 128 queries with two warpgroups.

    A step visits `keys` rows, of which `stages` buffers run ahead. With `scores_ahead` its scores are computed at the
    end of the step before, beside the last product. `pin_rounding` keeps LLVM from moving what should run beside a
    product, as in `HopperConfig`.
    """

    keys: int = 128
    stages: int = 2
    scores_ahead: bool = False
    pin_rounding: bool = True
    consumer_registers: int = 240
    producer_registers: int = 24

    def __post_init__(self) -> None:
        if self.keys not in (ROWS, TILE):
            raise LoweringError(f"{self.keys} keys a step; {ROWS} or {TILE} are possible")
        if self.stages < 2 or self.stages & (self.stages - 1):
            raise LoweringError(f"{self.stages} stages; a power of two from 2 is needed")

    def shared_bytes(self, head_dim: int) -> int:
        """An upper bound on the shared memory of a program."""
        row = HALF_BYTES * head_dim
        return 2 * self.stages * self.keys * row + 2 * TILE * row + BARRIER_BYTES

    @classmethod
    def choose(cls, head_dim: int, element_type: AnyFloat) -> HopperQueriesConfig:
        """The variant for a head dimension and element type. Raises LoweringError if there is none."""
        check_supported(head_dim, element_type)
        # 128 keys a step cost registers at D = 128: ptxas spills in the loop of masked steps.
        return cls(keys=ROWS, stages=4) if head_dim == 128 else cls(stages=4, scores_ahead=True)
