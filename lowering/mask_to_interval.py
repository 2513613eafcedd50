"""`mask-to-interval`: a region of the (query, key) plane becomes, for one query row, the set of keys that it sees.

Each leaf has a closed form; set operations become set operations (`interval-normalize` works them out). A predicate
(`mask.where`) is solved for the key (predicate_to_interval.py); as far as that fails, it becomes a `between`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import ArrayAttr, FunctionType, IntegerAttr, ModuleOp, i32, i64
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from compilemask.dialects import arith, interval, mask
from compilemask.dialects.function import ascending_tables
from compilemask.dialects.mask_interface import RegionInterface
from compilemask.errors import LoweringError
from compilemask.lowering.predicate_to_interval import Frame, Sets, lower_predicate
from compilemask.passes.bound_emission import constant_name

ASCENDING = "ascending"
"""The attribute that lists ascending tables by number: of a `mask.where` or a `mask.place` among the parameters of its
function, of an interval function among its arguments.
"""
LEADING_ARGUMENTS = ("q", "queries", "keys")
"""Arguments that an interval function has before the mask's parameters."""


@dataclass(frozen=True)
class Grid:
    """The i32 values that say a grid."""

    origin: SSAValue
    height: SSAValue
    width: SSAValue


@dataclass(frozen=True)
class Part:
    """The part of the plane that a `mask.place` gives its body. What is lowered there is right inside of it, and the
    place cuts off the rest.
    """

    queries: SSAValue
    keys: SSAValue
    """The numbers of queries and keys that the body sees."""
    first_row: SSAValue | None = None
    first_key: SSAValue | None = None
    """Where the part begins in the plane, unless that is at 0."""


class FunctionLowering:
    """Lowers one `mask.func`; `values` maps its values to sets, integers, grids or offset tables.

    `q` is the row as the mask that is being lowered counts it; sets hold keys of the whole plane, up to `keys`.
    """

    def __init__(self, func: mask.FuncOp) -> None:
        self.func = func
        inputs = func.function_type.inputs.data
        self.block = Block(arg_types=[*[i32] * len(LEADING_ARGUMENTS), *inputs])
        self.builder = Builder(InsertPoint.at_end(self.block))
        self.q, self.queries, self.keys = self.block.args[:3]
        self.part = Part(self.queries, self.keys)
        self.values: dict[SSAValue, Any] = {}
        for name, argument in zip(LEADING_ARGUMENTS, self.block.args[:3], strict=True):
            argument.name_hint = name
        for old, new in zip(func.body.block.args, self.block.args[3:], strict=True):
            new.name_hint = old.name_hint
            self.values[old] = new
        self._constants: dict[int, SSAValue] = {}
        self.ascending: set[int] = set()
        """The parameters that are known to be ascending tables."""

    def lower(self) -> interval.FuncOp:
        """The interval function."""
        returned: SSAValue | None = None
        for op in self.func.body.block.ops:
            if isinstance(op, mask.ReturnOp):
                returned = self.values[op.value]
                self.builder.insert(interval.ReturnOp(self.values[op.value]))
            else:
                self._lower(op)
        assert returned is not None
        inputs = [argument.type for argument in self.block.args]
        positions = [IntegerAttr(len(LEADING_ARGUMENTS) + number, i64) for number in sorted(self.ascending)]
        facts: dict[str, Attribute] = {ASCENDING: ArrayAttr(positions)} if positions else {}
        kind = FunctionType.from_lists(inputs, [returned.type])
        return interval.FuncOp(self.func.sym_name, kind, Region(self.block), facts)

    def _lower(self, op: Operation) -> None:
        rule = _RULES.get(type(op))
        if rule is not None:
            self._define(op, rule(self, op))
        elif isinstance(op, RegionInterface):
            self._define(op, op.intervals(self, [self.values[operand] for operand in op.operands]))
        elif op.name.startswith("arith."):
            clone = self.builder.insert(op.clone(value_mapper={o: self.values[o] for o in op.operands}))
            self.values.update(zip(op.results, clone.results, strict=True))
        else:
            raise LoweringError(f"mask-to-interval: no rule for {op.name} in @{self.func.sym_name.data}")

    def _define(self, op: Operation, value: Any) -> None:
        self.values[op.results[0]] = value
        if isinstance(value, SSAValue) and value.name_hint is None:
            value.name_hint = op.results[0].name_hint

    # ---- small emissions ----

    def insert(self, op: Operation) -> SSAValue:
        """Emit an operation and give its first result."""
        return self.builder.insert(op).results[0]

    def constant(self, value: int) -> SSAValue:
        """An i32 constant, one per value."""
        if value not in self._constants:
            first = self.block.first_op
            point = InsertPoint.at_end(self.block) if first is None else InsertPoint.before(first)
            constant = Builder(point).insert(xdsl_arith.ConstantOp(IntegerAttr(value, i32))).result
            constant.name_hint = constant_name(value)
            self._constants[value] = constant
        return self._constants[value]

    def add(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """a + b."""
        return self.insert(xdsl_arith.AddiOp(a, b))

    def sub(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """a - b."""
        return self.insert(xdsl_arith.SubiOp(a, b))

    def mul(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """a * b."""
        return self.insert(xdsl_arith.MuliOp(a, b))

    def within(self, lo: SSAValue, value: SSAValue, hi: SSAValue) -> SSAValue:
        """lo <= value < hi."""
        above = self.insert(arith.CmpiOp(value, lo, "sge"))
        return self.insert(xdsl_arith.AndIOp(above, self.insert(arith.CmpiOp(value, hi, "slt"))))

    def key(self, position: SSAValue) -> SSAValue:
        """The key of the plane at a position of the part."""
        return position if self.part.first_key is None else self.add(self.part.first_key, position)

    # ---- leaves ----

    def everything(self, op: mask.AllOp) -> SSAValue:
        """[0, keys)."""
        return self.insert(interval.RangeOp(self.constant(0), self.keys))

    def nothing(self, op: mask.NoneOp) -> SSAValue:
        """No interval."""
        return self.insert(interval.ConcatOp([]))

    def band(self, op: mask.BandOp) -> SSAValue:
        """[q + lower, q + upper + 1)."""
        lo, hi = self.constant(0), self.keys
        if op.lower is not None:
            lo = self.key(self.add(self.q, self.values[op.lower]))
        if op.upper is not None:
            hi = self.key(self.add(self.add(self.q, self.values[op.upper]), self.constant(1)))
        return self.insert(interval.RangeOp(lo, hi))

    def rows(self, op: mask.RowsOp) -> SSAValue:
        """Everything on some rows."""
        inside = self.within(self.values[op.begin], self.q, self.values[op.end])
        whole = self.insert(interval.RangeOp(self.constant(0), self.keys))
        return self.insert(interval.WhenOp(inside, whole))

    def cols(self, op: mask.ColsOp) -> SSAValue:
        """The same keys on all rows."""
        return self.insert(interval.RangeOp(self.key(self.values[op.begin]), self.key(self.values[op.end])))

    def same(self, op: mask.SameOp) -> SSAValue:
        """The segment that holds q."""
        row = self.q
        if self.part.first_row is not None:  # rows before the part: no position of a segment is negative
            row = self.insert(xdsl_arith.MaxSIOp(row, self.constant(0)))
        found = self.builder.insert(interval.SegmentOfOp(self.values[op.segments], row))
        found.begin.name_hint, found.end.name_hint = "begin", "end"
        return self.insert(interval.RangeOp(self.key(found.begin), self.key(found.end)))

    # ---- windows on a grid ----

    def grid(self, op: mask.GridOp) -> Grid:
        """Only its numbers."""
        return Grid(self.values[op.origin], self.values[op.height], self.values[op.width])

    def disk(self, op: mask.DiskOp) -> SSAValue:
        """On the line dy away, the chord of half length isqrt(radius^2 - 1 - dy^2) around q's column.

        Only the square of the radius counts, so a negative one is as good.
        """
        radius = self.values[op.radius]
        if (known := _constant_of(radius)) is None:
            radius = self.insert(xdsl_arith.MaxSIOp(radius, self.sub(self.constant(0), radius)))
        elif known < 0:
            radius = self.constant(-known)
        square = self.sub(self.mul(radius, radius), self.constant(1))
        square.name_hint = "square"
        reach = self.sub(radius, self.constant(1))

        def half_chord(body: Builder, dy: SSAValue) -> SSAValue:
            left = body.insert(xdsl_arith.SubiOp(square, body.insert(xdsl_arith.MuliOp(dy, dy)).result)).result
            half = body.insert(interval.IsqrtOp(left)).result
            half.name_hint = "half"
            return half

        return self._window(self.values[op.grid], reach, half_chord)

    def box(self, op: mask.BoxOp) -> SSAValue:
        """On each line in reach, the same columns around q's."""
        reach_x = self.values[op.reach_x]
        return self._window(self.values[op.grid], self.values[op.reach_y], lambda body, dy: reach_x)

    def _window(self, grid: Grid, reach: SSAValue, half: Callable[[Builder, SSAValue], SSAValue]) -> SSAValue:
        """Lines y - reach to y + reach of the grid; on each one the columns x - half to x + half, which its cell
        clips.
        """
        position = self.sub(self.q, grid.origin)
        position.name_hint = "position"
        y = self.insert(xdsl_arith.DivSIOp(position, grid.width))
        y.name_hint = "y"
        x = self.sub(position, self.mul(y, grid.width))
        first = self.insert(xdsl_arith.MaxSIOp(self.sub(y, reach), self.constant(0)))
        last = self.insert(xdsl_arith.MinSIOp(self.add(self.add(y, reach), self.constant(1)), grid.height))
        one = self.constant(1)
        block = Block(arg_types=[i32])
        line = block.args[0]
        line.name_hint = "line"
        origin = self.key(grid.origin)
        body = Builder(InsertPoint.at_end(block))
        dy = body.insert(xdsl_arith.SubiOp(line, y)).result
        start = body.insert(xdsl_arith.MuliOp(line, grid.width)).result
        start = body.insert(xdsl_arith.AddiOp(origin, start)).result
        centre = body.insert(xdsl_arith.AddiOp(start, x)).result
        reach_x = half(body, dy)
        lo = body.insert(xdsl_arith.SubiOp(centre, reach_x)).result
        hi = body.insert(xdsl_arith.AddiOp(centre, reach_x)).result
        body.insert(interval.MemberOp(lo, body.insert(xdsl_arith.AddiOp(hi, one)).result))
        arity = interval.UNBOUNDED
        if (known := _constant_of(reach)) is not None:
            arity = max(2 * known + 1, 0)
        family = self.insert(interval.FamilyOp(first, last, origin, grid.width, Region(block), arity))
        end = self.add(grid.origin, self.mul(grid.height, grid.width))
        return self.insert(interval.WhenOp(self.within(grid.origin, self.q, end), family))

    def where(self, op: mask.WhereOp) -> SSAValue:
        """The predicate solved for the key; a `between` where that is not possible."""
        searched = [inner.table for inner in op.body.block.ops if isinstance(inner, mask.SearchOp)]
        numbers = [table.index for table in searched if isinstance(table, BlockArgument)]
        ascending = {*ascending_tables(op), *numbers}
        self.ascending.update(ascending)
        sets = lower_predicate(
            op,
            self.builder,
            self.values,
            Frame(self.q, self.part.queries, self.part.keys, self.part.first_key),
            self.block.args[0],
            self.keys,
            frozenset(self.block.args[len(LEADING_ARGUMENTS) + i] for i in ascending),
        )
        return sets.inner if sets.inner is sets.outer else self._between(op, sets)

    def _between(self, op: mask.WhereOp, sets: Sets) -> SSAValue:
        """Decided by the predicate between an inner and an outer set."""
        between = interval.BetweenOp(sets.inner, sets.outer, why=sets.why)
        body = Builder(InsertPoint.at_end(between.body.block))
        mapping: dict[SSAValue, Any] = dict(self.values)
        for old, new in zip(op.body.block.args, between.body.block.args, strict=True):
            new.name_hint = old.name_hint
            mapping[old] = new
        for old, first in zip(op.body.block.args, (self.part.first_row, self.part.first_key), strict=True):
            if first is not None:
                mapping[old] = body.insert(xdsl_arith.SubiOp(mapping[old], first)).result
        for inner in op.body.block.ops:
            if isinstance(inner, mask.YieldOp):
                body.insert(interval.YieldOp(mapping[inner.visible]))
            else:
                self._copy(inner, body, mapping)
        return self.insert(between)

    def _copy(self, op: Operation, body: Builder, mapping: dict[SSAValue, Any]) -> None:
        """Emit an operation on scalars from the body of a leaf at `body`; `mapping` gets its result."""
        match op:
            case mask.ReadOp():
                mapping[op.result] = body.insert(interval.ReadOp(mapping[op.table], mapping[op.index])).result
            case mask.SearchOp():
                mapping[op.result] = body.insert(self.search(mapping[op.table], mapping[op.value])).result
            case mask.QueriesOp():
                mapping[op.result] = self.part.queries
            case mask.KeysOp():
                mapping[op.result] = self.part.keys
            case _ if op.name.startswith("arith."):
                clone = body.insert(op.clone(value_mapper={operand: mapping[operand] for operand in op.operands}))
                mapping.update(zip(op.results, clone.results, strict=True))
            case _:
                raise LoweringError(f"mask-to-interval: {op.name} cannot stand in the body of a leaf")

    def search(self, table: SSAValue, value: SSAValue) -> interval.SearchOp:
        """A search, which says that its table ascends."""
        if isinstance(table, BlockArgument):
            self.ascending.add(table.index - len(LEADING_ARGUMENTS))
        return interval.SearchOp(table, value)

    def lines(self, op: mask.LinesOp) -> SSAValue:
        """A family; what is the same for all lines of a row is computed outside of it."""
        block = Block(arg_types=[i32])
        body = Builder(InsertPoint.at_end(block))
        row, line = op.body.block.args
        block.args[0].name_hint = line.name_hint
        mapping: dict[SSAValue, Any] = {**self.values, row: self.q, line: block.args[0]}
        first_key = self.part.first_key
        by_line = op.depends_on_line()
        for inner in op.body.block.ops:
            if not isinstance(inner, mask.MemberOp):
                self._copy(inner, self.builder if by_line.isdisjoint(inner.operands) else body, mapping)
        lo, hi, first, last = (mapping[operand] for operand in op.member.operands)
        if first_key is not None:
            lo, hi = (body.insert(xdsl_arith.AddiOp(first_key, bound)).result for bound in (lo, hi))
        body.insert(interval.MemberOp(lo, hi))
        arity = interval.UNBOUNDED
        if op.at_most is not None:
            arity = op.at_most.value.data
            last = self.insert(xdsl_arith.MinSIOp(last, self.add(first, self.constant(arity))))
        base, pitch = self.key(self.values[op.base]), self.values[op.pitch]
        return self.insert(interval.FamilyOp(first, last, base, pitch, Region(block), arity))

    # ---- algebra ----

    def union(self, op: mask.UnionOp) -> SSAValue:
        """Of the two sets."""
        return self.insert(interval.UnionOp(self.values[op.lhs], self.values[op.rhs]))

    def intersect(self, op: mask.IntersectOp) -> SSAValue:
        """Of the two sets."""
        return self.insert(interval.IntersectOp(self.values[op.lhs], self.values[op.rhs]))

    def subtract(self, op: mask.SubtractOp) -> SSAValue:
        """What the first set has outside the second."""
        outside = self.insert(interval.ComplementOp(self.values[op.rhs]))
        return self.insert(interval.IntersectOp(self.values[op.lhs], outside))

    def complement(self, op: mask.ComplementOp) -> SSAValue:
        """Of the set."""
        return self.insert(interval.ComplementOp(self.values[op.region]))

    # ---- parts of the plane ----

    def place(self, op: mask.PlaceOp) -> SSAValue:
        """What the body says, on the rows of the part and inside its columns."""
        row_begin, row_end, begin, end = (self.values[operand] for operand in op.operands)
        self.ascending.update(ascending_tables(op))
        inside = self.within(row_begin, self.q, row_end)
        columns = self.insert(interval.RangeOp(self.key(begin), self.key(end)))
        around = self.q, self.part
        first_row = row_begin if self.part.first_row is None else self.add(self.part.first_row, row_begin)
        self.part = Part(self.sub(row_end, row_begin), self.sub(end, begin), first_row, self.key(begin))
        self.q = self.sub(self.q, row_begin)
        for inner in op.body.block.ops:
            if not isinstance(inner, mask.ReturnOp):
                self._lower(inner)
        self.q, self.part = around
        returned = op.body.block.last_op
        assert isinstance(returned, mask.ReturnOp)
        cut = self.insert(interval.IntersectOp(self.values[returned.value], columns))
        return self.insert(interval.WhenOp(inside, cut))


_RULES: dict[type[Operation], Callable[[FunctionLowering, Any], Any]] = {
    mask.QueriesOp: lambda self, op: self.part.queries,
    mask.KeysOp: lambda self, op: self.part.keys,
    mask.ReadOp: lambda self, op: self.insert(interval.ReadOp(self.values[op.table], self.values[op.index])),
    mask.SearchOp: lambda self, op: self.insert(self.search(self.values[op.table], self.values[op.value])),
    mask.AllOp: FunctionLowering.everything,
    mask.NoneOp: FunctionLowering.nothing,
    mask.BandOp: FunctionLowering.band,
    mask.RowsOp: FunctionLowering.rows,
    mask.ColsOp: FunctionLowering.cols,
    mask.SegmentsOp: lambda self, op: self.values[op.offsets],
    mask.SameOp: FunctionLowering.same,
    mask.GridOp: FunctionLowering.grid,
    mask.DiskOp: FunctionLowering.disk,
    mask.BoxOp: FunctionLowering.box,
    mask.WhereOp: FunctionLowering.where,
    mask.LinesOp: FunctionLowering.lines,
    mask.UnionOp: FunctionLowering.union,
    mask.IntersectOp: FunctionLowering.intersect,
    mask.SubtractOp: FunctionLowering.subtract,
    mask.ComplementOp: FunctionLowering.complement,
    mask.PlaceOp: FunctionLowering.place,
}


def _constant_of(value: SSAValue) -> int | None:
    """The value of an integer expression of constants."""
    op = value.owner
    if isinstance(op, xdsl_arith.ConstantOp) and isinstance(op.value, IntegerAttr):
        return op.value.value.data
    if isinstance(op, xdsl_arith.SubiOp | xdsl_arith.AddiOp):
        lhs, rhs = _constant_of(op.lhs), _constant_of(op.rhs)
        if lhs is not None and rhs is not None:
            return lhs + rhs if isinstance(op, xdsl_arith.AddiOp) else lhs - rhs
    return None


@dataclass(frozen=True)
class MaskToIntervalPass(ModulePass):
    """Lower every mask function to an interval function of the same name."""

    name = "mask-to-interval"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for func in list(op.walk()):
            if isinstance(func, mask.FuncOp):
                Rewriter.replace_op(func, FunctionLowering(func).lower(), new_results=[])
