"""Whether a mask fits the lengths that it is used with.

Bands, windows and strips fit any: they are cut off at the ends. But offsets of documents, the size of an image or the
length of a history say how long the sequence is. With fewer positions than that they were made for another sequence,
and cutting them off would hide it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compilemask.errors import MaskError

if TYPE_CHECKING:
    import torch

    from compilemask.language.values import Value


@dataclass(frozen=True, eq=False)
class Extent:
    """How long a sequence a mask's values speak of."""

    what: str
    """Names the length in an error, e.g. "document: the last offset"."""
    values: tuple[Value, ...]
    end: Callable[..., Any]
    """The length from the values, each an int or an int64 tensor of shape [B, H, n]."""
    keys_only: bool = False
    """Whether it speaks of keys alone, and not of positions, at which there may be a query or a key."""


@dataclass(frozen=True)
class Limit:
    """An extent whose values are the parameters `names` of a mask's function."""

    extent: Extent
    names: tuple[str, ...]
    transposed: bool = False
    """Whether the axes of the mask are exchanged: its rows are keys."""

    def check(self, parameters: Mapping[str, int | torch.Tensor], queries: int, keys: int) -> None:
        """Raises `MaskError` if the extent is longer than the sequence. Reads nothing from device memory.

        Tables have shape [B, H, n].
        """
        if self.transposed:
            queries, keys = keys, queries
        given = [parameters[name] for name in self.names]
        if any(not isinstance(value, int) and value.device.type != "cpu" for value in given):
            return
        end = self.extent.end(*(value if isinstance(value, int) else value.long() for value in given))
        end = end if isinstance(end, int) else int(end.max())
        most = keys if self.extent.keys_only else max(queries, keys)
        if end > most:
            raise MaskError(
                f"{self.extent.what} is {end}; for {queries} queries and {keys} keys expected at most {most}"
            )


def check_limits(
    limits: Sequence[Limit], parameters: Mapping[str, int | torch.Tensor], queries: int, keys: int
) -> None:
    """Raises `MaskError` if one of the limits does not hold."""
    for limit in limits:
        limit.check(parameters, queries, keys)


def last_offset(offsets: torch.Tensor) -> torch.Tensor:
    """Where the last segment of offsets [B, H, n + 1] ends."""
    return offsets[..., -1]


def end_of_image(origin: Any, height: Any, width: Any) -> Any:
    """The position behind the last token of an image."""
    return origin + height * width


__all__ = ["Extent", "Limit", "check_limits", "end_of_image", "last_offset"]
