"""HSTU recommenders (Zhai et al. 2024, arXiv:2402.17152): contexts, history, then candidates ranked independently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from xdsl.ir import SSAValue

from compilemask.dialects import mask as dialect
from compilemask.language.builder import Builder
from compilemask.language.extent import Extent
from compilemask.language.mask import Mask
from compilemask.language.predicate import Condition, Integer
from compilemask.language.traced import emit_where
from compilemask.language.values import Value, at_most, integer, scalar

if TYPE_CHECKING:
    from compilemask.language.values import Scalar


@dataclass(frozen=True, eq=False, repr=False)
class _Hstu(Mask):
    history: Value
    contexts: Value
    total: Value | None
    group: int
    LABEL: ClassVar[str] = "hstu"

    def extents(self) -> tuple[Extent, ...]:
        named = (("total", self.total), ("history", self.history))
        return tuple(Extent(f"hstu: {name}", (value,), lambda end: end) for name, value in named if value is not None)

    def emit(self, builder: Builder) -> SSAValue:
        history, contexts = builder.scalar("history", self.history), builder.scalar("contexts", self.contexts)
        total = None if self.total is None else builder.scalar("total", self.total)
        zero = builder.constant(0)
        past = builder.add(dialect.BandOp(upper=zero), "past")
        context = builder.add(dialect.RowsOp(zero, contexts), "context")
        seen = builder.add(dialect.UnionOp(past, context), "seen")
        facts = builder.add(dialect.ColsOp(zero, history), "facts")
        known = builder.add(dialect.IntersectOp(seen, facts), "known")
        if self.group == 1:
            itself = builder.add(dialect.BandOp(zero, zero), "self")
        else:
            itself = emit_where(builder, self._own_group, {"history": history})
        visible = builder.add(dialect.UnionOp(known, itself), "visible")
        if total is None:
            return visible
        for strip, hint in ((dialect.RowsOp, "rows"), (dialect.ColsOp, "columns")):
            visible = builder.add(dialect.IntersectOp(visible, builder.add(strip(zero, total), hint)), "visible")
        return visible

    def _own_group(self, q: Integer, kv: Integer, history: Integer) -> Condition:
        first = history + (q - history) // self.group * self.group
        return (q >= history) & (kv >= first) & (kv <= q)


def hstu(history: Scalar, contexts: Scalar = 0, total: Scalar | None = None, group: int = 1) -> Mask:
    """(kv < history and (kv <= q or q < contexts)) or kv == q: positions are contexts, history, candidates, in this
    order. Two intervals per row.

    The first `contexts` rows see all of the history, the history is causal, and each candidate behind it sees
    contexts, history and itself. With `total`, rows and keys from `total` on are padding: they see and are seen by
    nothing.

    With a `group` of candidates, each also sees those of its group before it: for q >= history the keys
    history + (q - history) // group * group <= kv <= q in place of its own.

    Args:
        history: number of contexts and history tokens together; an int or int32/int64 data of shape [], [B] or [B, H].
        contexts: number of leading context tokens, at most `history`.
        total: number of tokens without padding, at least `history`; None if there is no padding.
        group: candidates of a group, at least 1; an int, part of the mask's structure.

    Raises:
        MaskError: a length is negative or no integer, or (in host memory) contexts > history or history > total; where
            it is used, if history or total (in host memory) is greater than the numbers of queries and of keys.
    """
    lengths = scalar("hstu: history", history, 0), scalar("hstu: contexts", contexts, 0)
    group = integer("hstu: group", group, 1)
    at_most("hstu: contexts", lengths[1], "history", lengths[0])
    if total is None:
        return _Hstu(*lengths, None, group)
    end = scalar("hstu: total", total, 0)
    at_most("hstu: history", lengths[0], "total", end)
    return _Hstu(*lengths, end, group)


__all__ = ["hstu"]
