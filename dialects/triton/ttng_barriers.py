"""Operations of the `ttng` dialect on mbarriers in shared memory, and fences between the two ways to reach it."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import BoolAttr, IntegerAttr, i1, i32
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import (
    AnyAttr,
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    base,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect

from compilemask.dialects.triton.ttg_types import MemDescType, memdesc_of, require_barrier
from compilemask.dialects.triton.types import require

_BARRIER = base(MemDescType)
_I32 = IntegerAttr.constr(type=i32)
MAX_COUNT = (1 << 20) - 1
"""Arrivals that an mbarrier can count, and bytes that it can expect."""


class _BarrierOp(IRDLOperation):
    """An operation on one mbarrier, its operand `alloc`."""

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def verify_(self) -> None:
        require_barrier(self, self.operands[0].type)

    def require_count(self, name: str, count: IntegerAttr) -> None:
        """Raise a verification error unless a count is in range."""
        require(0 < count.value.data <= MAX_COUNT, self, f"{name} {count.value.data} is not in 1..{MAX_COUNT}")


@irdl_op_definition
class InitBarrierOp(_BarrierOp):
    """Makes an mbarrier whose phase ends after `count` arrivals; its first phase is 0."""

    name = "ttng.init_barrier"
    alloc = operand_def(_BARRIER)
    count = prop_def(_I32)
    assembly_format = "$alloc `,` $count attr-dict `:` type($alloc)"

    def __init__(self, alloc: SSAValue | Operation, count: int = 1) -> None:
        super().__init__(operands=[alloc], properties={"count": IntegerAttr(count, i32)})

    def verify_(self) -> None:
        super().verify_()
        self.require_count("count", self.count)


@irdl_op_definition
class InvalBarrierOp(_BarrierOp):
    """Ends the life of an mbarrier, so that its memory may hold something else."""

    name = "ttng.inval_barrier"
    alloc = operand_def(_BARRIER)
    assembly_format = "$alloc attr-dict `:` type($alloc)"

    def __init__(self, alloc: SSAValue | Operation) -> None:
        super().__init__(operands=[alloc])


@irdl_op_definition
class BarrierExpectOp(_BarrierOp):
    """One arrival that also makes the phase wait for `size` bytes of asynchronous copies, if the predicate holds."""

    name = "ttng.barrier_expect"
    alloc = operand_def(_BARRIER)
    size = prop_def(_I32)
    pred = operand_def(i1)
    assembly_format = "$alloc `,` $size attr-dict `,` $pred `:` type($alloc)"

    def __init__(self, alloc: SSAValue | Operation, size: int, pred: SSAValue | Operation) -> None:
        super().__init__(operands=[alloc, pred], properties={"size": IntegerAttr(size, i32)})

    def verify_(self) -> None:
        super().verify_()
        self.require_count("size", self.size)


@irdl_op_definition
class ArriveBarrierOp(_BarrierOp):
    """`count` arrivals from one thread, after all threads of the partition have come, if the predicate holds."""

    name = "ttng.arrive_barrier"
    alloc = operand_def(_BARRIER)
    count = prop_def(_I32)
    pred = opt_operand_def(i1)
    assembly_format = "$alloc `,` $count (`,` $pred^)? attr-dict `:` type($alloc)"

    def __init__(self, alloc: SSAValue | Operation, count: int = 1, pred: SSAValue | Operation | None = None) -> None:
        super().__init__(operands=[alloc, pred], properties={"count": IntegerAttr(count, i32)})

    def verify_(self) -> None:
        super().verify_()
        self.require_count("count", self.count)


@irdl_op_definition
class WaitBarrierOp(_BarrierOp):
    """Waits until the phase of parity `phase` (i32, 0 or 1) has ended; buffers in `deps` are ready only then."""

    name = "ttng.wait_barrier"
    alloc = operand_def(_BARRIER)
    phase = operand_def(i32)
    pred = opt_operand_def(i1)
    deps = var_operand_def(AnyAttr())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = "$alloc `,` $phase (`,` $pred^)? (`deps` $deps^)? attr-dict `:` type($alloc) (`,` type($deps)^)?"

    def __init__(
        self,
        alloc: SSAValue | Operation,
        phase: SSAValue | Operation,
        pred: SSAValue | Operation | None = None,
        deps: Sequence[SSAValue | Operation] = (),
    ) -> None:
        super().__init__(operands=[alloc, phase, pred, list(deps)])

    def verify_(self) -> None:
        super().verify_()
        for type_ in self.deps.types:
            memdesc_of(self, type_)


@irdl_op_definition
class FenceAsyncSharedOp(IRDLOperation):
    """Makes ordinary stores to shared memory visible to TMA and wgmma, of the whole cluster if `bCluster`."""

    name = "ttng.fence_async_shared"
    bCluster = prop_def(BoolAttr)
    assembly_format = "attr-dict"
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(self, *, cluster: bool = False) -> None:
        super().__init__(properties={"bCluster": BoolAttr.from_bool(cluster)})


BARRIER_OPS: tuple[type[Operation], ...] = (
    InitBarrierOp,
    InvalBarrierOp,
    BarrierExpectOp,
    ArriveBarrierOp,
    WaitBarrierOp,
    FenceAsyncSharedOp,
)
