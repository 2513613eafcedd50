"""Values of a score region in a kernel, computed for a block of pairs at once.

What depends on the batch, head and rows alone is computed once, before the loops over what lies across. The rest is
computed per block, in the least shape that holds it: what depends on the position across alone once per position, and
sums as `Sum` keeps them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects import math as xdsl_math
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, MemRefType
from xdsl.ir import Block, Operation, SSAValue

from compilemask.dialects import arith
from compilemask.dialects.tiling_score import SCORE_TYPES, ReadOp, YieldOp
from compilemask.dialects.tiling_score_gradient import AccumulateOp
from compilemask.dialects.triton import ttg
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt.arithmetic import arithmetic
from compilemask.lowering.tiling_to_tt.attention_sum import Sum
from compilemask.lowering.tiling_to_tt.builder import KernelBuilder, Value, f32, i64

LOG2_E = math.log2(math.e)
LANE_BITS = 6
"""Of a position in a tensor-core accumulator: which lane of a quad holds it. Others are constants of a register."""


def of_head(kb: KernelBuilder, name: str, batch: Value, head: Value) -> Value:
    """Address of the first entry of a head's table."""
    return kb.arg(name) + (kb.cast(batch, i64) * kb.arg(f"{name}_b") + kb.cast(head, i64) * kb.arg(f"{name}_h"))


class RegionValues:
    """The region for some rows of a head. Made outside of the loops over what lies across."""

    def __init__(
        self,
        kb: KernelBuilder,
        block: Block,
        captured: int,
        place: tuple[Value, Value],
        rows: tuple[Value, Value],
        *,
        approximate: bool,
        rows_are_keys: bool = False,
    ) -> None:
        """The block's arguments from number `captured` on are captured values; `place` is batch and head.

        `rows` are the first one, and their numbers from there, [R, 1] i32: queries, with keys across, or keys, with
        queries across. `approximate` takes tanh from the hardware, with a relative error of 2^-11.
        """
        self.kb, self.approximate, self._block = kb, approximate, block
        self._first_row, self._row = rows
        self._score, b, h, q, kv = block.args[: len(SCORE_TYPES)]
        self._down, self._across = (kv, q) if rows_are_keys else (q, kv)
        batch, head = place
        self._tables: dict[SSAValue, tuple[int, Value]] = {}
        self._known: dict[SSAValue, Value | Sum] = {b: batch, h: head, self._down: self._first_row + self._row}
        for number, argument in enumerate(block.args[captured:]):
            name = f"captured{number}"
            if isinstance(argument.type, MemRefType):
                self._tables[argument] = (number, of_head(kb, name, batch, head))
            else:
                self._known[argument] = kb.arg(name)
        self._later = list(self._evaluate_early())

    def values(
        self, given: Mapping[SSAValue, Value | Sum], first: Value, position: Value
    ) -> dict[SSAValue, Value | Sum]:
        """All values, for pairs of the rows with `first` and the positions behind it, [1, C] i32 from there."""
        known = {**self._known, **given, self._across: first + position}
        for op in self._later:
            if isinstance(op, AccumulateOp) or self._is_distance(op):
                continue
            known[op.results[0]] = self._evaluate(op, known, first, position)
        return known

    def nearest(self, table: SSAValue, index: Value) -> Value:
        """The entry of a table that an index means."""
        number, _ = self._tables[table]
        kb = self.kb
        return kb.maximum(kb.minimum(index, kb.arg(f"captured{number}_entries") - 1), 0)

    def _evaluate_early(self) -> Iterator[Operation]:
        """Computes what depends on neither scores nor positions across; yields the other operations."""
        for op in self._block.ops:
            if isinstance(op, YieldOp):
                return
            if op.results and all(operand in self._known or operand in self._tables for operand in op.operands):
                self._known[op.results[0]] = self._plainly(op, self._known)
            else:
                yield op

    def _evaluate(
        self, op: Operation, known: dict[SSAValue, Value | Sum], first: Value, position: Value
    ) -> Value | Sum:
        if isinstance(op, arith.SIToFPOp) and (sign := self._distance_sign(op.input)):
            return self._distance(first, position, sign)
        operands = [known[operand] for operand in op.operands if operand not in self._tables]
        return _summed(self.kb, op, operands) or self._plainly(op, known)

    def _plainly(self, op: Operation, known: dict[SSAValue, Value | Sum]) -> Value:
        """One operation on numbers as they are."""
        kb = self.kb
        if isinstance(op, xdsl_arith.ConstantOp) and isinstance(op.value, IntegerAttr | FloatAttr):
            return kb.constant(op.value.value.data, op.result.type)
        if isinstance(op, ReadOp):
            return kb.load(self._tables[op.table][1] + self.nearest(op.table, plain(known[op.index])))
        operands = [plain(known[operand]) for operand in op.operands]
        if isinstance(op, xdsl_math.TanhOp):
            return tanh(kb, operands[0], approximate=self.approximate)
        return arithmetic(kb, op, operands)

    # ---- kv - q as a float: the difference of a number of the position across and one of the row ----

    def _distance_sign(self, value: SSAValue) -> int:
        """1 for the position across minus the row, -1 for the opposite, 0 for all else."""
        op = value.owner
        if not isinstance(op, xdsl_arith.SubiOp):
            return 0
        signs: dict[tuple[SSAValue, SSAValue], int] = {
            (self._across, self._down): 1,
            (self._down, self._across): -1,
        }
        return signs.get((op.lhs, op.rhs), 0)

    def _is_distance(self, op: Operation) -> bool:
        """Whether this is a distance, and only converted to a float, which `_distance` does."""
        users = [use.operation for use in op.results[0].uses]
        return bool(self._distance_sign(op.results[0])) and all(isinstance(user, arith.SIToFPOp) for user in users)

    def _distance(self, first: Value, position: Value, sign: int) -> Sum:
        """Exact below 2^24. A thread computes its positions from one number, its lane's, and constants of registers."""
        kb = self.kb
        of_register, of_lane = position & ~LANE_BITS, position & LANE_BITS
        of_lane = of_lane + (first - self._first_row)
        # One part: multiples of the constants alone would be kept in registers across the loop, one for each position.
        of_position = kb.cast(of_register, f32) + kb.cast(of_lane, f32)
        distance = Sum(None, None, (of_position, -kb.cast(self._row, f32)))
        return distance if sign > 0 else distance.times(kb.constant(-1.0, f32))


def tanh(kb: KernelBuilder, x: Value, *, approximate: bool) -> Value:
    """The hyperbolic tangent, with a relative error of 2^-11 from the hardware, or of 10^-6."""
    if approximate:
        return kb.emit(ttg.ElementwiseInlineAsmOp("tanh.approx.f32 $0, $1;", "=f,f", [x.ssa], [x.type]))
    square = x * x
    small = x * (1.0 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315))))
    large = 1.0 - 2.0 / (kb.exp2(x * (2 * LOG2_E)) + 1.0)
    return kb.where(kb.absolute(x) < 0.25, small, large)


def plain(value: Value | Sum) -> Value:
    """The number that a sum is."""
    return value.value if isinstance(value, Sum) else value


def reciprocal(number: Value) -> Value:
    """1 / number, computed here if it is a literal other than 0."""
    if number.literal:
        return Value(number.emitter, number.type, literal=1.0 / number.literal)
    return 1.0 / number


def _summed(kb: KernelBuilder, op: Operation, operands: list[Value | Sum]) -> Sum | None:
    """The result of an operation on sums; None if it is none, or not on sums."""
    if not any(isinstance(operand, Sum) or operand.shape for operand in operands):
        return None
    match op:
        case xdsl_arith.AddfOp():
            return Sum.of(operands[0]).plus(Sum.of(operands[1]))
        case xdsl_arith.SubfOp():
            return Sum.of(operands[0]).plus(Sum.of(operands[1]).times(kb.constant(-1.0, f32)))
        case xdsl_arith.NegfOp():
            return Sum.of(operands[0]).times(kb.constant(-1.0, f32))
        case xdsl_arith.MulfOp():
            for one, other in (operands, reversed(operands)):
                if isinstance(other, Value) and not other.shape:
                    return Sum.of(one).times(other)
        case xdsl_arith.DivfOp():
            divisor = operands[1]
            if isinstance(divisor, Value) and not divisor.shape:
                return Sum.of(operands[0]).times(reciprocal(divisor))
        case _:
            pass
    return None


def result_of(block: Block) -> SSAValue:
    """What a score region yields. Raises LoweringError if it ends in something else."""
    last = block.last_op
    if not isinstance(last, YieldOp):
        raise LoweringError("a score region ends in tiling.yield")
    return last.score
