"""Whether a mask fits the lengths that it is used with.

Bands, windows and strips fit any: they are cut off at the ends. But offsets of documents, the size of an image or the
length of a history say how long the sequence is. With fewer positions than that they were made for another sequence,
and cutting them off would hide it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from compilemask.errors import MaskError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from compilemask.language.values import Value
    from compilemask.lowering.patch_grid import Image


TABLE_RANK = 3
_Table: TypeAlias = "NDArray[np.int64]"
Length: TypeAlias = "int | _Table"
"""Of a sequence, or of that of each mask."""
# By their numbers of arguments, of which a type checker knows those of a lambda.
End = Callable[[], Any] | Callable[[Any], Any] | Callable[[Any, Any], Any] | Callable[[Any, Any, Any], Any]
Sizes = Callable[[Any, Any, Any, Any], tuple[Any, Any]] | Callable[[Any, Any, Any, Any, Any, Any], tuple[Any, Any]]


@dataclass(frozen=True, eq=False)
class Extent:
    """How long a sequence a mask's values speak of."""

    what: str
    """Names the length in an error, e.g. "document: the last offset"."""
    values: tuple[Value, ...]
    end: End
    """The length from the values, each an int or an int64 array of shape [B, H, n]."""
    keys_only: bool = False
    """Whether it speaks of keys alone, and not of positions, at which there may be a query or a key."""
    is_image: bool = False
    """Whether the values are the origin and the sizes of an image or a video in raster order."""

    def check(self, given: Sequence[int | torch.Tensor], queries: Length, keys: Length) -> None:
        """Raises `MaskError` if the values speak of a longer sequence. Reads nothing from device memory."""
        if (values := _on_host(given)) is None:
            return
        length: Callable[..., Any] = cast("Any", self.end)
        end = length(*values)
        if isinstance(queries, int) and isinstance(keys, int):
            # As nearly always: then the greatest stands for all masks, and they need not be told apart.
            end = end if isinstance(end, int) else int(end.max())
        too_long = [each for each in by_mask(end, queries, keys) if each[0] > self._most(*each[1:])]
        if too_long:
            end, queries, keys = max(too_long)
            lengths = f"{queries} queries and {keys} keys"
            raise MaskError(f"{self.what} is {end}; for {lengths} expected at most {self._most(queries, keys)}")

    def _most(self, queries: int, keys: int) -> int:
        return keys if self.keys_only else max(queries, keys)


@dataclass(frozen=True, eq=False)
class Room(Extent):
    """How many queries, or keys, a table has entries for: a longer sequence would be read from behind its end. `end`
    looks at the table's shape alone, which is known wherever the table lives.
    """

    def check(self, given: Sequence[int | torch.Tensor], queries: Length, keys: Length) -> None:
        room: Callable[..., int] = cast("Any", self.end)
        entries, (of_all, of) = room(*given), (keys, "keys") if self.keys_only else (queries, "queries")
        needed = max(length for (length,) in by_mask(of_all))
        if entries < needed:
            raise MaskError(f"{self.what} has entries for {entries} {of}, got {needed} {of}")


@dataclass(frozen=True, eq=False)
class Plane:
    """A part of a sequence: `sizes` gives its numbers of queries and keys from those of what is around it, followed by
    `values`, as in `Extent`.
    """

    values: tuple[Value, ...]
    sizes: Sizes


@dataclass(frozen=True)
class Limit:
    """An extent whose values are the parameters `names` of a mask's function."""

    extent: Extent
    names: tuple[str, ...]
    planes: tuple[tuple[Plane, tuple[str, ...]], ...] = ()
    """The part of a part ... of the sequence that the extent is about, each with the parameters that its values are."""
    transposed: bool = False
    """Whether the axes of the mask are exchanged: its rows are keys."""

    def check(self, parameters: Mapping[str, int | torch.Tensor], queries: Length, keys: Length) -> None:
        """Raises `MaskError` if the extent does not fit the sequence. Reads nothing from device memory.

        Tables have shape [B, H, n].
        """
        if self.transposed:
            queries, keys = keys, queries
        for plane, names in self.planes:
            if (values := _on_host([parameters[name] for name in names])) is None:
                return
            sizes: Callable[..., tuple[Any, Any]] = cast("Any", plane.sizes)
            # A part that begins behind the end has nothing.
            queries, keys = (_at_least_none(_of_masks(size)) for size in sizes(queries, keys, *values))
        self.extent.check([parameters[name] for name in self.names], queries, keys)


def image_of(limits: Sequence[Limit], parameters: Mapping[str, int | torch.Tensor]) -> Image | str:
    """The one image in raster order that a mask is about, whose parameters a host knows; or why there is none."""
    about = [limit for limit in limits if limit.extent.is_image]
    if not about:
        return "nothing says which image a row sees lines of"
    if any(limit.planes for limit in about):
        return "the image lies in a part of the sequence (place, shift, concatenate), whose tokens are not told apart"
    images = {tuple(parameters[name] for name in limit.names) for limit in about}
    if len(images) > 1:
        return "the mask is about several images"
    sizes = [size for size in images.pop() if isinstance(size, int)]
    if len(sizes) < len(about[0].names):
        return "the sizes of the image are tables, of which the host knows nothing"
    if tables := [name for name, value in parameters.items() if not isinstance(value, int)]:
        return f"the host knows nothing of what is in tables ({', '.join(tables)})"
    return sizes[0], tuple(sizes[1:])


def _on_host(given: Sequence[int | torch.Tensor]) -> list[int | _Table] | None:
    """Parameters for arithmetic; None if one lies in device memory."""
    if any(not isinstance(value, int) and value.device.type != "cpu" for value in given):
        return None
    return [value if isinstance(value, int) else value.numpy().astype("int64", copy=False) for value in given]


def _of_masks(length: Length) -> Length:
    """Tables [B, H, n], or [B, H] already, as the greatest of each mask [B, H, 1]."""
    if isinstance(length, int):
        return length
    return length.max(axis=-1, keepdims=True) if length.ndim == TABLE_RANK else length[..., None]


def _at_least_none(length: Length) -> Length:
    return max(length, 0) if isinstance(length, int) else length.clip(min=0)


def by_mask(*lengths: Length) -> Iterator[tuple[int, ...]]:
    """Lengths of each mask, together."""
    if all(isinstance(length, int) for length in lengths):
        return iter([cast("tuple[int, ...]", lengths)])
    import numpy as np

    tables = np.broadcast_arrays(*(_of_masks(length) for length in lengths))
    return zip(*(table.reshape(-1).tolist() for table in tables), strict=True)


def check_limits(
    limits: Sequence[Limit], parameters: Mapping[str, int | torch.Tensor], queries: int, keys: int
) -> None:
    """Raises `MaskError` if one of the limits does not hold."""
    for limit in limits:
        limit.check(parameters, queries, keys)


def last_offset(offsets: _Table) -> _Table:
    """Where the last segment of offsets [B, H, n + 1] ends."""
    return offsets[..., -1]


def end_of_image(origin: Any, height: Any, width: Any) -> Any:
    """The position behind the last token of an image."""
    return origin + height * width


__all__ = [
    "Extent",
    "Length",
    "Limit",
    "Plane",
    "Room",
    "by_mask",
    "check_limits",
    "end_of_image",
    "image_of",
    "last_offset",
]
