"""What an operation of another dialect offers to stand in a `mask.func`: it is a region with rules of its own.

    @irdl_op_definition
    class DilatedOp(mask.Leaf, RegionInterface):
        name = "sparse.dilated"
        reach = operand_def(i32)

        def visible(self, values, at):
            (reach,) = values
            return (at.kv <= at.q) & (at.q - at.kv < reach)

The meaning gives the operation its dense form and its picture, and on the terms of a solver its proof.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from xdsl.ir import Operation, SSAValue

from compilemask.errors import LoweringError


class Pair(NamedTuple):
    """A pair (q, kv) in a plane of `queries` x `keys`: integers, arrays that broadcast, or terms of a solver."""

    q: Any
    kv: Any
    queries: Any
    keys: Any


class RegionInterface(Operation, ABC):
    """An operation that yields a `!mask.region` from integers (`i32`) and tables (`memref<?xi32>`)."""

    @abstractmethod
    def visible(self, values: Sequence[Any], at: Pair) -> Any:
        """Whether a pair is in the region; `values` are those of the operands, tables as 1-D arrays.

        Everything is an integer or an int64 array here; q and kv broadcast to [rows, keys].
        """

    @abstractmethod
    def intervals(self, lowering: Any, values: Sequence[SSAValue]) -> SSAValue:
        """Writes the set of keys that row `lowering.q` sees: an `!interval.set`, by a `FunctionLowering`.

        `values` are the operands at the interval level.
        """

    def formula(self, values: Sequence[Any], at: Pair) -> Any:
        """`visible` on terms of z3: the same expression, unless it uses what terms lack (`//`, numpy functions)."""
        return self.visible(values, at)

    def transposed(self) -> Operation:
        """A new operation, on the same operands, whose pairs are (kv, q): what the gradient of attention follows.

        Raises LoweringError if the operation does not say.
        """
        raise LoweringError(f"mask-transpose: {self.name} does not say its transposed region")


__all__ = ["Pair", "RegionInterface"]
