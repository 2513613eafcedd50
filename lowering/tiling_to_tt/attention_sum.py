"""Sums that a score region computes, kept apart until the number of each pair is needed.

Multiplying a block of scores by a number, or adding to it what depends on the row or the key alone, costs nothing per
pair before it must: factors join each other, and a bias of the form f(q) + g(kv) is computed per row and per key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add

from compilemask.lowering.tiling_to_tt.builder import Value


@dataclass(frozen=True)
class Sum:
    """block * factor + all parts, floats: block [R, C], factor a scalar, and parts scalars, [R, 1] or [1, C]."""

    block: Value | None
    factor: Value | None = None
    parts: tuple[Value, ...] = ()

    @classmethod
    def of(cls, value: Value | Sum) -> Sum:
        """A value as a sum."""
        if isinstance(value, Sum):
            return value
        return cls(value) if _axes(value) == (True, True) else cls(None, None, (value,))

    def plus(self, other: Sum) -> Sum:
        """The sum of two."""
        parts = (*self.parts, *other.parts)
        if self.block is None or other.block is None:
            one = other if self.block is None else self
            return Sum(one.block, one.factor, parts)
        return Sum(self._product + other._product, None, parts)

    def times(self, number: Value) -> Sum:
        """Multiplied by a scalar."""
        factor = number if self.factor is None else self.factor * number
        return Sum(self.block, None if self.block is None else factor, tuple(part * number for part in self.parts))

    @cached_property
    def value(self) -> Value:
        """The number of each pair; of each row or key where there is no block."""
        groups: dict[tuple[bool, ...], list[Value]] = {}
        for part in self.parts:
            groups.setdefault(_axes(part), []).append(part)
        scalars = groups.pop((), [])
        sums = [_total(group) for _, group in sorted(groups.items())]
        if scalars:
            # What is the same for all pairs joins what there is least of.
            sums[:1] = [_total([*scalars, *sums[:1]])]
        return _total(sums if self.block is None else [self._product, *sums])

    @cached_property
    def _product(self) -> Value:
        assert self.block is not None
        return self.block if self.factor is None else self.block * self.factor


def _total(values: Sequence[Value]) -> Value:
    return reduce(add, values)


def _axes(value: Value) -> tuple[bool, ...]:
    """Whether a value differs from row to row, and from key to key; () for a scalar."""
    return tuple(size > 1 for size in value.shape)
