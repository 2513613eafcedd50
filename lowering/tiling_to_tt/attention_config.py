"""How the attention kernel is cut into blocks and scheduled, by head dimension, element type and target."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import AnyFloat, Float32Type

from compilemask.errors import LoweringError

TILE = 128
"""Rows and keys of a descriptor's tile."""
MAX_HEAD_DIM = 256
SMALLEST_BLOCK = 16
"""The smallest inner dimension of a matrix product."""


@dataclass(frozen=True)
class AttentionConfig:
    """One variant of the kernel.

    A program computes `block_q` rows, a descriptor tile or a part of it, and visits `block_kv` keys at a time, with
    `num_warps` warps and loads pipelined `num_stages` deep.

    `aligned` promises that q, k, v and out start at multiples of 16 bytes and that all their strides (of dimensions
    longer than 1) are multiples of 16 bytes: loads are then 16 bytes wide and can be asynchronous.

    `negative_scale` makes the kernel take scales of either sign; without it, out and lse are NaN if the scale is
    negative. It costs: Hopper's matrix product reads an operand that arithmetic has touched from registers, loaded in
    every step. Attention with a score region takes any scale.

    `approximate` takes the hyperbolic tangents of a score region from the hardware of CUDA targets, exact to 11 bits.
    """

    block_q: int = 64
    block_kv: int = 64
    num_warps: int = 4
    num_stages: int = 2
    aligned: bool = True
    negative_scale: bool = False
    approximate: bool = False

    def __post_init__(self) -> None:
        for name, size, smallest in (("block_q", self.block_q, 16), ("block_kv", self.block_kv, 16)):
            if size < smallest or size > TILE or size & (size - 1):
                raise LoweringError(f"{name} is {size}; it must be a power of two from {smallest} to {TILE}")
        if self.num_warps < 1 or self.num_warps & (self.num_warps - 1) or self.num_stages < 1:
            raise LoweringError(f"{self.num_warps} warps (a power of two) and {self.num_stages} stages (1 or more)")

    @property
    def programs_per_tile(self) -> int:
        """Programs that share one query tile of the descriptor."""
        return TILE // self.block_q

    @property
    def steps_per_tile(self) -> int:
        """Steps over the keys of one tile."""
        return TILE // self.block_kv

    @classmethod
    def choose(
        cls,
        head_dim: int,
        element_type: AnyFloat,
        target: str,
        *,
        aligned: bool = True,
        negative_scale: bool = False,
    ) -> AttentionConfig:
        """The variant for a target such as `cuda:90` or `hip:gfx942`. Raises LoweringError for an unknown one."""
        padded = padded_head_dim(head_dim)
        block_q, block_kv, num_warps, num_stages = _table(target, isinstance(element_type, Float32Type))[
            max(padded, 64)
        ]
        approximate = target.startswith("cuda:") and not isinstance(element_type, Float32Type)
        return cls(block_q, block_kv, num_warps, num_stages, aligned, negative_scale, approximate)


def padded_head_dim(head_dim: int) -> int:
    """The power of two, 16 or more, that D is padded to."""
    if not 1 <= head_dim <= MAX_HEAD_DIM:
        raise LoweringError(f"head_dim is {head_dim}; it must be 1 to {MAX_HEAD_DIM}")
    return max(SMALLEST_BLOCK, 1 << (head_dim - 1).bit_length())


_Table = dict[int, tuple[int, int, int, int]]
"""Padded D (64 for less): block_q, block_kv, num_warps, num_stages."""

# Bounds: shared memory of a block is 163 KB on sm_80, 227 KB on sm_90 and sm_100, 99 KB on sm_86, sm_89 and sm_120,
# 64 KB on gfx9. A wgmma takes 64 rows per four warps. By ptxas, no aligned half-precision variant
# spills registers, except D = 256 on sm_100.
_HALF: dict[str, _Table] = {
    "sm_80": {64: (128, 64, 8, 3), 128: (128, 32, 8, 3), 256: (64, 32, 8, 2)},
    "sm_90": {64: (64, 128, 4, 2), 128: (64, 64, 4, 3), 256: (128, 32, 8, 2)},
    "sm_100": {64: (128, 64, 4, 3), 128: (128, 64, 8, 3), 256: (128, 32, 8, 2)},
    "sm_120": {64: (128, 64, 8, 3), 128: (128, 32, 8, 2), 256: (64, 32, 8, 2)},
    "gfx": {64: (128, 64, 4, 2), 128: (128, 64, 4, 2), 256: (64, 32, 4, 2)},
}
_FLOAT32_CUDA: _Table = {64: (64, 32, 8, 2), 128: (32, 64, 8, 1), 256: (32, 16, 8, 1)}
_FLOAT32: dict[str, _Table] = {
    **dict.fromkeys(("sm_80", "sm_90", "sm_100", "sm_120"), _FLOAT32_CUDA),
    "gfx": {64: (64, 32, 4, 2), 128: (64, 32, 8, 1), 256: (64, 16, 8, 1)},
}
_FAMILIES = {
    "80": "sm_80",
    "90": "sm_90",
    **dict.fromkeys(("100", "103"), "sm_100"),
    **dict.fromkeys(("86", "89", "120", "121"), "sm_120"),
}


def target_family(target: str) -> str:
    """The group of GPUs that share variants: sm_80, sm_90, sm_100, sm_120 or gfx. Raises LoweringError for others."""
    backend, _, arch = target.partition(":")
    family = (
        _FAMILIES.get(arch) if backend == "cuda" else "gfx" if backend == "hip" and arch.startswith("gfx") else None
    )
    if family is None:
        raise LoweringError(f"no attention kernel for target '{target}'; targets look like cuda:90 and hip:gfx942")
    return family


def _table(target: str, is_float32: bool) -> _Table:
    return (_FLOAT32 if is_float32 else _HALF)[target_family(target)]
