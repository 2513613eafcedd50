"""Operations of the `ttng` dialect that copy boxes between global and shared memory through the TMA unit."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import BoolAttr, DenseArrayBase, IntegerAttr, i1, i8, i32
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    base,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

from compilemask.dialects.triton.enums import CACHE_MODIFIERS, EVICTION_POLICIES, enum_attr, enum_name
from compilemask.dialects.triton.ttg_types import (
    MemDescType,
    TensorDescType,
    memdesc_of,
    require_barrier,
    require_mutable,
)
from compilemask.dialects.triton.types import PointerType, require

MAX_BOX = 256
"""Elements that a box of TMA has at most along one dimension."""

REDUCE_KINDS = {"add": 1, "min": 2, "max": 3, "inc": 4, "dec": 5, "and": 6, "or": 7, "xor": 8}


def _require_copy(op: Operation, desc: SSAValue, coords: int, memdesc: MemDescType) -> None:
    """The descriptor's box, the coordinates and the buffer fit."""
    box = desc.type
    if not isinstance(box, TensorDescType):
        raise VerifyException(f"{op.name}: {box} is not a descriptor")
    require(coords == len(box.shape), op, f"{coords} coordinates for a box of {len(box.shape)} dimensions")
    require(all(size <= MAX_BOX for size in box.shape), op, f"a box of {box.shape}; TMA moves at most {MAX_BOX} a side")
    same = memdesc.shape == box.shape and memdesc.element_type == box.block.element_type
    require(same, op, f"{memdesc} does not hold a box of {box}")
    require(memdesc.layout == box.block.encoding, op, f"the layout of {memdesc} is not that of {box}")
    require(memdesc.alloc_shape == memdesc.shape_, op, f"{memdesc} is a part, which TMA cannot reach; reinterpret it")


@irdl_op_definition
class ReinterpretTensorDescriptorOp(IRDLOperation):
    """A pointer to a tensor map, `!tt.ptr<i8, 0>` with the argument attribute `tt.nv_tma_desc`, as a descriptor."""

    name = "ttng.reinterpret_tensor_descriptor"
    rawDesc = operand_def(base(PointerType))
    result = result_def(base(TensorDescType))
    assembly_format = "$rawDesc attr-dict `:` type($rawDesc) `to` type($result)"
    traits = traits_def(Pure())

    def __init__(self, raw: SSAValue | Operation, result_type: TensorDescType) -> None:
        super().__init__(operands=[raw], result_types=[result_type])

    def verify_(self) -> None:
        require(self.rawDesc.type == PointerType(i8, 0), self, f"{self.rawDesc.type} is not !tt.ptr<i8, 0>")


@irdl_op_definition
class AsyncTMACopyGlobalToLocalOp(IRDLOperation):
    """Starts to copy the box at `coord` into a buffer; its bytes arrive at the barrier. Outside the tensor: zeros.

    `operandSegmentSizes` is absent in the form that Triton 3.6 reads; later versions want it.
    """

    name = "ttng.async_tma_copy_global_to_local"
    cache = opt_prop_def(IntegerAttr)
    evict = opt_prop_def(IntegerAttr)
    isVolatile = opt_prop_def(BoolAttr)
    segments = opt_prop_def(DenseArrayBase.constr(i32), prop_name="operandSegmentSizes")
    desc = operand_def(base(TensorDescType))
    coord = var_operand_def(i32)
    barrier = operand_def(base(MemDescType))
    result = operand_def(base(MemDescType))
    pred = operand_def(i1)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(
        self,
        desc: SSAValue | Operation,
        coord: Sequence[SSAValue | Operation],
        barrier: SSAValue | Operation,
        result: SSAValue | Operation,
        pred: SSAValue | Operation,
        *,
        cache: str = "none",
        evict: str = "evict_normal",
    ) -> None:
        super().__init__(
            operands=[desc, list(coord), barrier, result, pred],
            properties={
                "cache": enum_attr(CACHE_MODIFIERS, cache),
                "evict": enum_attr(EVICTION_POLICIES, evict),
                "isVolatile": BoolAttr.from_bool(False),
            },
        )

    def verify_(self) -> None:
        require_barrier(self, self.barrier.type)
        _require_copy(self, self.desc, len(self.coord), require_mutable(self, self.result.type))
        if self.cache is not None:
            enum_name(CACHE_MODIFIERS, self.cache)
        if self.evict is not None:
            enum_name(EVICTION_POLICIES, self.evict)
        if self.segments is not None:
            expected = [1, len(self.coord), 0, 1, 1, 1]
            found = [int(size) for size in self.segments.get_values()]
            require(found == expected, self, f"operandSegmentSizes {found} should be {expected}")


class _StoreOp(IRDLOperation):
    """A copy from shared to global memory."""

    desc = operand_def(base(TensorDescType))
    coord = var_operand_def(i32)
    src = operand_def(base(MemDescType))
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def verify_(self) -> None:
        _require_copy(self, self.desc, len(self.coord), memdesc_of(self, self.src.type))


@irdl_op_definition
class AsyncTMACopyLocalToGlobalOp(_StoreOp):
    """Starts to copy a buffer to the box at `coord`; what lies outside the tensor is dropped."""

    name = "ttng.async_tma_copy_local_to_global"

    def __init__(
        self, desc: SSAValue | Operation, coord: Sequence[SSAValue | Operation], src: SSAValue | Operation
    ) -> None:
        super().__init__(operands=[desc, list(coord), src])


@irdl_op_definition
class AsyncTMAReduceOp(_StoreOp):
    """Starts to combine a buffer into the box at `coord`, element by element, atomically each.

    What lies behind the tensor's end is dropped; at coordinates below 0 an H200 stops with an illegal instruction.
    """

    name = "ttng.async_tma_reduce"
    kind = prop_def(IntegerAttr)

    def __init__(
        self,
        kind: str,
        desc: SSAValue | Operation,
        coord: Sequence[SSAValue | Operation],
        src: SSAValue | Operation,
    ) -> None:
        super().__init__(operands=[desc, list(coord), src], properties={"kind": enum_attr(REDUCE_KINDS, kind)})

    def verify_(self) -> None:
        super().verify_()
        enum_name(REDUCE_KINDS, self.kind)


@irdl_op_definition
class AsyncTMAStoreWaitOp(IRDLOperation):
    """Waits until at most `pendings` copies to global memory still read their buffers."""

    name = "ttng.async_tma_store_wait"
    pendings = prop_def(IntegerAttr.constr(type=i32))
    assembly_format = "attr-dict"
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(self, pendings: int = 0) -> None:
        super().__init__(properties={"pendings": IntegerAttr(pendings, i32)})

    def verify_(self) -> None:
        require(self.pendings.value.data >= 0, self, f"pendings {self.pendings.value.data}")


TMA_OPS: tuple[type[Operation], ...] = (
    ReinterpretTensorDescriptorOp,
    AsyncTMACopyGlobalToLocalOp,
    AsyncTMACopyLocalToGlobalOp,
    AsyncTMAReduceOp,
    AsyncTMAStoreWaitOp,
)
