"""Operations of `arith` and `math` as a kernel computes them, on scalars and blocks that broadcast."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects import math as xdsl_math
from xdsl.dialects.builtin import i1
from xdsl.ir import Operation, SSAValue

from compilemask.dialects import arith
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt import value as values
from compilemask.lowering.tiling_to_tt.builder import KernelBuilder, Value

_BINARY: dict[type[Operation], str] = {
    xdsl_arith.AddiOp: "add",
    xdsl_arith.SubiOp: "sub",
    xdsl_arith.MuliOp: "mul",
    xdsl_arith.DivSIOp: "tdiv",
    xdsl_arith.RemSIOp: "trem",
    xdsl_arith.MinSIOp: "min",
    xdsl_arith.MaxSIOp: "max",
    xdsl_arith.MinUIOp: "umin",
    xdsl_arith.MaxUIOp: "umax",
    xdsl_arith.AndIOp: "and",
    xdsl_arith.OrIOp: "or",
    xdsl_arith.XOrIOp: "xor",
    xdsl_arith.ShLIOp: "shl",
    xdsl_arith.ShRSIOp: "shr",
    xdsl_arith.ShRUIOp: "shru",
    xdsl_arith.AddfOp: "add",
    xdsl_arith.SubfOp: "sub",
    xdsl_arith.MulfOp: "mul",
    xdsl_arith.DivfOp: "div",
    xdsl_arith.MaximumfOp: "max_nan",
    xdsl_arith.MinimumfOp: "min_nan",
    xdsl_arith.MaxnumfOp: "max",
    xdsl_arith.MinnumfOp: "min",
}
_DIRECT: dict[type[Operation], Callable[[SSAValue, SSAValue], Operation]] = {
    xdsl_arith.DivUIOp: xdsl_arith.DivUIOp,
    xdsl_arith.RemUIOp: xdsl_arith.RemUIOp,
}
_UNARY: dict[type[Operation], Callable[[SSAValue], Operation]] = {
    xdsl_math.AbsFOp: xdsl_math.AbsFOp,
    xdsl_math.AbsIOp: xdsl_math.AbsIOp,
    xdsl_math.ExpOp: xdsl_math.ExpOp,
    xdsl_math.Exp2Op: xdsl_math.Exp2Op,
    xdsl_math.LogOp: xdsl_math.LogOp,
    xdsl_math.Log2Op: xdsl_math.Log2Op,
    xdsl_math.SqrtOp: xdsl_math.SqrtOp,
    xdsl_math.RsqrtOp: xdsl_math.RsqrtOp,
    xdsl_math.SinOp: xdsl_math.SinOp,
    xdsl_math.CosOp: xdsl_math.CosOp,
    xdsl_math.FloorOp: xdsl_math.FloorOp,
    xdsl_math.CeilOp: xdsl_math.CeilOp,
}


def arithmetic(kb: KernelBuilder, op: Operation, operands: Sequence[Value]) -> Value:
    """One operation of `arith` or `math` on operands that broadcast."""
    if (kind := _BINARY.get(type(op))) is not None:
        return values.binary(kind, *operands)
    if (direct := _DIRECT.get(type(op))) is not None:
        a, b = values.unify(*operands)
        return kb.emit(direct(a.ssa, b.ssa))
    if (unary := _UNARY.get(type(op))) is not None:
        return kb.emit(unary(operands[0].ssa))
    match op:
        case xdsl_arith.NegfOp():
            return -operands[0]
        case xdsl_arith.FloorDivSIOp():
            return operands[0] // operands[1]
        case xdsl_arith.CeilDivSIOp():
            return -((-operands[0]) // operands[1])
        case arith.CmpiOp():
            return _compare(kb, op, *operands)
        case arith.CmpfOp():
            a, b = values.unify(*operands)
            return kb.emit(arith.CmpfOp(a.ssa, b.ssa, op.predicate_name))
        case arith.SelectOp():
            return _select(*operands)
        case arith.ExtSIOp() if operands[0].dtype == i1:
            return -kb.cast(operands[0], op.result.type)
        case arith.ExtUIOp():
            return kb.cast(operands[0], op.result.type, unsigned=True)
        case arith.TruncIOp() if op.result.type == i1:
            return (operands[0] & 1) != 0
        case arith.ExtSIOp() | arith.TruncIOp() | arith.SIToFPOp() | arith.FPToSIOp() | arith.ExtFOp():
            return kb.cast(operands[0], op.result.type)
        case _:
            raise LoweringError(f"{op.name} has no form in a kernel")


def _compare(kb: KernelBuilder, op: arith.CmpiOp, lhs: Value, rhs: Value) -> Value:
    name = op.predicate_name
    if name[0] == "s":
        return values.compare(name[1:], lhs, rhs)
    if name in ("eq", "ne") and lhs.dtype != i1:
        return values.compare(name, lhs, rhs)
    a, b = values.unify(lhs, rhs)
    return kb.emit(arith.CmpiOp(a.ssa, b.ssa, name))


def _select(condition: Value, lhs: Value, rhs: Value) -> Value:
    shape = values.broadcast_shapes(condition.shape, lhs.shape, rhs.shape)
    layout = values.common_layout(condition, lhs, rhs)
    return values.where(condition, values.broadcast_to(lhs, shape, layout), values.broadcast_to(rhs, shape, layout))
