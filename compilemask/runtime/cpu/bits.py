"""Bit patterns of 128 keys as four 32-bit words, in the order of docs/descriptor.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_WORDS = np.arange(4)
_BITS = np.arange(32)
KEY_OF_BIT = 8 * (_BITS >> 1) + 2 * _WORDS[:, None] + (_BITS & 1)
"""[4, 32]: the key, 0..127, that each bit of each word stands for."""


def keys_below(limit: NDArray[Any]) -> Ints:
    """Words [..., 4] with the bits of all keys < limit, for limits of any value."""
    limit = np.clip(limit, 0, 128).astype(np.int64)[..., None]
    # A word holds two of every eight keys.
    count = 2 * (limit >> 3) + np.clip((limit & 7) - 2 * _WORDS, 0, 2)
    return (np.int64(1) << count) - 1


def keys_between(lo: NDArray[Any], hi: NDArray[Any]) -> Ints:
    """Words [..., 4] with the bits of all keys lo <= key < hi."""
    return keys_below(np.maximum(lo, hi)) & ~keys_below(lo)


def pack(visible: NDArray[np.bool_]) -> Ints:
    """Words [..., 4] from one boolean per key, [..., 128]."""
    in_order = np.ascontiguousarray(visible[..., KEY_OF_BIT])
    return np.packbits(in_order, axis=-1, bitorder="little").view("<u4")[..., 0].astype(np.int64)


def to_int32(words: Ints) -> NDArray[np.int32]:
    """The same 32 bits as signed words."""
    return words.astype(np.uint32).view(np.int32)


# No tensors: under a mode in which this is imported they might have no content.
_KEYS = np.arange(128)
_WORD_OF_KEY = (_KEYS >> 1) & 3
_BIT_OF_KEY = (2 * (_KEYS >> 3) + (_KEYS & 1)).astype(np.int32)


def unpack(words: torch.Tensor) -> torch.Tensor:
    """bool [..., 128], one per key, from int32 words [..., 4] on the CPU."""
    word, bit = torch.from_numpy(_WORD_OF_KEY), torch.from_numpy(_BIT_OF_KEY)
    return ((words[..., word] >> bit) & 1).bool()
