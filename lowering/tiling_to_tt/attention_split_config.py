"""How the split kernel is cut into blocks and scheduled, by rows, head dimension, element type and target."""

from __future__ import annotations

from xdsl.dialects.builtin import AnyFloat, Float32Type

from compilemask.lowering.tiling_to_tt.attention_config import (
    AttentionConfig,
    padded_head_dim,
    target_family,
)


def split_config(
    head_dim: int, element_type: AnyFloat, target: str, rows: int, *, aligned: bool = True
) -> AttentionConfig:
    """The variant for `rows` rows of a tile, all heads together. Raises LoweringError for an unknown target."""
    is_float32 = isinstance(element_type, Float32Type)
    variants = (_FLOAT32 if is_float32 else _HALF)[target_family(target)][max(padded_head_dim(head_dim), 64)]
    block_q = next((block for block in sorted(variants) if rows <= block), max(variants))
    approximate = target.startswith("cuda:") and not is_float32
    return AttentionConfig(block_q, *variants[block_q], aligned=aligned, approximate=approximate)


_Variants = dict[int, tuple[int, int, int]]
"""block_q: block_kv, num_warps, num_stages."""

# Loads must hide the latency of memory: about 40 KB of keys and values are on their way to each processor, in two
# programs or more. Bounds of shared memory: see `AttentionConfig`. By ptxas, no aligned variant for sm_90 spills
# registers in a loop; with some versions of Triton a few scalars wait in memory for the end of the loops.
_NARROW_64: _Variants = {16: (64, 4, 4), 32: (64, 4, 4)}
_NARROW_128: _Variants = {16: (64, 4, 3), 32: (64, 8, 3)}
_NARROW_256: _Variants = {16: (32, 4, 3), 32: (32, 4, 3)}
_HALF_CUDA: dict[int, _Variants] = {
    64: _NARROW_64 | {64: (64, 8, 3)},
    128: _NARROW_128 | {64: (64, 8, 3)},
    256: _NARROW_256 | {64: (32, 8, 2)},
}
_HALF: dict[str, dict[int, _Variants]] = {
    **dict.fromkeys(("sm_80", "sm_100", "sm_120"), _HALF_CUDA),
    "sm_90": {
        64: _NARROW_64 | {64: (64, 4, 3)},
        128: _NARROW_128 | {64: (64, 4, 3)},
        256: _NARROW_256 | {64: (32, 8, 3)},
    },
    "gfx": {
        64: dict.fromkeys((16, 32, 64), (64, 4, 2)),
        128: dict.fromkeys((16, 32, 64), (64, 4, 2)),
        256: dict.fromkeys((16, 32, 64), (32, 4, 2)),
    },
}
_FLOAT32_CUDA: dict[int, _Variants] = {
    64: {16: (64, 4, 2), 32: (32, 8, 2)},
    128: {16: (32, 4, 2), 32: (32, 8, 2)},
    256: {16: (16, 8, 2), 32: (16, 8, 1)},
}
_FLOAT32: dict[str, dict[int, _Variants]] = {
    **dict.fromkeys(("sm_80", "sm_90", "sm_100", "sm_120"), _FLOAT32_CUDA),
    "gfx": {
        64: dict.fromkeys((16, 32), (32, 4, 2)),
        128: dict.fromkeys((16, 32), (32, 4, 2)),
        256: dict.fromkeys((16, 32), (16, 8, 1)),
    },
}
