"""What a `mask.func` means: its visible pairs, the specification that every other level is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import Block, Operation, SSAValue

from compilemask.dialects import mask
from compilemask.dialects.mask_interface import Pair, RegionInterface
from compilemask.dialects.semantics import arith
from compilemask.dialects.semantics.arith import Value


def visible(
    func: mask.FuncOp,
    arguments: Sequence[int | NDArray[np.integer]],
    queries: int,
    keys: int,
    *,
    rows: slice | None = None,
) -> NDArray[np.bool_]:
    """Which pairs one (batch, head) of a mask shows: bool [queries, keys], or the given `rows` of it.

    `arguments` are the function's parameters in order: an int for `i32`, a 1-D integer array for `memref<?xi32>`.
    """
    block = func.body.block
    if len(arguments) != len(block.args):
        raise TypeError(f"@{func.sym_name.data} takes {len(block.args)} arguments, got {len(arguments)}")
    wanted = range(queries)[rows if rows is not None else slice(None)]
    positions = np.asarray(wanted, dtype=np.int64)[:, None], np.arange(keys, dtype=np.int64)[None, :]
    plane = _Plane(queries, keys, *positions)
    for position, (argument, value) in enumerate(zip(block.args, arguments, strict=True)):
        name = argument.name_hint or f"#{position}"
        plane.values[argument] = arith.as_argument(value, argument.type, f"argument {name} of @{func.sym_name.data}")
    (result,) = plane.run(block)
    return np.array(np.broadcast_to(result, (len(wanted), keys)), dtype=np.bool_)


class _Plane:
    """Evaluates operations on a set of rows. A region is a bool array that broadcasts to [rows, keys]."""

    def __init__(self, queries: int | Value, keys: int | Value, q: Value, kv: Value) -> None:
        self.queries, self.keys, self.q, self.kv = queries, keys, q, kv
        self.values: dict[SSAValue, Value] = {}
        self.grids: dict[SSAValue, tuple[Value, Value, Value]] = {}

    def run(self, block: Block) -> tuple[Value, ...]:
        """Executes a block; the values that its terminator takes."""
        for op in block.ops:
            if isinstance(op, mask.ReturnOp | mask.YieldOp | mask.MemberOp):
                return tuple(self.values[operand] for operand in op.operands)
            if isinstance(op, mask.GridOp):
                self.grids[op.result] = (self.values[op.origin], self.values[op.height], self.values[op.width])
                continue
            self.values[op.results[0]] = self.execute(op)
        raise ValueError("a block without a terminator")

    def execute(self, op: Operation) -> Value:
        """The result of one operation."""
        if (rule := _RULES.get(type(op))) is not None:
            return rule(self, op)
        if isinstance(op, RegionInterface):
            values = [self.values[operand] for operand in op.operands]
            return np.asarray(op.visible(values, Pair(self.q, self.kv, self.queries, self.keys)), dtype=np.bool_)
        return arith.execute(op, [self.values[operand] for operand in op.operands])

    def grid(self, value: SSAValue, position: Value) -> tuple[Value, Value, Value]:
        """Whether positions lie on an image, and their y and x there."""
        origin, height, width = self.grids[value]
        offset = position - origin
        inside = (offset >= 0) & (offset < np.maximum(height, 0) * np.maximum(width, 0))
        line = np.maximum(width, 1)
        return inside, offset // line, offset % line


def _read(plane: _Plane, op: mask.ReadOp) -> Value:
    return arith.read(plane.values[op.table], plane.values[op.index])


def _band(plane: _Plane, op: mask.BandOp) -> Value:
    distance = plane.kv - plane.q
    visible = np.True_
    if op.lower is not None:
        visible = visible & (distance >= plane.values[op.lower])
    if op.upper is not None:
        visible = visible & (distance <= plane.values[op.upper])
    return np.asarray(visible)


def _strip(positions: Value, plane: _Plane, op: mask.Strip) -> Value:
    return (plane.values[op.begin] <= positions) & (positions < plane.values[op.end])


def _same(plane: _Plane, op: mask.SameOp) -> Value:
    begin, end = arith.segment_of(plane.values[op.segments], plane.q)
    return (begin <= plane.kv) & (plane.kv < end)


def _disk(plane: _Plane, op: mask.DiskOp) -> Value:
    on_q, qy, qx = plane.grid(op.grid, plane.q)
    on_kv, ky, kx = plane.grid(op.grid, plane.kv)
    return on_q & on_kv & ((qy - ky) ** 2 + (qx - kx) ** 2 < plane.values[op.radius] ** 2)


def _box(plane: _Plane, op: mask.BoxOp) -> Value:
    on_q, qy, qx = plane.grid(op.grid, plane.q)
    on_kv, ky, kx = plane.grid(op.grid, plane.kv)
    near_y = np.abs(qy - ky) <= plane.values[op.reach_y]
    near_x = np.abs(qx - kx) <= plane.values[op.reach_x]
    return on_q & on_kv & near_y & near_x


def _where(plane: _Plane, op: mask.WhereOp) -> Value:
    block = op.body.block
    plane.values[block.args[0]], plane.values[block.args[1]] = plane.q, plane.kv
    (result,) = plane.run(block)
    return result


def _lines(plane: _Plane, op: mask.LinesOp) -> Value:
    line = np.asarray((plane.kv - plane.values[op.base]) // np.maximum(plane.values[op.pitch], 1))
    block = op.body.block
    plane.values[block.args[0]], plane.values[block.args[1]] = plane.q, np.asarray(0)
    _, _, first, last = plane.run(block)
    if op.at_most is not None:
        last = np.minimum(last, first + op.at_most.value.data)
    inside = (first <= line) & (line < last)
    # Other lines are never asked; a body may overflow far outside the raster.
    plane.values[block.args[1]] = np.where(inside, line, first)
    lo, hi, _, _ = plane.run(block)
    return inside & (lo <= plane.kv) & (plane.kv < hi)


def _place(plane: _Plane, op: mask.PlaceOp) -> Value:
    row_begin, row_end, begin, end = (plane.values[operand] for operand in op.operands)
    inside = (row_begin <= plane.q) & (plane.q < row_end) & (begin <= plane.kv) & (plane.kv < end)
    sizes = row_end - row_begin, end - begin
    part = _Plane(*sizes, _within_part(plane.q - row_begin, sizes[0]), _within_part(plane.kv - begin, sizes[1]))
    part.values, part.grids = plane.values, plane.grids
    (region,) = part.run(op.body.block)
    return inside & region


def _within_part(positions: Value, size: Value) -> Value:
    """Positions outside of the part do not count; the nearest ones inside stand for them, as those do not overflow."""
    return np.clip(positions, 0, np.maximum(size - 1, 0))


_RULES: dict[type[Operation], Callable[[_Plane, Any], Value]] = {
    mask.QueriesOp: lambda plane, op: np.asarray(plane.queries),
    mask.KeysOp: lambda plane, op: np.asarray(plane.keys),
    mask.ReadOp: _read,
    mask.SearchOp: lambda plane, op: arith.search(plane.values[op.table], plane.values[op.value]),
    mask.AllOp: lambda plane, op: np.asarray(True),
    mask.NoneOp: lambda plane, op: np.asarray(False),
    mask.BandOp: _band,
    mask.RowsOp: lambda plane, op: _strip(plane.q, plane, op),
    mask.ColsOp: lambda plane, op: _strip(plane.kv, plane, op),
    mask.SegmentsOp: lambda plane, op: plane.values[op.offsets],
    mask.SameOp: _same,
    mask.DiskOp: _disk,
    mask.BoxOp: _box,
    mask.WhereOp: _where,
    mask.LinesOp: _lines,
    mask.UnionOp: lambda plane, op: plane.values[op.lhs] | plane.values[op.rhs],
    mask.IntersectOp: lambda plane, op: plane.values[op.lhs] & plane.values[op.rhs],
    mask.SubtractOp: lambda plane, op: plane.values[op.lhs] & ~plane.values[op.rhs],
    mask.ComplementOp: lambda plane, op: ~plane.values[op.region],
    mask.PlaceOp: _place,
}

__all__ = ["visible"]
