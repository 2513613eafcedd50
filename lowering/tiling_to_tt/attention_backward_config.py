"""How the backward kernels are cut into blocks and scheduled, by head dimension, element type and target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.dialects.builtin import AnyFloat, Float32Type

from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt.attention_config import TILE, padded_head_dim, target_family

Side = Literal["keys", "queries"]
"""Whose gradients a kernel computes: those of keys and values, or that of queries."""


@dataclass(frozen=True)
class BackwardConfig:
    """One variant of a kernel: a program computes the gradient of `rows` rows of its side, a descriptor tile or a part
    of it, and visits `width` positions of the other side at a time.

    `aligned` promises what it promises in `AttentionConfig`, of all tensors; `approximate` means what it means there.
    """

    rows: int = 64
    width: int = 64
    num_warps: int = 4
    num_stages: int = 1
    aligned: bool = True
    approximate: bool = False

    def __post_init__(self) -> None:
        for name, size in (("rows", self.rows), ("width", self.width)):
            if not 16 <= size <= TILE or size & (size - 1):
                raise LoweringError(f"{name} is {size}; it must be a power of two from 16 to {TILE}")
        if self.num_warps < 1 or self.num_warps & (self.num_warps - 1) or self.num_stages < 1:
            raise LoweringError(f"{self.num_warps} warps (a power of two) and {self.num_stages} stages (1 or more)")

    @property
    def programs_per_tile(self) -> int:
        """Programs that share one tile of the descriptor."""
        return TILE // self.rows

    @classmethod
    def choose(
        cls, side: Side, head_dim: int, element_type: AnyFloat, target: str, *, aligned: bool = True
    ) -> BackwardConfig:
        """The variant for a target such as `cuda:90` or `hip:gfx942`. Raises LoweringError for an unknown one."""
        family = target_family(target)
        is_float32 = isinstance(element_type, Float32Type)
        table = _FLOAT32 if is_float32 else _HALF[family]
        approximate = target.startswith("cuda:") and not is_float32
        return cls(*table[side][max(padded_head_dim(head_dim), 64)], aligned=aligned, approximate=approximate)


_Table = dict[Side, dict[int, tuple[int, int, int, int]]]
"""By side and padded D (64 for less): rows, width, num_warps, num_stages."""

# Bounds: as for the forward kernel. Two products of a step are alive beside two sums: by ptxas, half-precision variants
# of keys spill up to 280 bytes a thread for D <= 128, those of queries on sm_80 to sm_100 none.
_HALF: dict[str, _Table] = {
    "sm_80": {
        "keys": {64: (128, 64, 8, 2), 128: (128, 32, 8, 2), 256: (64, 32, 8, 1)},
        "queries": {64: (128, 64, 8, 2), 128: (128, 32, 8, 2), 256: (64, 32, 8, 1)},
    },
    "sm_90": {
        "keys": {64: (128, 64, 8, 2), 128: (128, 64, 8, 2), 256: (64, 32, 8, 1)},
        "queries": {64: (128, 64, 8, 2), 128: (128, 64, 8, 2), 256: (64, 32, 8, 1)},
    },
    "sm_100": {
        "keys": {64: (128, 64, 8, 2), 128: (128, 64, 8, 2), 256: (64, 32, 8, 1)},
        "queries": {64: (128, 64, 8, 2), 128: (128, 64, 8, 2), 256: (64, 32, 8, 1)},
    },
    "sm_120": {
        "keys": {64: (64, 64, 4, 2), 128: (64, 32, 8, 1), 256: (32, 32, 8, 1)},
        "queries": {64: (128, 64, 8, 1), 128: (64, 32, 8, 2), 256: (32, 32, 8, 1)},
    },
    "gfx": {
        "keys": {64: (64, 64, 4, 1), 128: (64, 32, 4, 1), 256: (32, 32, 4, 1)},
        "queries": {64: (64, 64, 4, 1), 128: (64, 32, 4, 1), 256: (32, 32, 4, 1)},
    },
}
_FLOAT32: _Table = {
    "keys": {64: (32, 32, 8, 1), 128: (32, 32, 8, 1), 256: (16, 16, 8, 1)},
    "queries": {64: (32, 32, 8, 1), 128: (32, 32, 8, 1), 256: (16, 16, 8, 1)},
}
