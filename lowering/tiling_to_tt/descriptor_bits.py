"""Bits of 32-bit words, on scalars or tensors of a kernel."""

from __future__ import annotations

from compilemask.lowering.tiling_to_tt.builder import KernelBuilder, Value


def bits_below(kb: KernelBuilder, count: Value) -> Value:
    """A word whose lowest `count` bits are set; 0 <= count <= 32."""
    return kb.where(count > 31, -1, (1 << (count & 31)) - 1)


def bits_between(kb: KernelBuilder, begin: Value, end: Value) -> Value:
    """A word with the bits begin <= i < end set, for bounds of any value."""
    word = (-1 << (kb.maximum(begin, 0) & 31)) & kb.shift_right_unsigned(-1, -kb.minimum(end, 32) & 31)
    return kb.where((begin < 32) & (end > 0), word, 0)


def popcount(kb: KernelBuilder, word: Value) -> Value:
    """How many bits are set."""
    word = word - (kb.shift_right_unsigned(word, 1) & 0x55555555)
    word = (word & 0x33333333) + (kb.shift_right_unsigned(word, 2) & 0x33333333)
    word = (word + kb.shift_right_unsigned(word, 4)) & 0x0F0F0F0F
    return kb.shift_right_unsigned(word * 0x01010101, 24)


def lowest_bit(kb: KernelBuilder, word: Value) -> Value:
    """The position of the lowest set bit of a word that is not 0."""
    return popcount(kb, (word & -word) - 1)


def keys_below(kb: KernelBuilder, limit: Value, word: Value) -> Value:
    """Word number `word` (0..3) of a row whose keys < limit are visible, in the order of docs/descriptor.md."""
    limit = kb.minimum(kb.maximum(limit, 0), 128)
    # A word holds two of every eight keys.
    rest = kb.minimum(kb.maximum((limit & 7) - 2 * word, 0), 2)
    return bits_below(kb, ((limit >> 3) << 1) + rest)


def keys_between(kb: KernelBuilder, lo: Value, hi: Value, word: Value) -> Value:
    """Word number `word` of a row whose keys lo <= key < hi are visible."""
    return keys_below(kb, kb.maximum(lo, hi), word) & ~keys_below(kb, lo, word)
