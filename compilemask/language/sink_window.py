"""Attention sinks and a window: streaming with a cache of constant size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from compilemask.language.mask import Mask
from compilemask.language.predicate import Condition, Integer
from compilemask.language.traced import Pointwise
from compilemask.language.values import Value, scalar

if TYPE_CHECKING:
    from compilemask.language.values import Scalar


@dataclass(frozen=True, eq=False, repr=False)
class _SinkWindow(Pointwise):
    size: Value
    sinks: Value
    LABEL: ClassVar[str] = "sink_window"

    def visible(self, q: Integer, kv: Integer, size: Integer, sinks: Integer) -> Condition:
        return (kv <= q) & ((q - kv < size) | (kv < sinks))


def sink_window(size: Scalar, sinks: Scalar = 4) -> Mask:
    """kv <= q and (q - kv < size or kv < sinks): the last `size` keys, the query's own included, and the first `sinks`.
    Two intervals per row.

    Source: StreamingLLM (Xiao et al. 2023, arXiv:2309.17453).

    Args:
        size: keys of the window, at least 1; an int or int32/int64 data of shape [], [B] or [B, H].
        sinks: leading keys that all later queries see, at least 0.

    Raises:
        MaskError: a number is out of its range or no integer.
    """
    return _SinkWindow(scalar("sink_window: size", size, 1), scalar("sink_window: sinks", sinks, 0))


__all__ = ["sink_window"]
