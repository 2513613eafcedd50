"""What a mask's structure asks of its parameters' values, whoever gives them: constructors check the same, and more.

Read off the mask's IR: tables of segments and of parts ascend from 0 or more, those that are searched or said to ascend
do, images are at least 1 wide and 0 high, and the lines of a raster are at least 1 long.
Only values in host memory are checked; device memory is never read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import BlockArgument, SSAValue

from compilemask.dialects import mask
from compilemask.dialects.function import ascending_tables
from compilemask.errors import MaskError
from compilemask.runtime.parameters import Parameter

Check = Callable[[str, Any], None]
"""Takes the parameter's name and its value, a table or an integer."""


def _ascending(what: str, table: torch.Tensor) -> None:
    if int(table.min()) < 0:
        raise MaskError(f"{what} must not be negative, but holds {int(table.min())}")
    _never_falling(what, table)


def _never_falling(what: str, table: torch.Tensor) -> None:
    falls = (table.diff(dim=-1) < 0).nonzero()
    if len(falls):
        *leading, at = cast("list[int]", falls[0].tolist())
        row = table[tuple(leading)]
        raise MaskError(
            f"{what} must ascend, but entry {at} is {int(row[at])} and entry {at + 1} is {int(row[at + 1])}"
        )


def _at_least(least: int) -> Check:
    def check(what: str, values: int | torch.Tensor) -> None:
        found = values if isinstance(values, int) else int(values.min())
        if found < least:
            raise MaskError(f"{what} must be at least {least}, got {found}")

    return check


def requirements(func: mask.FuncOp) -> tuple[tuple[int, Check], ...]:
    """Checks by position of the parameter that they look at."""
    found: list[tuple[int, Check]] = []
    for op in func.body.walk():
        if isinstance(op, mask.SegmentsOp) and isinstance(op.offsets, BlockArgument):
            found.append((op.offsets.index, _ascending))
        elif isinstance(op, mask.SearchOp) and isinstance(op.table, BlockArgument):
            found.append((op.table.index, _never_falling))
        elif isinstance(op, mask.WhereOp):
            found += [(number, _never_falling) for number in ascending_tables(op)]
        elif isinstance(op, mask.PlaceOp):
            found += [(number, _ascending) for number in ascending_tables(op)]
        elif isinstance(op, mask.GridOp | mask.LinesOp):
            sizes = ((op.height, 0), (op.width, 1)) if isinstance(op, mask.GridOp) else ((op.pitch, 1),)
            for value, least in sizes:
                if (position := _parameter(value)) is not None:
                    found.append((position, _at_least(least)))
    return tuple(found)


def _parameter(value: SSAValue) -> int | None:
    """The position of the parameter that is this number, itself or as the first entry of its table."""
    if isinstance(value, BlockArgument):
        return value.index
    read = value.owner
    if not isinstance(read, mask.ReadOp) or not isinstance(read.table, BlockArgument):
        return None
    index = read.index.owner
    first = isinstance(index, ConstantOp) and isinstance(index.value, IntegerAttr) and index.value.value.data == 0
    return read.table.index if first else None


def check_values(name: str, wanted: Sequence[tuple[int, Check]], parameters: Sequence[Parameter]) -> None:
    """Raises MaskError if a value in host memory is not what the mask @`name` asks for."""
    for position, check in wanted:
        parameter = parameters[position]
        value = parameter.value
        if isinstance(value, int) or value.is_cpu:
            check(f"@{name}: {parameter.name}", value)
