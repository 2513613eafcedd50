"""The `ttng` dialect: Hopper's mbarriers, TMA copies and asynchronous matrix products (wgmma)."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import AnyFloat, BoolAttr, IntegerAttr, IntegerType, TensorType, f16, f32, i1, i32
from xdsl.ir import Attribute, Dialect, Operation, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    base,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import MemoryReadEffect
from xdsl.utils.exceptions import VerifyException

from compilemask.dialects.triton.enums import INPUT_PRECISIONS, enum_attr, enum_name
from compilemask.dialects.triton.layouts import DotOperandLayout, NvidiaMmaLayout, NvmmaSharedLayout
from compilemask.dialects.triton.ttg_types import MemDescType, layout_of, memdesc_of
from compilemask.dialects.triton.ttng_barriers import (
    BARRIER_OPS,
    ArriveBarrierOp,
    BarrierExpectOp,
    FenceAsyncSharedOp,
    InitBarrierOp,
    InvalBarrierOp,
    WaitBarrierOp,
)
from compilemask.dialects.triton.ttng_tma import (
    TMA_OPS,
    AsyncTMACopyGlobalToLocalOp,
    AsyncTMACopyLocalToGlobalOp,
    AsyncTMAReduceOp,
    AsyncTMAStoreWaitOp,
    ReinterpretTensorDescriptorOp,
)
from compilemask.dialects.triton.types import element_of, require, shape_of

__all__ = [
    "TTNG",
    "ArriveBarrierOp",
    "AsyncTMACopyGlobalToLocalOp",
    "AsyncTMACopyLocalToGlobalOp",
    "AsyncTMAReduceOp",
    "AsyncTMAStoreWaitOp",
    "BarrierExpectOp",
    "FenceAsyncSharedOp",
    "InitBarrierOp",
    "InvalBarrierOp",
    "ReinterpretTensorDescriptorOp",
    "WaitBarrierOp",
    "WarpGroupDotOp",
    "WarpGroupDotWaitOp",
]

_ROWS_PER_WARP = 16
_K_BITS = 256
"""A wgmma instruction takes 256 bits along K: 16 elements of bf16."""


@irdl_op_definition
class WarpGroupDotOp(IRDLOperation):
    """a @ b + c on Hopper's tensor cores (wgmma): a [M, K] in shared memory or registers, b [K, N] in shared memory.

    With `isAsync` the result must not be used before a `ttng.warp_group_dot_wait`. Where `useC` is false c is ignored.
    """

    name = "ttng.warp_group_dot"
    a = operand_def(AnyAttr())
    b = operand_def(base(MemDescType))
    c = operand_def(base(TensorType))
    useC = opt_operand_def(i1)
    inputPrecision = prop_def(IntegerAttr)
    maxNumImpreciseAcc = prop_def(IntegerAttr.constr(type=i32))
    isAsync = prop_def(BoolAttr)
    d = result_def(base(TensorType))
    traits = traits_def(MemoryReadEffect())

    def __init__(
        self,
        a: SSAValue | Operation,
        b: SSAValue | Operation,
        c: SSAValue | Operation,
        use_c: SSAValue | Operation | None = None,
        *,
        is_async: bool = True,
        precision: str = "tf32",
        max_imprecise: int = 0,
    ) -> None:
        c = SSAValue.get(c)
        super().__init__(
            operands=[a, b, c, use_c],
            result_types=[c.type],
            properties={
                "inputPrecision": enum_attr(INPUT_PRECISIONS, precision),
                "maxNumImpreciseAcc": IntegerAttr(max_imprecise, i32),
                "isAsync": BoolAttr.from_bool(is_async),
            },
        )

    def verify_(self) -> None:
        enum_name(INPUT_PRECISIONS, self.inputPrecision)
        require(self.c.type == self.d.type, self, f"the result {self.d.type} should be {self.c.type}")
        accumulator = layout_of(self, self.d.type)
        hopper = isinstance(accumulator, NvidiaMmaLayout) and accumulator.version_major.data == 3
        require(hopper, self, f"the accumulator {self.d.type} has no layout of wgmma")
        assert isinstance(accumulator, NvidiaMmaLayout)
        a_shape, a_element = self._left(accumulator)
        b = memdesc_of(self, self.b.type)
        self._require_readable(b)
        m, n = shape_of(self.d.type) if len(shape_of(self.d.type)) == 2 else (0, 0)
        fits = a_shape[:1] == (m,) and a_shape[1:] == b.shape[:1] and b.shape[1:] == (n,)
        require(fits, self, f"{self.a.type} times {b} does not give {self.d.type}")
        require(a_element == b.element_type, self, "a and b differ in element type")
        self._verify_instruction(accumulator, a_shape[1], m, n)

    def _left(self, accumulator: NvidiaMmaLayout) -> tuple[tuple[int, ...], Attribute]:
        if isinstance(self.a.type, MemDescType):
            self._require_readable(self.a.type)
            return self.a.type.shape, self.a.type.element_type
        layout = layout_of(self, self.a.type)
        fits = isinstance(layout, DotOperandLayout) and layout.op_idx.data == 0 and layout.parent == accumulator
        require(fits, self, f"a {self.a.type} is not operand 0 of {accumulator}")
        return shape_of(self.a.type), element_of(self.a.type)

    def _require_readable(self, memdesc: MemDescType) -> None:
        layout = memdesc.layout
        readable = isinstance(layout, NvmmaSharedLayout) and layout.swizzle.data > 0
        require(readable, self, f"{memdesc} has no layout that wgmma reads")

    def _require_k_contiguous(self) -> None:
        """Only operands of 16 bits may have K as the outer dimension (PTX, wgmma's transposition flags)."""
        for memdesc, transposed in ((self.a.type, False), (self.b.type, True)):
            if isinstance(memdesc, MemDescType) and isinstance(memdesc.layout, NvmmaSharedLayout):
                fits = memdesc.layout.is_transposed == transposed
                require(fits, self, f"K must be the contiguous dimension of {memdesc}")

    def _verify_instruction(self, accumulator: NvidiaMmaLayout, k: int, m: int, n: int) -> None:
        assert isinstance(self.b.type, MemDescType)
        element, result = self.b.type.element_type, element_of(self.d.type)
        if not isinstance(element, AnyFloat | IntegerType):
            raise VerifyException(f"{self.name}: no product of {element}")
        floating = isinstance(element, AnyFloat)
        results = (f32, f16) if element == f16 else (f32,) if floating else (i32,)
        require(result in results, self, f"products of {element} are not summed as {result}")
        if element.bitwidth != 16:
            self._require_k_contiguous()
        instruction = [size.data for size in accumulator.instr_shape]
        warps = [count.data for count in accumulator.warps_per_cta]
        require(instruction[2] * element.bitwidth == _K_BITS, self, f"instruction {instruction} for {element}")
        rows, columns = _ROWS_PER_WARP * warps[0], instruction[1] * warps[1]
        require(m >= rows and m % rows == 0, self, f"{m} rows over {warps[0]} warps of {_ROWS_PER_WARP}")
        require(n >= columns and n % columns == 0, self, f"{n} columns over instructions of {instruction[1]}")
        require(k >= instruction[2] and k % instruction[2] == 0, self, f"K = {k} over instructions of {instruction[2]}")


@irdl_op_definition
class WarpGroupDotWaitOp(IRDLOperation):
    """Waits until at most `pendings` asynchronous products are unfinished; passes the finished ones on."""

    name = "ttng.warp_group_dot_wait"
    pendings = prop_def(IntegerAttr.constr(type=i32))
    inputs = var_operand_def(AnyAttr())
    outputs = var_result_def(AnyAttr())
    traits = traits_def(MemoryReadEffect())

    def __init__(self, inputs: Sequence[SSAValue | Operation], pendings: int = 0) -> None:
        values = [SSAValue.get(value) for value in inputs]
        super().__init__(
            operands=[values],
            result_types=[[value.type for value in values]],
            properties={"pendings": IntegerAttr(pendings, i32)},
        )

    def verify_(self) -> None:
        require(bool(self.inputs), self, "at least one value is needed")
        require(list(self.inputs.types) == list(self.outputs.types), self, "results must have the operands' types")
        require(self.pendings.value.data >= 0, self, f"pendings {self.pendings.value.data}")


DOT_OPS: tuple[type[Operation], ...] = (WarpGroupDotOp, WarpGroupDotWaitOp)
TTNG = Dialect("ttng", [*BARRIER_OPS, *TMA_OPS, *DOT_OPS])
