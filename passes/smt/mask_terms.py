"""What a `mask.func` means at one unknown pair: the specification, as a formula."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

from xdsl.ir import Block, Operation, SSAValue

from compilemask.dialects import mask
from compilemask.dialects.mask_interface import Pair, RegionInterface
from compilemask.passes.smt import arith_terms, lemmas
from compilemask.passes.smt.call import Call, ascending_tables
from compilemask.passes.smt.library import Term, z3
from compilemask.passes.smt.world import World


def visible(world: World, func: mask.FuncOp, call: Call) -> Term:
    """Whether the pair of the call is visible."""
    return _Plane(world, func, call).run(func.body.block)[0]


class _Plane:
    """Evaluates operations at the pair. A region is a formula."""

    def __init__(self, world: World, func: mask.FuncOp, call: Call) -> None:
        self.world, self.call = world, call
        self.values: dict[SSAValue, Any] = dict(zip(func.body.block.args, call.parameters, strict=True))

    def run(self, block: Block) -> tuple[Term, ...]:
        """Executes a block; the values that its terminator takes."""
        for op in block.ops:
            if isinstance(op, mask.ReturnOp | mask.YieldOp | mask.MemberOp):
                return tuple(self.values[operand] for operand in op.operands)
            self.values[op.results[0]] = self._execute(op)
        raise ValueError("a block without a terminator")

    def _execute(self, op: Operation) -> Any:
        if (rule := _RULES.get(type(op))) is not None:
            return rule(self, op)
        if isinstance(op, RegionInterface):
            pair = Pair(self.call.q, self.call.kv, self.call.queries, self.call.keys)
            return op.formula([self.values[operand] for operand in op.operands], pair)
        return arith_terms.execute(self.world, op, [self.values[operand] for operand in op.operands])

    def on_grid(self, grid: SSAValue, position: Term) -> tuple[Term, Term, Term]:
        """Whether a position lies on an image, and its y and x there."""
        origin, height, width = self.values[grid]
        offset = position - origin
        y, x = self.world.quotient(offset, width)
        self.world.know(lemmas.raster(y, x, height, width))
        return z3().And(offset >= 0, offset < height * width), y, x


def _grid(plane: _Plane, op: mask.GridOp) -> tuple[Term, Term, Term]:
    """An image has lines of at least one token, and its height is no less than zero."""
    origin, height, width = (plane.values[operand] for operand in (op.origin, op.height, op.width))
    plane.world.know(height >= 0, width >= 1)
    return origin, height, width


def _band(plane: _Plane, op: mask.BandOp) -> Term:
    distance = plane.call.kv - plane.call.q
    above = [distance >= plane.values[op.lower]] if op.lower is not None else []
    below = [distance <= plane.values[op.upper]] if op.upper is not None else []
    return z3().And(*above, *below)


def _strip(position: Term, plane: _Plane, op: mask.Strip) -> Term:
    return z3().And(plane.values[op.begin] <= position, position < plane.values[op.end])


def _same(plane: _Plane, op: mask.SameOp) -> Term:
    table = plane.values[op.segments]
    on_q, segment_q = table.segment_of(plane.call.q)
    on_kv, segment_kv = table.segment_of(plane.call.kv)
    return z3().And(on_q, on_kv, segment_q == segment_kv)


def _disk(plane: _Plane, op: mask.DiskOp) -> Term:
    on_q, qy, qx = plane.on_grid(op.grid, plane.call.q)
    on_kv, ky, kx = plane.on_grid(op.grid, plane.call.kv)
    dy, dx, radius = qy - ky, qx - kx, plane.values[op.radius]
    plane.world.know(radius >= 0, lemmas.disk(dy, dx, radius))
    plane.world.distance(dx)
    return z3().And(on_q, on_kv, dy * dy + dx * dx < radius * radius)


def _box(plane: _Plane, op: mask.BoxOp) -> Term:
    on_q, qy, qx = plane.on_grid(op.grid, plane.call.q)
    on_kv, ky, kx = plane.on_grid(op.grid, plane.call.kv)
    near = [
        z3().And(-reach <= distance, distance <= reach)
        for distance, reach in ((qy - ky, plane.values[op.reach_y]), (qx - kx, plane.values[op.reach_x]))
    ]
    return z3().And(on_q, on_kv, *near)


def _where(plane: _Plane, op: mask.WhereOp) -> Term:
    block = op.body.block
    plane.call.assume_ascending(ascending_tables(op))
    plane.values[block.args[0]], plane.values[block.args[1]] = plane.call.q, plane.call.kv
    return plane.run(block)[0]


def _lines(plane: _Plane, op: mask.LinesOp) -> Term:
    """A raster has lines of at least one key."""
    world, kv, block = plane.world, plane.call.kv, op.body.block
    base, pitch = plane.values[op.base], plane.values[op.pitch]
    world.know(pitch >= 1)
    line, _ = world.quotient(kv - base, pitch)
    plane.values[block.args[0]], plane.values[block.args[1]] = plane.call.q, line
    lo, hi, first, last = plane.run(block)
    few = [] if op.at_most is None else [line < first + op.at_most.value.data]
    return z3().And(first <= line, line < last, lo <= kv, kv < hi, *few)


def _search(plane: _Plane, op: mask.SearchOp) -> Term:
    table = plane.values[op.table]
    table.ascending = True
    return table.search(plane.values[op.value])


def _place(plane: _Plane, op: mask.PlaceOp) -> Term:
    call = plane.call
    call.assume_ascending(ascending_tables(op))
    row_begin, row_end, begin, end = (plane.values[operand] for operand in op.operands)
    part = copy(plane)
    part.call = replace(call, q=call.q - row_begin, kv=call.kv - begin, queries=row_end - row_begin, keys=end - begin)
    inside = (row_begin <= call.q, call.q < row_end, begin <= call.kv, call.kv < end)
    return z3().And(*inside, part.run(op.body.block)[0])


_RULES: dict[type[Operation], Callable[[_Plane, Any], Any]] = {
    mask.QueriesOp: lambda plane, op: plane.call.queries,
    mask.KeysOp: lambda plane, op: plane.call.keys,
    mask.ReadOp: lambda plane, op: plane.values[op.table].read(plane.values[op.index]),
    mask.SearchOp: _search,
    mask.AllOp: lambda plane, op: z3().BoolVal(True),
    mask.NoneOp: lambda plane, op: z3().BoolVal(False),
    mask.BandOp: _band,
    mask.RowsOp: lambda plane, op: _strip(plane.call.q, plane, op),
    mask.ColsOp: lambda plane, op: _strip(plane.call.kv, plane, op),
    mask.SegmentsOp: lambda plane, op: plane.values[op.offsets],
    mask.SameOp: _same,
    mask.GridOp: _grid,
    mask.DiskOp: _disk,
    mask.BoxOp: _box,
    mask.WhereOp: _where,
    mask.LinesOp: _lines,
    mask.UnionOp: lambda plane, op: z3().Or(plane.values[op.lhs], plane.values[op.rhs]),
    mask.IntersectOp: lambda plane, op: z3().And(plane.values[op.lhs], plane.values[op.rhs]),
    mask.SubtractOp: lambda plane, op: z3().And(plane.values[op.lhs], z3().Not(plane.values[op.rhs])),
    mask.ComplementOp: lambda plane, op: z3().Not(plane.values[op.region]),
    mask.PlaceOp: _place,
}

__all__ = ["visible"]
