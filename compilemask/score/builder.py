"""Writes the IR of a score modification: a `tiling.score`, and the values that it captures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    Float32Type,
    FloatAttr,
    FunctionType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    ModuleOp,
    bf16,
    f16,
    f32,
    i32,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from compilemask.dialects import arith
from compilemask.dialects.tiling_score import (
    SCORE_ARGUMENTS,
    SCORE_TYPES,
    ReadOp,
    ScoreOp,
    Weights,
    YieldOp,
    score_attributes,
)
from compilemask.errors import ScoreError

if TYPE_CHECKING:
    import torch

LONGEST_TABLE = 2**31 - 1
"""Entries of a table are numbered in 32 bits."""


class Table(NamedTuple):
    """A captured tensor [B or 1, H or 1, n]: a table of n entries for each batch and query head."""

    name: str
    data: torch.Tensor
    queries: int | None = None
    keys: int | None = None
    """For how many queries and keys there are entries; None if any number."""


class Plan(NamedTuple):
    """What a score modification is to a kernel: its structure as IR, and the values that it captures."""

    text: str
    """A module that holds one `tiling.score`; equal for equal structures, whatever the values are."""
    numbers: tuple[float, ...]
    captured: tuple[Table, ...]
    """The sink, if there is one, then the tables that the region reads."""
    has_lse: bool


@dataclass(frozen=True)
class _Captured:
    argument: SSAValue
    value: float | Table


class ScoreBuilder:
    """Collects the operations and the captured values of one score modification."""

    def __init__(self) -> None:
        self.block = Block(arg_types=SCORE_TYPES)
        for argument, name in zip(self.block.args, SCORE_ARGUMENTS, strict=True):
            argument.name_hint = name
        self.weights = Weights.SOFTMAX
        self.sink: Table | None = None
        self._captured: list[_Captured] = []
        self._constants: dict[tuple[Attribute, float], SSAValue] = {}

    @property
    def pair(self) -> tuple[SSAValue, SSAValue, SSAValue, SSAValue]:
        """b, h, q and kv of the pair, i32."""
        b, h, q, kv = self.block.args[1 : len(SCORE_TYPES)]
        return b, h, q, kv

    def add(self, op: Operation) -> SSAValue:
        """Appends an operation; its result."""
        self.block.add_op(op)
        return op.results[0]

    def constant(self, value: float, type_: Float32Type | IntegerType = f32) -> SSAValue:
        """A number that is part of the structure."""
        key = (type_, value)
        if key not in self._constants:
            is_float = isinstance(type_, Float32Type)
            attribute = FloatAttr(float(value), type_) if is_float else IntegerAttr(int(value), type_)
            self._constants[key] = self.add(xdsl_arith.ConstantOp(attribute))
        return self._constants[key]

    def number(self, name: str, value: float | torch.Tensor) -> SSAValue:
        """A run-time number, f32: a Python number, or the one entry of a table [B or 1, H or 1, 1]."""
        if isinstance(value, int | float):
            return self._capture(name, f32, float(value))
        return self.read(self.table(name, value), self.constant(0, i32))

    def table(self, name: str, data: torch.Tensor, queries: int | None = None, keys: int | None = None) -> SSAValue:
        """A run-time table, with entries for so many queries and keys; the same tensor twice is the same argument."""
        for known in self._captured:
            if isinstance(known.value, Table) and known.value.data is data:
                return known.argument
        captured = Table(name, data, queries, keys)
        return self._capture(name, MemRefType(element_type(name, data), [DYNAMIC_INDEX]), captured)

    def read(self, table: SSAValue, index: SSAValue) -> SSAValue:
        """An entry of a table, as f32 or i32."""
        entry = self.add(ReadOp(table, index))
        return self.add(arith.ExtFOp(entry, f32)) if entry.type in (f16, bf16) else entry

    def distance(self) -> SSAValue:
        """kv - q, i32."""
        _, _, q, kv = self.pair
        return self.add(xdsl_arith.SubiOp(kv, q))

    def _capture(self, name: str, type_: Attribute, value: float | Table) -> SSAValue:
        argument = self.block.insert_arg(type_, len(self.block.args))
        argument.name_hint = name
        self._captured.append(_Captured(argument, value))
        return argument

    def finish(self, name: str, score: SSAValue) -> Plan:
        """The plan of a modification whose result is `score`."""
        self.block.add_op(YieldOp(score))
        type_ = FunctionType.from_lists([argument.type for argument in self.block.args], [f32])
        sink = None if self.sink is None else element_type(self.sink.name, self.sink.data)
        attributes = score_attributes(self.weights, sink)
        module = ModuleOp([ScoreOp(name, type_, Region(self.block), attributes)])
        module.verify()
        values = [captured.value for captured in self._captured]
        numbers = tuple(value for value in values if not isinstance(value, Table))
        tables = [value for value in (self.sink, *values) if isinstance(value, Table)]
        return Plan(str(module), numbers, tuple(tables), self.weights is Weights.SOFTMAX)


def element_type(name: str, data: torch.Tensor) -> Attribute:
    """What a kernel reads of a tensor: float64, which only the CPU takes, counts as f32, all integers as i32.

    Raises ScoreError for other types, empty tensors and tensors with too many entries.
    """
    import torch

    if 0 in data.shape or data.shape[-1] > LONGEST_TABLE:
        raise ScoreError(
            f"{name} has shape {list(data.shape)}; expected 1 to {LONGEST_TABLE} entries per batch and head"
        )
    floats = {torch.float32: f32, torch.float64: f32, torch.float16: f16, torch.bfloat16: bf16}
    if data.dtype in floats:
        return floats[data.dtype]
    if data.dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool):
        return i32
    raise ScoreError(f"{name} is {data.dtype}, expected a float or integer type")


__all__ = ["Plan", "ScoreBuilder", "Table", "element_type"]
