"""Warp specialization: partitions of a program's warps that run different code at once.

Up to Triton 3.6 `ttg.warp_specialize` takes the values that partitions use, later `ttg.warp_specialize.partitions`
does. Both are accepted here; `passes/legalize_triton_3_7.py` moves them.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import DenseArrayBase, TensorType, i32
from xdsl.dialects.utils import AbstractYieldOperation
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    irdl_op_definition,
    lazy_traits_def,
    opt_prop_def,
    prop_def,
    region_def,
    var_operand_def,
    var_region_def,
    var_result_def,
)
from xdsl.traits import HasParent, IsolatedFromAbove, IsTerminator
from xdsl.utils.exceptions import VerifyException

from compilemask.dialects.triton.types import require

WARPGROUP = 4
MAX_WARPS = 32
MIN_REGISTERS, MAX_REGISTERS, REGISTER_STEP = 24, 256, 8
"""What `setmaxnreg` takes."""


@irdl_op_definition
class WarpSpecializePartitionsOp(IRDLOperation):
    """The partitions of a `ttg.warp_specialize`, one region each; they see nothing outside but their arguments."""

    name = "ttg.warp_specialize.partitions"
    captures = var_operand_def(AnyAttr())
    partitions = var_region_def()
    traits = lazy_traits_def(lambda: (IsolatedFromAbove(), IsTerminator(), HasParent(WarpSpecializeOp)))

    def __init__(self, partitions: Sequence[Region], captures: Sequence[SSAValue] = ()) -> None:
        super().__init__(operands=[list(captures)], regions=[list(partitions)])

    def verify_(self) -> None:
        parent = self.parent_op()
        if not isinstance(parent, WarpSpecializeOp):
            return
        expected = [*parent.captures.types, *self.captures.types]
        require(not parent.captures or not self.captures, self, "captures are operands of one of the two operations")
        require(not any(isinstance(t, TensorType) for t in expected), self, "a partition cannot capture a tensor")
        for number, region in enumerate(self.partitions):
            block = region.blocks.first
            if block is None or list(block.arg_types) != expected:
                raise VerifyException(f"{self.name}: arguments of partition {number} are not the captures")
            for last in (block.last_op for block in region.blocks):
                ends = last is not None and last.has_trait(IsTerminator)
                require(ends, self, f"partition {number} must end in ttg.warp_return")


@irdl_op_definition
class WarpSpecializeOp(IRDLOperation):
    """Runs the default region on the module's `ttg.num-warps` warps and each partition on warps of its own.

    `partitionNumWarps` has one entry for each partition, `requestedRegisters` the registers of a thread there; the
    default region gets what is left.
    """

    name = "ttg.warp_specialize"
    partitionNumWarps = prop_def(DenseArrayBase.constr(i32))
    requestedRegisters = opt_prop_def(DenseArrayBase.constr(i32))
    captures = var_operand_def(AnyAttr())
    results_ = var_result_def(AnyAttr())
    default = region_def()
    holder = region_def("single_block")

    def __init__(
        self,
        default: Region,
        partitions: Sequence[Region],
        num_warps: Sequence[int],
        *,
        registers: Sequence[int] | None = None,
        captures: Sequence[SSAValue] = (),
        result_types: Sequence[Attribute] = (),
    ) -> None:
        holder = Region(Block([WarpSpecializePartitionsOp(partitions)]))
        requested = None if registers is None else DenseArrayBase.from_list(i32, list(registers))
        super().__init__(
            operands=[list(captures)],
            result_types=[list(result_types)],
            properties={
                "partitionNumWarps": DenseArrayBase.from_list(i32, list(num_warps)),
                "requestedRegisters": requested,
            },
            regions=[default, holder],
        )

    @property
    def partitions_op(self) -> WarpSpecializePartitionsOp:
        """The operation that holds the partitions."""
        op = self.holder.block.last_op
        if not isinstance(op, WarpSpecializePartitionsOp):
            raise VerifyException(f"{self.name}: the second region must hold {WarpSpecializePartitionsOp.name}")
        return op

    @property
    def num_warps(self) -> list[int]:
        """Warps of each partition."""
        return [int(number) for number in self.partitionNumWarps.get_values()]

    def verify_(self) -> None:
        count, warps = len(self.partitions_op.partitions), self.num_warps
        require(len(warps) == count, self, f"partitionNumWarps has {len(warps)} entries for {count} partitions")
        for number in warps:
            fits = 0 < number <= 16 and number & (number - 1) == 0
            require(fits, self, f"a partition of {number} warps; 1, 2, 4, 8 or 16 are possible")
        require(sum(warps) <= MAX_WARPS - WARPGROUP, self, f"{sum(warps)} warps beside the default partition's")
        if self.requestedRegisters is not None:
            registers = [int(number) for number in self.requestedRegisters.get_values()]
            require(len(registers) == count, self, f"requestedRegisters has {len(registers)} entries, not {count}")
            for number in registers:
                fits = MIN_REGISTERS <= number <= MAX_REGISTERS and number % REGISTER_STEP == 0
                require(
                    fits, self, f"{number} registers; {MIN_REGISTERS} to {MAX_REGISTERS} in steps of 8 are possible"
                )
        for block in self.default.blocks:
            if isinstance(last := block.last_op, WarpYieldOp):
                same = list(last.arguments.types) == list(self.results_.types)
                require(same, self, "the default region yields other types than the results")


@irdl_op_definition
class WarpYieldOp(AbstractYieldOperation[Attribute]):
    """Ends the default region of `ttg.warp_specialize` with its results."""

    name = "ttg.warp_yield"
    traits = lazy_traits_def(lambda: (IsTerminator(), HasParent(WarpSpecializeOp)))


@irdl_op_definition
class WarpReturnOp(IRDLOperation):
    """Ends a partition."""

    name = "ttg.warp_return"
    assembly_format = "attr-dict"
    traits = lazy_traits_def(lambda: (IsTerminator(), HasParent(WarpSpecializePartitionsOp)))


SPECIALIZE_OPS: tuple[type[Operation], ...] = (
    WarpSpecializeOp,
    WarpSpecializePartitionsOp,
    WarpYieldOp,
    WarpReturnOp,
)
