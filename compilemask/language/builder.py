"""Writes the IR of a mask: a `mask.func` with one argument per run-time parameter."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import DYNAMIC_INDEX, FunctionType, IntegerAttr, MemRefType, ModuleOp, i32
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from compilemask.dialects import mask as dialect
from compilemask.language.values import Value
from compilemask.passes.bound_emission import constant_name

if TYPE_CHECKING:
    import torch

    from compilemask.language.mask import Mask

TABLE = MemRefType(i32, [DYNAMIC_INDEX])
"""The type of a parameter in memory, `memref<?xi32>`."""


@dataclass(frozen=True, eq=False)
class Parameter:
    """An argument of a mask's function and its value.

    `value` is an int, or, if `is_table`, an int32 or int64 tensor of shape [B, H, n] with B and H 1 where masks
    share it; a scalar in memory is a table with n = 1.
    """

    name: str
    value: int | torch.Tensor
    is_table: bool


class Builder:
    """Collects the operations and the parameters of one mask. Masks and tensors that are met twice are written once."""

    def __init__(self) -> None:
        self.block = Block()
        self._target = self.block
        self.values: list[tuple[str, Value]] = []
        self._constants: dict[int, SSAValue] = {}
        self._last_constant: Operation | None = None
        self._tables: dict[tuple[int, bool], SSAValue] = {}
        self._regions: dict[int, SSAValue] = {}
        self._hints: dict[str, int] = {}

    def constant(self, value: int) -> SSAValue:
        """An integer that is part of the mask's structure."""
        if value not in self._constants:
            op = ConstantOp(IntegerAttr(value, i32))
            if self._last_constant is not None:
                self.block.insert_op_after(op, self._last_constant)
            elif self.block.first_op is not None:
                self.block.insert_op_before(op, self.block.first_op)
            else:
                self.block.add_op(op)
            self._last_constant = op
            op.result.name_hint = constant_name(value)
            self._constants[value] = op.result
        return self._constants[value]

    def scalar(self, hint: str, value: Value) -> SSAValue:
        """A run-time integer: an `i32` argument, or the entry of a table."""
        if not value.is_table:
            return self._argument(hint, i32, value)
        return self.add(dialect.ReadOp(self.table(hint, value), self.constant(0)), hint)

    def table(self, hint: str, value: Value) -> SSAValue:
        """A run-time table: a `memref<?xi32>` argument."""
        key = value.identity
        if key not in self._tables:
            self._tables[key] = self._argument(hint, TABLE, value)
        return self._tables[key]

    def _argument(self, hint: str, kind: Attribute, value: Value) -> SSAValue:
        argument = self.block.insert_arg(kind, len(self.block.args))
        stem, name = self._unique(hint)
        argument.name_hint = stem
        self._hints[stem] = self._hints.get(stem, 0) + 1
        self.values.append((name, value))
        return argument

    def _unique(self, hint: str) -> tuple[str, str]:
        """A name hint, and the name that printed IR makes of it: it adds `_1`, `_2` to names that it meets again.

        A hint that ends in such a suffix itself keeps it if that is what will be printed, and otherwise loses the `_`.
        """
        stem, suffix = re.fullmatch(r"(.*?)((?:_\d+)?)", hint).groups()  # pyright: ignore[reportOptionalMemberAccess]
        count = self._hints.get(stem, 0)
        name = f"{stem}_{count}" if count else stem
        if (suffix and name != hint) or not stem or stem[0].isdigit():
            return self._unique(re.sub(r"^(?=\d|$)", "arg", stem) + suffix.removeprefix("_"))
        return stem, name

    def add(self, op: Operation, hint: str | None = None) -> SSAValue:
        """Appends an operation; its result, named `hint` in printed IR."""
        self._target.add_op(op)
        if hint is not None:
            op.results[0].name_hint = hint
        return op.results[0]

    @contextmanager
    def body(self) -> Generator[Block, None, None]:
        """Writes into a new block, the body of an operation, until the end of the context; masks are written anew."""
        around = self._target, self._regions
        self._target, self._regions = Block(), {}
        try:
            yield self._target
        finally:
            self._target, self._regions = around

    def region(self, mask: Mask) -> SSAValue:
        """The region of a mask, written on the first call. Not recursive: a mask may combine thousands of others."""
        pending = [mask]
        while pending:
            last = pending[-1]
            outside = () if last.HAS_BODIES else last.operands
            missing = [operand for operand in outside if id(operand) not in self._regions]
            if not missing and id(last) not in self._regions:
                self._regions[id(last)] = last.emit(self)
            if missing:
                pending.extend(reversed(missing))
            else:
                pending.pop()
        return self._regions[id(mask)]

    def finish(self, name: str, region: SSAValue) -> ModuleOp:
        """The verified module with the function `name` that returns `region`."""
        self.block.add_op(dialect.ReturnOp(region))
        kind = FunctionType.from_lists([argument.type for argument in self.block.args], [dialect.RegionType()])
        module = ModuleOp([dialect.FuncOp(name, kind, Region(self.block))])
        module.verify()
        return module


__all__ = ["TABLE", "Builder", "Parameter"]
