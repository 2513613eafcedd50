"""The values that masks are made from: checked when a mask is constructed, run-time data ever after.

A value is a host integer, or lives in memory as int32 or int64: a torch tensor (on any device), a numpy array or a
list of integers. Values in host memory are checked; values in GPU memory are not read, because that would wait for
the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from compilemask.errors import MaskError

if TYPE_CHECKING:
    import numpy as np
    import torch

    Array = torch.Tensor | np.ndarray | Sequence[int] | Sequence[Sequence[int]]
    Scalar = int | np.integer | Array
    """One integer per mask: an int, or data of shape [], [B] or [B, H]."""
    Table = Array
    """Integers per mask: data of shape [n], [B, n] or [B, H, n]."""

LIMIT = 2**30
"""Positions and lengths stay below it, so that sums of two never leave 32 bits."""


@dataclass(frozen=True, eq=False)
class Value:
    """A checked value: an int, or a tensor of shape [B, H, n] (n = 1 for a scalar), B and H being 1 if shared."""

    data: int | torch.Tensor
    source: object
    """What the caller gave; the same object twice is the same parameter."""
    is_scalar: bool
    """Whether it stands for one integer per mask."""

    @property
    def is_table(self) -> bool:
        """Whether the value lives in memory."""
        return not isinstance(self.data, int)

    @property
    def identity(self) -> tuple[int, bool]:
        """Equal for values that are one parameter of a mask: the same tensor, or the same value.

        A list was copied when the mask was made, so the same list may have meant something else by then.
        """
        is_tensor = hasattr(self.source, "data_ptr")  # without importing torch
        return (id(self.source) if is_tensor else id(self), self.is_scalar)

    @property
    def batch_shape(self) -> tuple[int, int]:
        """(B, H)."""
        return (1, 1) if isinstance(self.data, int) else (int(self.data.shape[0]), int(self.data.shape[1]))

    def least_and_greatest(self) -> tuple[int, int] | None:
        """The range of the values, unless they lie in device memory."""
        if isinstance(self.data, int):
            return self.data, self.data
        if self.data.device.type != "cpu" or not self.data.numel():
            return None
        return int(self.data.min()), int(self.data.max())


def integer(what: str, value: object, minimum: int = -LIMIT, maximum: int = LIMIT) -> int:
    """A host integer that becomes part of the mask's structure.

    Raises:
        MaskError: it is not an int, or outside `minimum` to `maximum`.
    """
    if not _is_integer(value):
        raise MaskError(f"{what} must be an int, got {_describe(value)}")
    number = int(value)
    _check_range(what, (number, number), minimum, maximum)
    return number


def scalar(what: str, value: Any, minimum: int = -LIMIT) -> Value:
    """One integer per mask: an int, or a tensor or list of shape [], [B] or [B, H].

    Raises:
        MaskError: wrong type, rank or range.
    """
    if _is_integer(value):
        return Value(integer(what, value, minimum), value, True)
    tensor = _tensor(what, value, "an int, or integers of shape [], [B] or [B, H]")
    if tensor.dim() > 2:
        raise MaskError(f"{what} must have shape [], [B] or [B, H], got {_shape(tensor)}")
    return _checked(what, Value(tensor.reshape(*tensor.shape, *[1] * (3 - tensor.dim())), value, True), minimum)


def table(what: str, value: Any, minimum: int = -LIMIT, entries: int = 1) -> Value:
    """Integers per mask: a tensor or list of shape [n], [B, n] or [B, H, n] with n >= `entries`.

    Raises:
        MaskError: wrong type, rank, size or range.
    """
    expected = "integers of shape [n], [B, n] or [B, H, n]"
    if _is_integer(value):
        raise MaskError(f"{what} must be {expected}, got {_describe(value)}")
    tensor = _tensor(what, value, expected)
    if not 1 <= tensor.dim() <= 3:
        raise MaskError(f"{what} must have shape [n], [B, n] or [B, H, n], got {_shape(tensor)}")
    if tensor.shape[-1] < entries:
        raise MaskError(f"{what} must have at least {entries} entries, got {_shape(tensor)}")
    leading = [1, 1, *tensor.shape[:-1]][-2:] if tensor.dim() != 2 else [tensor.shape[0], 1]
    return _checked(what, Value(tensor.reshape(*leading, tensor.shape[-1]), value, False), minimum)


def rows_of_table(what: str, value: Any, shape: str, minimum: int = -LIMIT) -> tuple[Value, int, int]:
    """Rows of integers per mask, of shape [n, k], [B, n, k] or [B, H, n, k], as a table of n * k entries; n and k.

    `shape` names n and k in errors, "n, k" say. A contiguous tensor is not copied.

    Raises:
        MaskError: wrong type, rank or range, or no entries.
    """
    expected = f"integers of shape [{shape}], [B, {shape}] or [B, H, {shape}]"
    tensor = _tensor(what, value, expected)
    if not 2 <= tensor.dim() <= 4:
        raise MaskError(f"{what} must be {expected}, got {_shape(tensor)}")
    if not tensor.numel():
        raise MaskError(f"{what} must have entries, got {_shape(tensor)}")
    leading = [*tensor.shape[:-2], 1, 1][:2]
    flat = Value(tensor.reshape(*leading, -1), value, False)
    return _checked(what, flat, minimum), int(tensor.shape[-2]), int(tensor.shape[-1])


def ascends(entries: torch.Tensor) -> bool:
    """Whether no entry is less than the one before it, along the last dimension. Waits for the device."""
    return bool((entries[..., 1:] >= entries[..., :-1]).all())


def offsets(what: str, value: Any) -> Value:
    """Ascending offsets of segments: shape [n + 1], [B, n + 1] or [B, H, n + 1] for n segments, not negative.

    Raises:
        MaskError: as `table`, or they do not ascend (checked in host memory only).
    """
    checked = table(what, value, minimum=0, entries=2)
    assert not isinstance(checked.data, int)
    if checked.data.device.type == "cpu":
        falls = (checked.data.diff(dim=-1) < 0).nonzero()
        if len(falls):
            b, h, at = cast("list[int]", falls[0].tolist())
            before, after = checked.data[b, h, at].item(), checked.data[b, h, at + 1].item()
            raise MaskError(f"{what} must ascend, but entry {at} is {before} and entry {at + 1} is {after}")
    return checked


def common_batch(values: Sequence[tuple[str, Value]]) -> tuple[int, int]:
    """(B, H) of a mask with these parameters; sizes of 1 go with any other.

    Raises:
        MaskError: two parameters have different batch or head counts.
    """
    batch, heads = 1, 1
    for what, value in values:
        for axis, known, size in (("batches", batch, value.batch_shape[0]), ("heads", heads, value.batch_shape[1])):
            if 1 not in (known, size) and known != size:
                raise MaskError(f"{what} is for {size} {axis}, but other parameters of the mask are for {known}")
        batch, heads = max(batch, value.batch_shape[0]), max(heads, value.batch_shape[1])
    return batch, heads


def at_most(what: str, value: Value, other: str, limit: Value) -> None:
    """Raises `MaskError` if a value in host memory exceeds another one."""
    common_batch([(what, value), (other, limit)])
    if value.least_and_greatest() is None or limit.least_and_greatest() is None:
        return
    excess = value.data > limit.data  # a bool, or a tensor of one entry per mask
    if excess if isinstance(excess, bool) else excess.any():
        raise MaskError(f"{what} must be at most {other}, got {_describe(value.source)} > {_describe(limit.source)}")


def _is_integer(value: object) -> TypeGuard[Integral]:
    """Python and numpy integers."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _tensor(what: str, value: Any, expected: str) -> torch.Tensor:
    import numpy as np
    import torch

    if not isinstance(value, torch.Tensor | np.ndarray | list | tuple):
        raise MaskError(f"{what} must be {expected}, got {_describe(value)}")
    if not isinstance(value, torch.Tensor):
        value = _from_host(what, value, expected)
    if value.layout != torch.strided:
        raise MaskError(f"{what} must be {expected} in a dense tensor, got layout {value.layout}")
    if value.dtype not in (torch.int32, torch.int64):
        raise MaskError(f"{what} must be int32 or int64, got {value.dtype}")
    return value


def _from_host(what: str, value: Any, expected: str) -> torch.Tensor:
    """Lists and arrays as an int32 tensor."""
    import numpy as np
    import torch

    try:
        array = np.asarray(value)
    except ValueError:
        raise MaskError(f"{what} must be {expected}, got rows of different lengths") from None
    if array.dtype.kind not in "iu":
        raise MaskError(f"{what} must be {expected}, got {_describe(value)}")
    if array.size:
        _check_range(what, (int(array.min()), int(array.max())), -LIMIT)
    return torch.from_numpy(array.astype(np.int32))


def _checked(what: str, value: Value, minimum: int) -> Value:
    if bounds := value.least_and_greatest():
        _check_range(what, bounds, minimum)
    return value


def _check_range(what: str, bounds: tuple[int, int], minimum: int, maximum: int = LIMIT) -> None:
    least, greatest = bounds
    if least < minimum:
        raise MaskError(f"{what} must be at least {minimum}, got {least}")
    if greatest > maximum:
        raise MaskError(f"{what} must be at most {maximum}, got {greatest}")


def _shape(tensor: torch.Tensor) -> str:
    return str(list(tensor.shape))


def _describe(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


__all__ = [
    "LIMIT",
    "Value",
    "ascends",
    "at_most",
    "common_batch",
    "integer",
    "offsets",
    "rows_of_table",
    "scalar",
    "table",
]
