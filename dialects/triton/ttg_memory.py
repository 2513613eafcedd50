"""Operations of the `ttg` dialect on shared memory: allocation, access, and views of buffers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, IntAttr, IntegerAttr, TensorType, i32
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    base,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure

from compilemask.dialects.narrowing import is_tensor
from compilemask.dialects.triton.layouts import NvmmaSharedLayout, RegisterLayout, SwizzledSharedLayout
from compilemask.dialects.triton.ttg_types import (
    AnySharedLayout,
    AsyncTokenType,
    MemDescType,
    bytes_of,
    layout_of,
    memdesc_of,
    require_mutable,
)
from compilemask.dialects.triton.types import element_of, require, shape_of

_MEMDESC = base(MemDescType)
_TENSOR = base(TensorType)


def _require_same_content(op: Operation, tensor: TensorType, memdesc: MemDescType) -> None:
    layout_of(op, tensor)
    fits = shape_of(tensor) == memdesc.shape and element_of(tensor) == memdesc.element_type
    require(fits, op, f"{tensor} does not hold what {memdesc} does")
    require(memdesc.layout.rank == len(memdesc.shape), op, f"{memdesc} is an array of buffers; index it first")


# ---------------------------------------------------------------- allocation


@irdl_op_definition
class LocalAllocOp(IRDLOperation):
    """A buffer in shared memory, filled with a tensor if one is given; without one it must be mutable."""

    name = "ttg.local_alloc"
    src = opt_operand_def(_TENSOR)
    alignment = opt_prop_def(IntegerAttr)
    result = result_def(_MEMDESC)
    traits = traits_def(MemoryWriteEffect())

    def __init__(self, result_type: MemDescType, src: SSAValue | Operation | None = None) -> None:
        super().__init__(operands=[src], result_types=[result_type])

    def verify_(self) -> None:
        memdesc = memdesc_of(self, self.result.type)
        require(memdesc.alloc_shape == memdesc.shape_, self, "an allocation is no view of a part")
        if self.src is None:
            require(memdesc.is_mutable, self, "a buffer without content must be mutable")
        else:
            assert is_tensor(self.src.type)
            _require_same_content(self, self.src.type, memdesc)


@irdl_op_definition
class LocalDeallocOp(IRDLOperation):
    """Ends the life of a buffer; its space may be used again after this point."""

    name = "ttg.local_dealloc"
    src = operand_def(_MEMDESC)
    assembly_format = "$src attr-dict `:` type($src)"
    traits = traits_def(MemoryWriteEffect())

    def __init__(self, src: SSAValue | Operation) -> None:
        super().__init__(operands=[src])


# ---------------------------------------------------------------- access


@irdl_op_definition
class LocalLoadOp(IRDLOperation):
    """A buffer's content as a tensor; a token orders it after an asynchronous copy."""

    name = "ttg.local_load"
    src = operand_def(_MEMDESC)
    token = opt_operand_def(AsyncTokenType)
    result = result_def(_TENSOR)
    assembly_format = "$src (`token` $token^)? attr-dict `:` type($src) `->` type($result)"
    traits = traits_def(MemoryReadEffect())

    def __init__(
        self, src: SSAValue | Operation, layout: RegisterLayout, token: SSAValue | Operation | None = None
    ) -> None:
        memdesc = SSAValue.get(src).type
        assert isinstance(memdesc, MemDescType)
        result = TensorType(memdesc.element_type, memdesc.shape, layout)
        super().__init__(operands=[src, token], result_types=[result])

    def verify_(self) -> None:
        assert isinstance(self.result.type, TensorType)
        _require_same_content(self, self.result.type, memdesc_of(self, self.src.type))


@irdl_op_definition
class LocalStoreOp(IRDLOperation):
    """Writes a tensor to a buffer."""

    name = "ttg.local_store"
    src = operand_def(_TENSOR)
    dst = operand_def(_MEMDESC)
    assembly_format = "$src `,` $dst attr-dict `:` type($src) `->` type($dst)"
    traits = traits_def(MemoryWriteEffect())

    def __init__(self, src: SSAValue | Operation, dst: SSAValue | Operation) -> None:
        super().__init__(operands=[src, dst])

    def verify_(self) -> None:
        assert is_tensor(self.src.type)
        _require_same_content(self, self.src.type, require_mutable(self, self.dst.type))


# ---------------------------------------------------------------- views


def _require_view(op: Operation, source: MemDescType, result: MemDescType) -> None:
    require(source.element_type == result.element_type, op, f"element types of {source} and {result} differ")
    require(source.mutable == result.mutable, op, "a view is as mutable as its buffer")


@irdl_op_definition
class MemDescIndexOp(IRDLOperation):
    """One buffer of an array of buffers; the index (i32) counts along the first dimension."""

    name = "ttg.memdesc_index"
    src = operand_def(_MEMDESC)
    index = operand_def(i32)
    result = result_def(_MEMDESC)
    assembly_format = "$src `[` $index `]` attr-dict `:` type($src) `->` type($result)"
    traits = traits_def(Pure())

    def __init__(self, src: SSAValue | Operation, index: SSAValue | Operation) -> None:
        source = SSAValue.get(src).type
        assert isinstance(source, MemDescType)
        result = MemDescType.of(source.shape[1:], source.element_type, source.layout, mutable=source.is_mutable)
        super().__init__(operands=[src, index], result_types=[result])

    def verify_(self) -> None:
        source, result = memdesc_of(self, self.src.type), memdesc_of(self, self.result.type)
        _require_view(self, source, result)
        fits = result.shape == source.shape[1:] and result.layout == source.layout
        require(fits, self, f"{result} is not one buffer of {source}")


@irdl_op_definition
class MemDescSubsliceOp(IRDLOperation):
    """A part of a buffer: from constant offsets on, in the result's shape."""

    name = "ttg.memdesc_subslice"
    offsets = prop_def(DenseArrayBase.constr(i32))
    src = operand_def(_MEMDESC)
    result = result_def(_MEMDESC)
    traits = traits_def(Pure())

    def __init__(self, src: SSAValue | Operation, offsets: Sequence[int], shape: Sequence[int]) -> None:
        source = SSAValue.get(src).type
        assert isinstance(source, MemDescType)
        result = MemDescType.of(
            shape,
            source.element_type,
            source.layout,
            mutable=source.is_mutable,
            alloc_shape=[size.data for size in source.alloc_shape],
        )
        super().__init__(
            operands=[src],
            result_types=[result],
            properties={"offsets": DenseArrayBase.from_list(i32, list(offsets))},
        )

    def verify_(self) -> None:
        source, result = memdesc_of(self, self.src.type), memdesc_of(self, self.result.type)
        _require_view(self, source, result)
        require(source.layout == result.layout, self, "a part keeps the layout")
        require(source.alloc_shape == result.alloc_shape, self, "a part keeps the shape of the allocation")
        offsets = [int(offset) for offset in self.offsets.get_values()]
        require(len(offsets) == len(source.shape) == len(result.shape), self, "ranks differ")
        for offset, part, whole in zip(offsets, result.shape, source.shape, strict=True):
            inside = offset >= 0 and offset + part <= whole and offset % part == 0
            require(inside, self, f"{part} elements at {offset} are no aligned part of {whole}")


@irdl_op_definition
class MemDescTransOp(IRDLOperation):
    """A view with dimensions permuted: result dimension i is source dimension order[i]."""

    name = "ttg.memdesc_trans"
    order = prop_def(DenseArrayBase.constr(i32))
    src = operand_def(_MEMDESC)
    result = result_def(_MEMDESC)
    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())

    def __init__(self, src: SSAValue | Operation, order: Sequence[int] = (1, 0)) -> None:
        source = SSAValue.get(src).type
        assert isinstance(source, MemDescType)
        result = MemDescType.of(
            [source.shape[i] for i in order],
            source.element_type,
            transposed_layout(source.layout, order),
            mutable=source.is_mutable,
            alloc_shape=_permuted(source.alloc_shape, order),
        )
        super().__init__(
            operands=[src], result_types=[result], properties={"order": DenseArrayBase.from_list(i32, list(order))}
        )

    def verify_(self) -> None:
        source, result = memdesc_of(self, self.src.type), memdesc_of(self, self.result.type)
        order = [int(i) for i in self.order.get_values()]
        require(sorted(order) == list(range(len(source.shape))), self, f"{order} is no permutation")
        _require_view(self, source, result)
        require(result.shape == tuple(source.shape[i] for i in order), self, f"{result} is not {source} permuted")
        expected = transposed_layout(source.layout, order)
        require(result.layout == expected, self, f"the result's layout should be {expected}")
        whole = _permuted(result.alloc_shape, range(len(order))) == _permuted(source.alloc_shape, order)
        require(whole, self, f"{result} is cut from another buffer than {source} permuted")


def _permuted(sizes: ArrayAttr[IntAttr], order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sizes.data[i].data for i in order)


def transposed_layout(layout: AnySharedLayout, order: Sequence[int]) -> AnySharedLayout:
    """The layout of a buffer whose dimensions are permuted."""
    if isinstance(layout, SwizzledSharedLayout):
        inverse = {dim: position for position, dim in enumerate(order)}
        numbers = {"vec": layout.vec.data, "per_phase": layout.per_phase.data, "max_phase": layout.max_phase.data}
        return SwizzledSharedLayout.of([inverse[dim.data] for dim in layout.order], **numbers)
    flips = len(order) >= 2 and order[-1] < order[-2]
    return NvmmaSharedLayout.of(
        layout.element_bit_width.data,
        swizzle=layout.swizzle.data,
        transposed=layout.is_transposed != flips,
        rank=layout.rank,
    )


@irdl_op_definition
class MemDescReshapeOp(IRDLOperation):
    """A view under another shape with the same elements in row-major order."""

    name = "ttg.memdesc_reshape"
    src = operand_def(_MEMDESC)
    result = result_def(_MEMDESC)
    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"
    traits = traits_def(Pure())

    def __init__(self, src: SSAValue | Operation, shape: Sequence[int]) -> None:
        source = SSAValue.get(src).type
        assert isinstance(source, MemDescType)
        layout = source.layout
        if isinstance(layout, NvmmaSharedLayout):
            layout = NvmmaSharedLayout.of(
                layout.element_bit_width.data,
                swizzle=layout.swizzle.data,
                transposed=layout.is_transposed,
                rank=len(shape),
            )
        result = MemDescType.of(shape, source.element_type, layout, mutable=source.is_mutable)
        super().__init__(operands=[src], result_types=[result])

    def verify_(self) -> None:
        source, result = memdesc_of(self, self.src.type), memdesc_of(self, self.result.type)
        _require_view(self, source, result)
        require(prod(source.shape) == prod(result.shape), self, f"{source} and {result} differ in size")
        require(source.alloc_shape == source.shape_, self, f"{source} is a part; reshape the whole, then slice")
        before, after = source.layout, result.layout
        if isinstance(before, NvmmaSharedLayout):
            same = isinstance(after, NvmmaSharedLayout) and before.swizzle == after.swizzle
            require(same, self, f"{before} does not become {after}")
            require(source.shape[-1] == result.shape[-1] or before.swizzle.data == 0, self, "rows must stay whole")


@irdl_op_definition
class MemDescReinterpretOp(IRDLOperation):
    """The same memory as a buffer of another shape, element type or layout."""

    name = "ttg.memdesc_reinterpret"
    src = operand_def(_MEMDESC)
    result = result_def(_MEMDESC)
    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"
    traits = traits_def(Pure())

    def __init__(self, src: SSAValue | Operation, result_type: MemDescType) -> None:
        super().__init__(operands=[src], result_types=[result_type])

    def verify_(self) -> None:
        source, result = memdesc_of(self, self.src.type), memdesc_of(self, self.result.type)
        before = bytes_of(source.shape, source.element_type)
        after = bytes_of(result.shape, result.element_type)
        require(after == before, self, f"{after} bytes are not {before}")
        require(source.alloc_shape == source.shape_, self, f"{source} is a part; reinterpret the whole")


MEMORY_OPS: tuple[type[Operation], ...] = (
    LocalAllocOp,
    LocalDeallocOp,
    LocalLoadOp,
    LocalStoreOp,
    MemDescIndexOp,
    MemDescSubsliceOp,
    MemDescTransOp,
    MemDescReshapeOp,
    MemDescReinterpretOp,
)
