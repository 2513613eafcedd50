"""`score-gradient`: derive how gradients go back through score modifications.

Behind each `tiling.score @name`, a `tiling.score_gradient @name_gradient`: the chain rule from the last operation to
the first (reverse accumulation; Griewank and Walther, "Evaluating Derivatives", chapter 3). Each operation hands the
gradient of its result on to its operands; where it reaches a captured table, it is accumulated.

Where a function has a kink, the conventions are PyTorch's: abs has the slope 0 at 0, and of two equal numbers both get
half of the gradient of their minimum or maximum. Integers have no gradient, and what is computed from them by a
rounding or a comparison has none either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects import math as xdsl_math
from xdsl.dialects.builtin import Float32Type, FloatAttr, FunctionType, ModuleOp, f32, i32
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.transforms.dead_code_elimination import region_dce

from compilemask.dialects import arith
from compilemask.dialects.narrowing import is_memref
from compilemask.dialects.tiling_score import SCORE_TYPES, ReadOp, ScoreOp, YieldOp
from compilemask.dialects.tiling_score_gradient import GRADIENT_TYPES, AccumulateOp, ScoreGradientOp
from compilemask.errors import GradientError


def float_tables(score: ScoreOp) -> list[int]:
    """The numbers of the captured values that are tables of floats: those that may have gradients."""
    return [number for number, type_ in enumerate(score.captured) if is_memref(type_) and type_.element_type != i32]


def gradient_of(score: ScoreOp, wanted: Collection[int]) -> ScoreGradientOp:
    """The gradient of a score modification, with regard to its score and to the captured tables of these numbers.

    Raises GradientError if an operation has no derivative.
    """
    return _Reverse(score, wanted).result()


class _Reverse:
    """The gradient under construction. It begins with the operations of the score; unused ones go at the end."""

    def __init__(self, score: ScoreOp, wanted: Collection[int]) -> None:
        self.score = score
        self.block = Block(arg_types=[*GRADIENT_TYPES, *score.captured])
        own, slope, captured = self._arguments(score)
        self._map: dict[SSAValue, SSAValue] = dict(zip(score.body.block.args, (*own, *captured), strict=True))
        self._gradients: dict[SSAValue, SSAValue] = {}
        self._constants: dict[float, SSAValue] = {}
        self._wanted = {captured[number] for number in wanted}
        self._active: set[SSAValue] = {own[0]}
        """Floats that the score or an entry of a wanted table has an influence on."""
        for op in score.body.block.ops:
            if isinstance(op, YieldOp):
                self._gradients[self._map[op.score]] = slope
            else:
                self._copy(op)

    def _arguments(self, score: ScoreOp) -> tuple[Sequence[SSAValue], SSAValue, Sequence[SSAValue]]:
        arguments = self.block.args
        own, slope = arguments[: len(SCORE_TYPES)], arguments[len(SCORE_TYPES)]
        captured = arguments[len(GRADIENT_TYPES) :]
        for argument, of_score in zip((*own, *captured), score.body.block.args, strict=True):
            argument.name_hint = of_score.name_hint
        slope.name_hint = "slope"
        return own, slope, captured

    def _copy(self, op: Operation) -> None:
        copy = op.clone(value_mapper=self._map)
        self.block.add_op(copy)
        reaches = any(operand in self._active or operand in self._wanted for operand in copy.operands)
        if reaches and _is_float(copy.results[0].type):
            self._active.add(copy.results[0])

    def result(self) -> ScoreGradientOp:
        """The operation."""
        for op in reversed(list(self.block.ops)):
            if op.results and op.results[0] in self._active and op.results[0] in self._gradients:
                self._hand_on(op, self._gradients[op.results[0]])
        of_score = self._gradients.get(self.block.args[0])
        self.block.add_op(YieldOp(self.number(0.0) if of_score is None else of_score))
        region = Region(self.block)
        region_dce(region)
        type_ = FunctionType.from_lists([argument.type for argument in self.block.args], [f32])
        return ScoreGradientOp(f"{self.score.sym_name.data}_gradient", type_, region)

    def _hand_on(self, op: Operation, gradient: SSAValue) -> None:
        if isinstance(op, ReadOp):
            self.add(AccumulateOp(gradient, op.table, op.index))
            return
        rule = _RULES.get(type(op))
        if rule is None:
            raise GradientError(f"{op.name} in @{self.score.sym_name.data} has no derivative")
        for operand, of_operand in zip(op.operands, rule, strict=True):
            if of_operand is not None and operand in self._active:
                self._give(operand, of_operand(_Step(self, op, gradient)))

    def _give(self, value: SSAValue, gradient: SSAValue) -> None:
        known = self._gradients.get(value)
        total = gradient if known is None else self.add(xdsl_arith.AddfOp(known, gradient))
        self._gradients[value] = total

    def add(self, op: Operation) -> SSAValue:
        """Appends an operation; its result, if it has one."""
        self.block.add_op(op)
        return op.results[0] if op.results else self.block.args[0]

    def number(self, value: float) -> SSAValue:
        """A constant."""
        if value not in self._constants:
            self._constants[value] = self.add(xdsl_arith.ConstantOp(FloatAttr(value, f32)))
        return self._constants[value]


@dataclass(frozen=True)
class _Step:
    """An operation, and the gradient of its result."""

    reverse: _Reverse
    op: Operation
    gradient: SSAValue

    @property
    def x(self) -> SSAValue:
        """The first operand."""
        return self.op.operands[0]

    @property
    def y(self) -> SSAValue:
        """The second operand."""
        return self.op.operands[1]

    @property
    def result(self) -> SSAValue:
        """What the operation gives."""
        return self.op.results[0]

    def number(self, value: float) -> SSAValue:
        """A constant."""
        return self.reverse.number(value)

    def mul(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """a * b."""
        return self.reverse.add(xdsl_arith.MulfOp(a, b))

    def div(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """a / b."""
        return self.reverse.add(xdsl_arith.DivfOp(a, b))

    def neg(self, a: SSAValue) -> SSAValue:
        """-a."""
        return self.reverse.add(xdsl_arith.NegfOp(a))

    def where(self, condition: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
        """a where the condition holds, else b."""
        return self.reverse.add(arith.SelectOp(condition, a, b))

    def call(self, function: Callable[[SSAValue], Operation], a: SSAValue) -> SSAValue:
        """An operation of `math`."""
        return self.reverse.add(function(a))

    def scaled(self, factor: float) -> SSAValue:
        """A multiple of the gradient."""
        return self.mul(self.gradient, self.number(factor))

    def one_of_two(self, taken: SSAValue, other: SSAValue, relation: str) -> SSAValue:
        """The gradient if `taken` is the one that a minimum or maximum takes, half of it if both are equal."""
        wins, ties = (self.reverse.add(arith.CmpfOp(taken, other, name)) for name in (relation, "oeq"))
        shared = self.where(ties, self.scaled(0.5), self.number(0.0))
        return self.where(wins, self.gradient, shared)

    def of_absolute(self) -> SSAValue:
        """The gradient with the sign of the operand."""
        zero = self.number(0.0)
        above, below = (self.reverse.add(arith.CmpfOp(self.x, zero, name)) for name in ("ogt", "olt"))
        return self.where(above, self.gradient, self.where(below, self.neg(self.gradient), zero))

    def of_tanh(self) -> SSAValue:
        """The gradient times 1 - tanh^2."""
        square = self.mul(self.result, self.result)
        return self.mul(self.gradient, self.reverse.add(xdsl_arith.SubfOp(self.number(1.0), square)))


_Rule = Callable[[_Step], SSAValue] | None
"""The gradient of an operand; None if it has none."""


def _same(step: _Step) -> SSAValue:
    return step.gradient


def _of_divisor(step: _Step) -> SSAValue:
    return step.neg(step.mul(step.div(step.gradient, step.y), step.result))


def _extreme(relation: str) -> tuple[_Rule, _Rule]:
    """Of a minimum or maximum, which takes the first operand if it stands in this relation to the second."""
    return (
        lambda step: step.one_of_two(step.x, step.y, relation),
        lambda step: step.one_of_two(step.y, step.x, relation),
    )


_RULES: dict[type[Operation], tuple[_Rule, ...]] = {
    xdsl_arith.AddfOp: (_same, _same),
    xdsl_arith.SubfOp: (_same, lambda step: step.neg(step.gradient)),
    xdsl_arith.MulfOp: (lambda step: step.mul(step.gradient, step.y), lambda step: step.mul(step.gradient, step.x)),
    xdsl_arith.DivfOp: (lambda step: step.div(step.gradient, step.y), _of_divisor),
    xdsl_arith.NegfOp: (lambda step: step.neg(step.gradient),),
    xdsl_arith.MaximumfOp: _extreme("ogt"),
    xdsl_arith.MaxnumfOp: _extreme("ogt"),
    xdsl_arith.MinimumfOp: _extreme("olt"),
    xdsl_arith.MinnumfOp: _extreme("olt"),
    arith.SelectOp: (
        None,
        lambda step: step.where(step.x, step.gradient, step.number(0.0)),
        lambda step: step.where(step.x, step.number(0.0), step.gradient),
    ),
    arith.ExtFOp: (_same,),
    xdsl_math.AbsFOp: (_Step.of_absolute,),
    xdsl_math.FloorOp: (None,),
    xdsl_math.CeilOp: (None,),
    xdsl_math.ExpOp: (lambda step: step.mul(step.gradient, step.result),),
    xdsl_math.Exp2Op: (lambda step: step.mul(step.scaled(math.log(2)), step.result),),
    xdsl_math.LogOp: (lambda step: step.div(step.gradient, step.x),),
    xdsl_math.Log2Op: (lambda step: step.div(step.scaled(1 / math.log(2)), step.x),),
    xdsl_math.SqrtOp: (lambda step: step.div(step.scaled(0.5), step.result),),
    xdsl_math.RsqrtOp: (lambda step: step.div(step.mul(step.scaled(-0.5), step.result), step.x),),
    xdsl_math.TanhOp: (_Step.of_tanh,),
    xdsl_math.SinOp: (lambda step: step.mul(step.gradient, step.call(xdsl_math.CosOp, step.x)),),
    xdsl_math.CosOp: (lambda step: step.neg(step.mul(step.gradient, step.call(xdsl_math.SinOp, step.x))),),
}
"""For each operation, those of its operands."""


def _is_float(type_: Attribute) -> bool:
    return isinstance(type_, Float32Type) or type_.name in ("f16", "bf16")


@dataclass(frozen=True)
class ScoreGradientPass(ModulePass):
    """Puts the gradient of each `tiling.score` behind it, with regard to all its tables of floats."""

    name = "score-gradient"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for score in [inner for inner in op.ops if isinstance(inner, ScoreOp)]:
            op.body.block.insert_op_after(gradient_of(score, float_tables(score)), score)


__all__ = ["ScoreGradientPass", "float_tables", "gradient_of"]
