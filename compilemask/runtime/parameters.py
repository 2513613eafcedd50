"""A mask's run-time parameters as kernels and the numpy semantics take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.weak import WeakIdKeyDictionary

from compilemask.errors import DTypeError, MaskError, ShapeError
from compilemask.lowering.patch_grid import Patches
from compilemask.passes.interval_patch import extra_arguments
from compilemask.runtime.modes import has_content

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)


class Parameter(NamedTuple):
    """One parameter: an integer, or a table of shape [L], [B, L] or [B, H, L] (B and H may be 1)."""

    name: str
    value: int | torch.Tensor

    @property
    def is_table(self) -> bool:
        """Whether the value is a tensor."""
        return isinstance(self.value, torch.Tensor)

    @property
    def of_all_masks(self) -> int | torch.Tensor:
        """The integer, or the table as [B, H, L]."""
        return _three_dimensions(self.value) if isinstance(self.value, torch.Tensor) else self.value

    @property
    def batch_shape(self) -> tuple[int, int]:
        """(B, H) of the table; (1, 1) of an integer."""
        if not isinstance(self.value, torch.Tensor):
            return 1, 1
        batch, heads, _ = _three_dimensions(self.value).shape
        return batch, heads

    def of_mask(self, batch: int, head: int) -> int | NDArray[np.int32]:
        """What one mask reads: an int, or its table on the CPU as int32 [L]."""
        if not isinstance(self.value, torch.Tensor):
            return self.value
        table = _three_dimensions(self.value)
        row = table[min(batch, table.shape[0] - 1), min(head, table.shape[1] - 1)]
        return row.to("cpu", torch.int32).numpy()

    @property
    def form(self) -> object:
        """Equal for parameters that kernels are given the same numbers for, but for the addresses of tables."""
        value = self.value
        return (value.shape, value.stride()) if isinstance(value, torch.Tensor) else value

    def kernel_arguments(self) -> list[int]:
        """The integer, or pointer, length, batch stride and head stride of an int32 table on the device."""
        if not isinstance(self.value, torch.Tensor):
            return [self.value]
        table = _three_dimensions(self.value)
        strides = [0 if size == 1 else stride for size, stride in zip(table.shape[:2], table.stride()[:2], strict=True)]
        return [table.data_ptr(), table.shape[2], *strides]


def image_parameters(patches: Patches) -> tuple[Parameter, ...]:
    """What functions in patched order take behind the parameters of the mask (passes/interval_patch.py)."""
    values = (patches.origin, *patches.sizes, patches.length)
    return tuple(Parameter(*pair) for pair in zip(extra_arguments(len(patches.sizes)), values, strict=True))


def checked_parameter(name: str, value: object, is_table: bool) -> Parameter:
    """A parameter from what a caller gave. Raises DTypeError, ShapeError or MaskError if a mask cannot use it."""
    if not is_table:
        if isinstance(value, torch.Tensor) and value.dim() == 0 and value.device.type == "cpu":
            value = value.item()
        if isinstance(value, np.integer):
            value = int(cast("Any", value))
        if isinstance(value, bool) or not isinstance(value, int):
            raise DTypeError(f"parameter {name} is a {type(value).__name__}, expected an int")
        if not INT32_MIN <= value <= INT32_MAX:
            raise MaskError(f"parameter {name} is {value}, which is no 32-bit integer")
        return Parameter(name, value)
    table = value if isinstance(value, torch.Tensor) else _from_sequence(name, value)
    if table.dtype not in _INTEGERS:
        raise DTypeError(f"table {name} is {table.dtype}, expected integers (int32 is used without a copy)")
    if not 1 <= table.dim() <= 3 or 0 in table.shape:
        raise ShapeError(
            f"table {name} has shape {tuple(table.shape)}, expected [L], [B, L] or [B, H, L] with no empty dimension"
        )
    return Parameter(name, table)


def _from_sequence(name: str, value: object) -> torch.Tensor:
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str):
        raise DTypeError(f"table {name} is a {type(value).__name__}, expected a tensor or a list of integers")
    try:
        array = np.asarray(cast("Any", value))
    except ValueError as error:
        raise DTypeError(f"table {name} is no list of integers: {error}") from None
    if array.dtype.kind not in "iu":
        raise DTypeError(f"table {name} holds {array.dtype}, expected integers")
    return torch.as_tensor(array.astype(np.int64))


def batch_shape(parameters: Sequence[Parameter]) -> tuple[int, int]:
    """(B, H) of the masks that the parameters describe together. Raises ShapeError if two tables disagree."""
    result = [1, 1]
    for parameter in parameters:
        for axis, size in enumerate(parameter.batch_shape):
            if size not in (1, result[axis]) and result[axis] != 1:
                name = ("batch", "heads")[axis]
                raise ShapeError(
                    f"table {parameter.name} has {name} {size}, another has {result[axis]}; expected the same or 1"
                )
            result[axis] = max(result[axis], size)
    return result[0], result[1]


_copies: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""Copies on devices of tables that live on the host: table -> {device: (version, copy)}."""


def on_device(parameter: Parameter, device: torch.device) -> Parameter:
    """The parameter with its table as contiguous int32 on `device`.

    A table that is so already is used as it is: later builds see what is written to it later, also inside a CUDA graph.
    A copy from the host is kept and used again for as long as the table lives and is not written to.
    """
    table = parameter.value
    if not isinstance(table, torch.Tensor):
        return parameter
    if table.device == device and table.dtype == torch.int32 and table.is_contiguous():
        return parameter
    if table.device.type != "cpu" or device.type == "cpu" or not has_content():
        return Parameter(parameter.name, _usable(parameter.name, table, device))
    version = None if table.is_inference() else table._version
    if table not in _copies:
        _copies[table] = {}
    copies = cast("dict[torch.device, tuple[int | None, torch.Tensor]]", _copies[table])
    known = copies.get(device)
    if known is None or version is None or known[0] != version:
        known = (version, _usable(parameter.name, table, device))
        copies[device] = known
    return Parameter(parameter.name, known[1])


def _usable(name: str, table: torch.Tensor, device: torch.device) -> torch.Tensor:
    if table.dtype == torch.int64 and table.device.type == "cpu":
        least, most = (int(x) for x in torch.aminmax(table))
        if least < INT32_MIN or most > INT32_MAX:
            raise MaskError(f"table {name} holds {least if least < INT32_MIN else most}, which is no 32-bit integer")
    return table.to(device=device, dtype=torch.int32).contiguous()


def _three_dimensions(table: torch.Tensor) -> torch.Tensor:
    if table.dim() == 1:
        return table[None, None]
    return table[:, None] if table.dim() == 2 else table
