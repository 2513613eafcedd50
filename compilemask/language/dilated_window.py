"""Dilated windows: every n-th key near the query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.ir import SSAValue

from compilemask.language.builder import Builder
from compilemask.language.mask import Mask
from compilemask.language.predicate import Integer
from compilemask.language.traced import Line, emit_lines
from compilemask.language.values import integer


@dataclass(frozen=True, eq=False, repr=False)
class _DilatedWindow(Mask):
    reach: int
    step: int
    LABEL: ClassVar[str] = "dilated_window"

    def emit(self, builder: Builder) -> SSAValue:
        raster = builder.constant(0), builder.constant(self.step)
        return emit_lines(builder, raster, self._line, {}, at_most=2 * (self.reach // self.step) + 1)

    def _line(self, q: Integer, line: Integer) -> Line:
        """Cells of `step` keys, of which the one with q's remainder is visible."""
        own, cells = q // self.step, self.reach // self.step
        key = line * self.step + q % self.step
        return Line(key, key + 1, own - cells, own + cells + 1)


def dilated_window(reach: int, step: int) -> Mask:
    """|q - kv| <= reach and (q - kv) % step == 0: up to 2 * (reach // step) + 1 intervals of one key per row.

    Source: the dilated sliding windows of Longformer (arXiv:2004.05150).

    Args:
        reach: keys on each side, at least 0; an int, part of the mask's structure.
        step: at least 1; an int, part of the mask's structure.

    Raises:
        MaskError: a number is out of its range or no int.
    """
    return _DilatedWindow(integer("dilated_window: reach", reach, 0), integer("dilated_window: step", step, 1))


__all__ = ["dilated_window"]
