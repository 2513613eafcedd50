"""Strided sparse attention: the last keys, and before them every n-th."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.ir import SSAValue

from compilemask.dialects import mask as dialect
from compilemask.language.builder import Builder
from compilemask.language.mask import Mask
from compilemask.language.predicate import Integer
from compilemask.language.traced import Line, emit_lines
from compilemask.language.values import integer


@dataclass(frozen=True, eq=False, repr=False)
class _Strided(Mask):
    stride: int
    LABEL: ClassVar[str] = "strided"

    def emit(self, builder: Builder) -> SSAValue:
        zero = builder.constant(0)
        local = builder.add(dialect.BandOp(builder.constant(1 - self.stride), zero), "local")
        columns = emit_lines(builder, (zero, builder.constant(self.stride)), self._line, {})
        return builder.add(dialect.UnionOp(local, columns), "visible")

    def _line(self, q: Integer, line: Integer) -> Line:
        """Cells of `stride` keys, of which the one with q's remainder is visible, before q's own cell."""
        key = line * self.stride + q % self.stride
        return Line(key, key + 1, 0, q // self.stride)


def strided(stride: int) -> Mask:
    """kv <= q and (q - kv < stride or (q - kv) % stride == 0): q // stride + 1 intervals.

    Source: the strided pattern of Sparse Transformers (Child et al. 2019, arXiv:1904.10509).

    Args:
        stride: at least 1; an int, part of the mask's structure.

    Raises:
        MaskError: the stride is no int or less than 1.
    """
    return _Strided(integer("strided: stride", stride, 1))


__all__ = ["strided"]
