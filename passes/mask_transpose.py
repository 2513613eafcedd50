"""`mask-transpose`: exchange the axes of the (query, key) plane.

The transposed mask has the pair (kv, q) where the mask has (q, kv), so that what lowers it to the keys that a query
sees then lowers it to the queries that a key is seen by: the backward pass follows that. Transposing twice gives the
mask again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i32
from xdsl.ir import Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from compilemask.dialects import arith, mask
from compilemask.dialects.mask_interface import RegionInterface
from compilemask.errors import LoweringError


def _band(op: mask.BandOp) -> Operation:
    """-upper <= kv - q <= -lower."""
    lower, upper = (None if bound is None else _negated(op, bound) for bound in (op.upper, op.lower))
    return mask.BandOp(lower, upper)


def _negated(op: Operation, value: SSAValue) -> SSAValue:
    builder = Builder(InsertPoint.before(op))
    constant = value.owner
    if isinstance(constant, xdsl_arith.ConstantOp) and isinstance(constant.value, IntegerAttr):
        if not (number := constant.value.value.data):
            return value
        return builder.insert(xdsl_arith.ConstantOp(IntegerAttr(-number, i32))).result
    # -x is 0 - x: arith has no negation of integers.
    zero = builder.insert(xdsl_arith.ConstantOp(IntegerAttr(0, i32))).result
    return builder.insert(xdsl_arith.SubiOp(zero, value)).result


def _exchange_arguments(op: mask.WhereOp) -> None:
    """The body reads its two arguments in the other order."""
    q, kv = op.body.block.args
    for inner in op.body.block.ops:
        inner.operands = [kv if operand is q else q if operand is kv else operand for operand in inner.operands]


def _place(op: mask.PlaceOp) -> Operation:
    """The part with its rows for columns; what it holds is transposed in its turn."""
    part = mask.PlaceOp((op.begin, op.end), (op.row_begin, op.row_end), op.detach_region(op.body))
    part.attributes.update(op.attributes)
    return part


def _lines(op: mask.LinesOp) -> Operation:
    """The columns as rows, if they are known; else a predicate that asks for the line of the key, which now is its
    first argument.
    """
    if op.columns is not None:
        return _exchanged_lines(op, op.columns)
    where = mask.WhereOp()
    body = Builder(InsertPoint.at_end(where.body.block))
    key, query = where.body.block.args
    key.name_hint, query.name_hint = "q", "kv"
    one = body.insert(xdsl_arith.ConstantOp(IntegerAttr(1, i32))).result
    pitch = body.insert(xdsl_arith.MaxSIOp(op.pitch, one)).result
    position = body.insert(xdsl_arith.SubiOp(key, op.base)).result
    line = body.insert(xdsl_arith.FloorDivSIOp(position, pitch)).result
    mapping: dict[SSAValue, SSAValue] = dict(zip(op.body.block.args, (query, line), strict=True))
    for inner in op.body.block.ops:
        if not isinstance(inner, mask.MemberOp):
            body.insert(inner.clone(value_mapper=mapping))
    lo, hi, first, last = (mapping.get(operand, operand) for operand in op.member.operands)
    bounds = [(first, line, "sle"), (line, last, "slt"), (lo, key, "sle"), (key, hi, "slt")]
    if op.at_most is not None:
        count = body.insert(xdsl_arith.ConstantOp(IntegerAttr(op.at_most.value.data, i32))).result
        bounds.append((line, body.insert(xdsl_arith.AddiOp(first, count)).result, "slt"))
    visible, *others = [body.insert(arith.CmpiOp(a, b, name)).result for a, b, name in bounds]
    for other in others:
        visible = body.insert(xdsl_arith.AndIOp(visible, other)).result
    body.insert(mask.YieldOp(visible))
    return where


def _exchanged_lines(op: mask.LinesOp, columns: Region) -> Operation:
    """Rows and columns of lines exchanged."""
    limits = [None if limit is None else limit.value.data for limit in (op.at_most, op.columns_at_most)]
    rows, columns = op.detach_region(op.body), op.detach_region(columns)
    for body, name in ((rows, "kv"), (columns, "q")):
        body.block.args[0].name_hint = name
    return mask.LinesOp(op.base, op.pitch, columns, limits[1], rows, limits[0])


_EXCHANGED: dict[type[Operation], Callable[[Any], Operation]] = {
    mask.QueriesOp: lambda op: mask.KeysOp(),
    mask.KeysOp: lambda op: mask.QueriesOp(),
    mask.BandOp: _band,
    mask.RowsOp: lambda op: mask.ColsOp(op.begin, op.end),
    mask.ColsOp: lambda op: mask.RowsOp(op.begin, op.end),
    mask.LinesOp: _lines,
    mask.PlaceOp: _place,
}
_SYMMETRIC = (
    *(mask.ReadOp, mask.AllOp, mask.NoneOp, mask.SegmentsOp, mask.SameOp, mask.GridOp, mask.DiskOp, mask.BoxOp),
    *(mask.UnionOp, mask.IntersectOp, mask.SubtractOp, mask.ComplementOp, mask.SearchOp),
    *(mask.YieldOp, mask.MemberOp, mask.ReturnOp),
)


def transposed(module: ModuleOp) -> ModuleOp:
    """A copy of a module in which every mask function is transposed. Raises LoweringError for an unknown operation."""
    copy = module.clone()
    _transpose_masks(copy)
    copy.verify()
    return copy


@dataclass(frozen=True)
class MaskTransposePass(ModulePass):
    """Transpose every mask function of a module, in place and under its name."""

    name = "mask-transpose"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        _transpose_masks(op)


def _transpose_masks(module: ModuleOp) -> None:
    for func in module.walk():
        if isinstance(func, mask.FuncOp):
            for op in reversed(list(func.body.walk())):  # what a body holds before the operation itself
                _transpose(op)


def _transpose(op: Operation) -> None:
    if isinstance(op, mask.WhereOp):
        _exchange_arguments(op)
    elif isinstance(op, RegionInterface):
        _replace(op, op.transposed())
    elif (rule := _EXCHANGED.get(type(op))) is not None:
        _replace(op, rule(op))
    elif not isinstance(op, _SYMMETRIC) and not op.name.startswith("arith."):
        raise LoweringError(f"mask-transpose: no rule for {op.name}")


def _replace(op: Operation, exchanged: Operation) -> None:
    hints = [result.name_hint for result in op.results]
    Rewriter.replace_op(op, exchanged)
    for result, hint in zip(exchanged.results, hints, strict=True):
        result.name_hint = hint
