"""The score region of `tiling.attention` in a kernel, applied to a block of scores at once."""

from __future__ import annotations

from functools import cached_property

from xdsl.dialects import arith as xdsl_arith
from xdsl.ir import Block, Operation, SSAValue

from compilemask.dialects.narrowing import is_memref
from compilemask.dialects.tiling import AttentionOp, Weights
from compilemask.dialects.tiling_score import SCORE_TYPES
from compilemask.lowering.tiling_to_tt import value as values
from compilemask.lowering.tiling_to_tt.attention_score_values import (
    LOG2_E,
    RegionValues,
    of_head,
    plain,
    reciprocal,
    result_of,
)
from compilemask.lowering.tiling_to_tt.attention_sum import Sum
from compilemask.lowering.tiling_to_tt.builder import Arg, KernelBuilder, Value, f32, i32, i64, ptr


def score_arguments(op: AttentionOp) -> list[Arg]:
    """The last arguments of a kernel: captured values, tables as pointer, entries and strides, and the sink."""
    arguments: list[Arg] = []
    for number, value in enumerate(op.captured):
        name = f"captured{number}"
        if is_memref(value.type):
            strides = [Arg(f"{name}_{axis}", i64) for axis in "bh"]
            arguments += [Arg(name, ptr(value.type.element_type)), Arg(f"{name}_entries", i32), *strides]
        else:
            arguments.append(Arg(name, value.type))
    if op.sink is not None:
        assert is_memref(op.sink.type)
        arguments += [Arg("sink", ptr(op.sink.type.element_type)), Arg("sink_b", i64), Arg("sink_h", i64)]
    return arguments


def sink_logit(kb: KernelBuilder, op: AttentionOp, batch: Value, head: Value) -> Value | None:
    """The logit of a head's sink in base 2, f32; None if the softmax has no sink."""
    if op.sink is None:
        return None
    return kb.cast(kb.load(of_head(kb, "sink", batch, head)), f32) * LOG2_E


class ScoreRegion(RegionValues):
    """From products to scores in base 2, or pointwise weights, for some rows of a head."""

    def __init__(
        self,
        kb: KernelBuilder,
        op: AttentionOp,
        place: tuple[Value, Value],
        rows: tuple[Value, Value],
        *,
        approximate: bool,
        rows_are_keys: bool = False,
        peeled: bool = True,
    ) -> None:
        """See `RegionValues`. `peeled` leaves factors of pointwise weights to the output, as `output_factor`."""
        block = op.score.block
        super().__init__(kb, block, len(SCORE_TYPES), place, rows, approximate=approximate, rows_are_keys=rows_are_keys)
        self.is_softmax = op.weights.data is Weights.SOFTMAX
        self._scale = kb.arg("scale")
        self._result, factors = _peeled(block) if peeled and not self.is_softmax else (result_of(block), [])
        self.output_factor = self._product(factors)
        """What the output is multiplied with in the end; None for 1."""

    @cached_property
    def needs_keys(self) -> bool:
        """Whether scores depend on where positions across lie."""
        return bool(self._across.uses)

    def apply(self, products: Value, first: Value, position: Value) -> Value:
        """Scores of a block [R, C] in base 2, or pointwise weights, from products of queries and keys.

        The positions across are `first` and the following ones, [1, C] i32 from there.
        """
        known = self.values({self._score: Sum(products, self._scale)}, first, position)
        result = Sum.of(known[self._result])
        number = result.times(self.kb.constant(LOG2_E, f32)).value if self.is_softmax else result.value
        return values.broadcast_together(number, products)[0]

    def _product(self, factors: list[tuple[type[Operation], SSAValue]]) -> Value | None:
        product: Value | None = None
        for kind, operand in factors:
            number = plain(self._known[operand])
            number = reciprocal(number) if kind is xdsl_arith.DivfOp else number
            product = number if product is None else product * number
        return product


def _peeled(block: Block) -> tuple[SSAValue, list[tuple[type[Operation], SSAValue]]]:
    """The result without what it is multiplied with and divided by in the end, if that is the same for a head."""
    of_head: set[SSAValue] = {block.args[1], block.args[2], *block.args[len(SCORE_TYPES) :]}
    for op in block.ops:
        if op.results and all(operand in of_head for operand in op.operands):
            of_head.update(op.results)
    result, factors = result_of(block), list[tuple[type[Operation], SSAValue]]()
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
