"""What inline PTX computes, on numpy: the instructions that kernels are written with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from compilemask.dialects.semantics.triton_memory import Array, round_bf16
from compilemask.dialects.triton.inline_ptx import (
    KEEP_WHERE_SET,
    LOGARITHM,
    MULTIPLY_UNLESS_ONE,
    PREFETCH_TENSOR_MAP,
    RECIPROCAL,
)
from compilemask.errors import LoweringError


def _multiply(x: Array, factor: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return x * factor


def _logarithm(x: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log2(x)


def _reciprocal(x: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.reciprocal(x)


def _nothing(_: object) -> Array:
    return np.asarray(0, dtype=np.int32)


def _round_f16(x: Array) -> Array:
    return x.astype(np.float16)


def _keep_where_set(hidden: float, x: Array, words: Array) -> Array:
    column: Array = np.arange(x.shape[-1], dtype=np.int32)
    bit: Array = (2 * (column >> 3) + (column & 1)) % 16
    return np.where((words >> bit) & 1, x, np.float32(hidden))


_INSTRUCTIONS: dict[str, Callable[..., Array]] = {
    # On two elements at a time: the second goes to the upper half.
    "cvt.rn.bf16x2.f32 $0, $2, $1;": round_bf16,
    "cvt.rn.f16x2.f32 $0, $2, $1;": _round_f16,
    # The hardware's result is off by up to 2^-11.
    "tanh.approx.f32 $0, $1;": np.tanh,
    LOGARITHM: _logarithm,
    RECIPROCAL: _reciprocal,
    MULTIPLY_UNLESS_ONE.text: _multiply,
    PREFETCH_TENSOR_MAP: _nothing,
    **{found.text: partial(_keep_where_set, hidden) for (hidden, _), found in KEEP_WHERE_SET.items()},
}


def ptx(text: str, operands: Sequence[Array]) -> Array:
    """The result of inline PTX. Raises LoweringError if it is not known here."""
    if text.strip() not in _INSTRUCTIONS:
        raise LoweringError(f"PTX '{text.strip()}' has no semantics here")
    return _INSTRUCTIONS[text.strip()](*operands)


__all__ = ["ptx"]
