"""A causal pattern that repeats along both axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.ir import SSAValue

from compilemask.language.builder import Builder
from compilemask.language.mask import Mask
from compilemask.language.predicate import Integer
from compilemask.language.traced import KEYS, Line, emit_lines
from compilemask.language.values import integer


@dataclass(frozen=True, eq=False, repr=False)
class _Periodic(Mask):
    period: int
    LABEL: ClassVar[str] = "periodic"

    def emit(self, builder: Builder) -> SSAValue:
        return emit_lines(builder, (builder.constant(0), builder.constant(self.period)), self._line, {})

    def _line(self, q: Integer, line: Integer) -> Line:
        begin = line * self.period
        return Line(begin, begin + q % self.period + 1, 0, (KEYS + (self.period - 1)) // self.period)


def periodic(period: int = 128) -> Mask:
    """q % period >= kv % period: one interval for each period of keys.

    A causal mask that starts anew in every period, for queries and keys that are stacks of equal sequences.

    Args:
        period: at least 1; an int, part of the mask's structure.

    Raises:
        MaskError: the period is no int or less than 1.
    """
    return _Periodic(integer("periodic: period", period, 1))


__all__ = ["periodic"]
