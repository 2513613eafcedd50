"""What inline PTX computes, on numpy: the instructions that kernels are written with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from xdsl.dialects.builtin import f32

from compilemask.dialects.semantics.triton_memory import Array, Memory, round_bf16
from compilemask.dialects.triton.inline_ptx import (
    ADD_IN_MEMORY,
    KEEP_WHERE_SET,
    LOGARITHM,
    MULTIPLY_UNLESS_ONE,
    OF_FIRST_LANE,
    PREFETCH_TENSOR_MAP,
    RECIPROCAL,
)
from compilemask.errors import LoweringError

VALUE_BYTES = 4


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


def _same(x: Array) -> Array:
    return x


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
    OF_FIRST_LANE: _same,
    **{found.text: partial(_keep_where_set, hidden) for (hidden, _), found in KEEP_WHERE_SET.items()},
}


def add_in_memory(memory: Memory, addresses: Array, values: Array, chosen: Array) -> Array:
    """`ADD_IN_MEMORY` of an accumulator [16 m, 2 n]."""

    def by_thread(x: Array) -> Array:
        rows, columns = x.shape
        return x.reshape(rows // 16, 2, 8, columns // 2, 2).transpose(0, 2, 3, 1, 4).reshape(-1, 4)

    first, where = by_thread(addresses)[:, 0], by_thread(chosen)[:, 0] >= 0
    places = (first[:, None] + np.arange(4) * VALUE_BYTES)[where].reshape(-1)
    different, which = np.unique(places, return_inverse=True)
    sums = memory.load(different, f32).copy()
    with np.errstate(invalid="ignore", over="ignore"):
        np.add.at(sums, which, by_thread(values)[where].reshape(-1))
    memory.store(different, sums, f32)
    return np.zeros(values.shape, dtype=np.float32)


_ON_MEMORY: dict[str, Callable[..., Array]] = {ADD_IN_MEMORY.text: add_in_memory}


def ptx(text: str, operands: Sequence[Array], memory: Memory | None = None) -> Array:
    """The result of inline PTX, which may change `memory`. Raises LoweringError if it is not known here."""
    text = text.strip()
    if memory is not None and text in _ON_MEMORY:
        return _ON_MEMORY[text](memory, *operands)
    if text not in _INSTRUCTIONS:
        raise LoweringError(f"PTX '{text}' has no semantics here")
    return _INSTRUCTIONS[text](*operands)


__all__ = ["add_in_memory", "ptx"]
