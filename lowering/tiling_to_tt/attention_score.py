"""The score region of `tiling.attention` in a kernel, applied to a block of scores at once.

What depends on the batch, head and rows alone is computed once, before the loops over keys. The rest is computed per
block, in the least shape that holds it: what depends on the key alone once per key, and sums as `Sum` keeps them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects import math as xdsl_math
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, MemRefType
from xdsl.ir import Block, Operation, SSAValue

from compilemask.dialects import arith
from compilemask.dialects.tiling import AttentionOp, Weights
from compilemask.dialects.tiling_score import SCORE_TYPES, ReadOp, YieldOp
from compilemask.dialects.triton import ttg
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt import value as values
from compilemask.lowering.tiling_to_tt.arithmetic import arithmetic
from compilemask.lowering.tiling_to_tt.attention_sum import Sum
from compilemask.lowering.tiling_to_tt.builder import Arg, KernelBuilder, Value, f32, i32, i64, ptr

LOG2_E = math.log2(math.e)
LANE_BITS = 6
"""Of a key in a tensor-core accumulator: which lane of a quad holds it. The other bits are constants of a register."""


def score_arguments(op: AttentionOp) -> list[Arg]:
    """The last arguments of a kernel: captured values, tables as pointer, entries and strides, and the sink."""
    arguments: list[Arg] = []
    for number, value in enumerate(op.captured):
        name = f"captured{number}"
        if isinstance(value.type, MemRefType):
            strides = [Arg(f"{name}_{axis}", i64) for axis in "bh"]
            arguments += [Arg(name, ptr(value.type.element_type)), Arg(f"{name}_entries", i32), *strides]
        else:
            arguments.append(Arg(name, value.type))
    if op.sink is not None:
        assert isinstance(op.sink.type, MemRefType)
        arguments += [Arg("sink", ptr(op.sink.type.element_type)), Arg("sink_b", i64), Arg("sink_h", i64)]
    return arguments


def sink_logit(kb: KernelBuilder, op: AttentionOp, batch: Value, head: Value) -> Value | None:
    """The logit of a head's sink in base 2, f32; None if the softmax has no sink."""
    if op.sink is None:
        return None
    return kb.cast(kb.load(_of_head(kb, "sink", batch, head)), f32) * LOG2_E


def _of_head(kb: KernelBuilder, name: str, batch: Value, head: Value) -> Value:
    """Address of the first entry of a head's table."""
    return kb.arg(name) + (kb.cast(batch, i64) * kb.arg(f"{name}_b") + kb.cast(head, i64) * kb.arg(f"{name}_h"))


class ScoreRegion:
    """The region for some rows of a head. Made outside of the loops over keys."""

    def __init__(
        self,
        kb: KernelBuilder,
        op: AttentionOp,
        place: tuple[Value, Value],
        rows: tuple[Value, Value],
        *,
        approximate: bool,
    ) -> None:
        """`place` is batch and head; `rows` are the first one, and their numbers from there, [R, 1] i32.

        `approximate` takes tanh from the hardware, with a relative error of 2^-11.
        """
        self.kb, self.approximate = kb, approximate
        self.is_softmax = op.weights.data is Weights.SOFTMAX
        self._block = op.score.block
        self._scale = kb.arg("scale")
        self._first_row, self._row = rows
        score, b, h, q, self._kv, *captured = self._block.args
        self._score, self._q = score, q
        batch, head = place
        self._tables: dict[SSAValue, tuple[int, Value]] = {
            argument: (number, _of_head(kb, f"captured{number}", batch, head))
            for number, argument in enumerate(captured)
            if isinstance(argument.type, MemRefType)
        }
        self._known: dict[SSAValue, Value | Sum] = {b: batch, h: head, q: self._first_row + self._row}
        for number, argument in enumerate(captured):
            if argument not in self._tables:
                self._known[argument] = kb.arg(f"captured{number}")
        self._result, factors = _peeled(self._block) if not self.is_softmax else (_result(self._block), [])
        self._later = list(self._evaluate_early())
        self.output_factor = self._product(factors)
        """What the output is multiplied with in the end; None for 1."""

    @cached_property
    def needs_keys(self) -> bool:
        """Whether scores depend on where keys lie."""
        return bool(self._kv.uses)

    def apply(self, products: Value, first_key: Value, key: Value) -> Value:
        """Scores of a block [R, C] in base 2, or pointwise weights, from products of queries and keys.

        The block's keys are `first_key` and the following ones, [1, C] i32 from there.
        """
        known = dict(self._known)
        known[self._score] = Sum(products, self._scale)
        known[self._kv] = first_key + key
        for op in self._later:
            if self._is_distance(op):
                continue
            known[op.results[0]] = self._evaluate(op, known, first_key, key)
        result = Sum.of(known[self._result])
        number = result.times(self.kb.constant(LOG2_E, f32)).value if self.is_softmax else result.value
        return values.broadcast_together(number, products)[0]

    def _evaluate_early(self) -> Iterator[Operation]:
        """Computes what depends on neither scores nor keys; yields the other operations."""
        for op in self._block.ops:
            if isinstance(op, YieldOp):
                return
            if all(operand in self._known or operand in self._tables for operand in op.operands):
                self._known[op.results[0]] = self._plainly(op, self._known)
            else:
                yield op

    def _evaluate(self, op: Operation, known: dict[SSAValue, Value | Sum], first_key: Value, key: Value) -> Value | Sum:
        if isinstance(op, arith.SIToFPOp) and (sign := self._distance_sign(op.input)):
            return self._distance(first_key, key, sign)
        operands = [known[operand] for operand in op.operands if operand not in self._tables]
        return _summed(self.kb, op, operands) or self._plainly(op, known)

    def _plainly(self, op: Operation, known: dict[SSAValue, Value | Sum]) -> Value:
        """One operation on numbers as they are."""
        kb = self.kb
        if isinstance(op, xdsl_arith.ConstantOp) and isinstance(op.value, IntegerAttr | FloatAttr):
            return kb.constant(op.value.value.data, op.result.type)
        if isinstance(op, ReadOp):
            number, pointer = self._tables[op.table]
            nearest = kb.maximum(kb.minimum(_plain(known[op.index]), kb.arg(f"captured{number}_entries") - 1), 0)
            return kb.load(pointer + nearest)
        operands = [_plain(known[operand]) for operand in op.operands]
        if isinstance(op, xdsl_math.TanhOp):
            return tanh(kb, operands[0], approximate=self.approximate)
        return arithmetic(kb, op, operands)

    # ---- kv - q as a float: the difference of a number of the key and one of the row ----

    def _distance_sign(self, value: SSAValue) -> int:
        """1 for kv - q, -1 for q - kv, 0 for all else."""
        op = value.owner
        if not isinstance(op, xdsl_arith.SubiOp):
            return 0
        signs: dict[tuple[SSAValue, SSAValue], int] = {(self._kv, self._q): 1, (self._q, self._kv): -1}
        return signs.get((op.lhs, op.rhs), 0)

    def _is_distance(self, op: Operation) -> bool:
        """Whether this is kv - q, and only converted to a float, which `_distance` does."""
        users = [use.operation for use in op.results[0].uses]
        return bool(self._distance_sign(op.results[0])) and all(isinstance(user, arith.SIToFPOp) for user in users)

    def _distance(self, first_key: Value, key: Value, sign: int) -> Sum:
        """Exact below 2^24. A thread computes its keys from one number, its lane's, and constants of its registers."""
        kb = self.kb
        of_register, of_lane = key & ~LANE_BITS, key & LANE_BITS
        of_lane = of_lane + (first_key - self._first_row)
        # One part: multiples of the constants alone would be kept in registers across the loop, one for each key.
        of_key = kb.cast(of_register, f32) + kb.cast(of_lane, f32)
        distance = Sum(None, None, (of_key, -kb.cast(self._row, f32)))
        return distance if sign > 0 else distance.times(kb.constant(-1.0, f32))

    def _product(self, factors: list[tuple[type[Operation], SSAValue]]) -> Value | None:
        product: Value | None = None
        for kind, operand in factors:
            number = _plain(self._known[operand])
            number = _reciprocal(number) if kind is xdsl_arith.DivfOp else number
            product = number if product is None else product * number
        return product


def tanh(kb: KernelBuilder, x: Value, *, approximate: bool) -> Value:
    """The hyperbolic tangent, with a relative error of 2^-11 from the hardware, or of 10^-6."""
    if approximate:
        return kb.emit(ttg.ElementwiseInlineAsmOp("tanh.approx.f32 $0, $1;", "=f,f", [x.ssa], [x.type]))
    square = x * x
    small = x * (1.0 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315))))
    large = 1.0 - 2.0 / (kb.exp2(x * (2 * LOG2_E)) + 1.0)
    return kb.where(kb.absolute(x) < 0.25, small, large)


def _plain(value: Value | Sum) -> Value:
    return value.value if isinstance(value, Sum) else value


def _reciprocal(number: Value) -> Value:
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
                return Sum.of(operands[0]).times(_reciprocal(divisor))
    return None


def _result(block: Block) -> SSAValue:
    last = block.last_op
    if not isinstance(last, YieldOp):
        raise LoweringError("a score region ends in tiling.yield")
    return last.score


def _peeled(block: Block) -> tuple[SSAValue, list[tuple[type[Operation], SSAValue]]]:
    """The result without what it is multiplied with and divided by in the end, if that is the same for a head."""
    of_head: set[SSAValue] = {block.args[1], block.args[2], *block.args[len(SCORE_TYPES) :]}
    for op in block.ops:
        if op.results and all(operand in of_head for operand in op.operands):
            of_head.update(op.results)
    result, factors = _result(block), []
    while isinstance(op := result.owner, xdsl_arith.MulfOp | xdsl_arith.DivfOp):
        if op.rhs in of_head:
            rest, factor = op.lhs, op.rhs
        elif isinstance(op, xdsl_arith.MulfOp) and op.lhs in of_head:
            rest, factor = op.rhs, op.lhs
        else:
            break
        factors.append((type(op), factor))
        result = rest
    return result, factors
