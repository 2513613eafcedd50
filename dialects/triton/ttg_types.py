"""Types of the `ttg` dialect, and of `tt` where layouts matter: shared buffers, TMA descriptors, tokens."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

from xdsl.dialects.builtin import (
    AnyFloat,
    ArrayAttr,
    BoolAttr,
    FixedBitwidthType,
    IntAttr,
    IntegerType,
    TensorType,
    i64,
)
from xdsl.ir import Attribute, Operation, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from compilemask.dialects.triton.layouts import (
    BARRIER_LAYOUT,
    NvmmaSharedLayout,
    RegisterLayout,
    SharedMemorySpace,
    SwizzledSharedLayout,
)
from compilemask.dialects.triton.types import require

AnySharedLayout: TypeAlias = NvmmaSharedLayout | SwizzledSharedLayout


def _print_shape(printer: Printer, shape: Sequence[int]) -> None:
    printer.print_string("".join(f"{size}x" for size in shape))


@irdl_attr_definition
class MemDescType(ParametrizedAttribute, TypeAttribute):
    """`!ttg.memdesc<2x64x128xbf16, #layout, #ttg.shared_memory, mutable>`: a buffer in shared memory, or a view.

    Leading dimensions beyond the layout's rank make an array of buffers. A view of a part also prints the shape of
    the buffer that it is cut from, `alloc_shape`.
    """

    name = "ttg.memdesc"
    shape_: ArrayAttr[IntAttr]
    element_type: Attribute
    layout: AnySharedLayout
    memory_space: SharedMemorySpace
    mutable: BoolAttr
    alloc_shape: ArrayAttr[IntAttr]

    @classmethod
    def of(
        cls,
        shape: Sequence[int],
        element: Attribute,
        layout: AnySharedLayout,
        *,
        mutable: bool = True,
        alloc_shape: Sequence[int] | None = None,
    ) -> MemDescType:
        """A buffer, or a view of one whose last dimensions were those of `alloc_shape`."""
        dims = ArrayAttr([IntAttr(size) for size in shape])
        alloc = dims if alloc_shape is None else ArrayAttr([IntAttr(size) for size in alloc_shape])
        return cls(dims, element, layout, SharedMemorySpace(), BoolAttr.from_bool(mutable), alloc)

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions, those of an array of buffers first."""
        return tuple(size.data for size in self.shape_)

    @property
    def is_mutable(self) -> bool:
        """Whether stores and asynchronous copies may write to it."""
        return bool(self.mutable.value.data)

    def verify(self) -> None:
        if not self.shape or any(size <= 0 for size in self.shape):
            raise VerifyException(f"{self.name}: shape {self.shape}")
        if self.layout.rank not in (len(self.shape), len(self.shape) - 1):
            raise VerifyException(f"{self.name}: shape {self.shape} does not fit a layout of rank {self.layout.rank}")
        if isinstance(self.layout, NvmmaSharedLayout) and isinstance(self.element_type, FixedBitwidthType):
            width, expected = self.element_type.bitwidth, self.layout.element_bit_width.data
            if width != expected:
                raise VerifyException(f"{self.name}: {self.element_type} in a layout of {expected}-bit elements")
        if isinstance(self.layout, NvmmaSharedLayout):
            self.layout.require_rows([size.data for size in self.alloc_shape])

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            shape, element = parser.parse_ranked_shape()
            parser.parse_punctuation(",")
            layout = parser.parse_attribute()
            parser.parse_punctuation(",")
            space = parser.parse_attribute()
            mutable, alloc = False, shape
            if parser.parse_optional_punctuation(","):
                mutable = parser.parse_optional_keyword("mutable") is not None
                if not mutable or parser.parse_optional_punctuation(","):
                    alloc = _parse_bare_shape(parser)
        dims = ArrayAttr([IntAttr(size) for size in shape])
        alloc_dims = ArrayAttr([IntAttr(size) for size in alloc])
        return (dims, element, layout, space, BoolAttr.from_bool(mutable), alloc_dims)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            _print_shape(printer, self.shape)
            printer.print_attribute(self.element_type)
            printer.print_string(", ")
            printer.print_attribute(self.layout)
            printer.print_string(", ")
            printer.print_attribute(self.memory_space)
            if self.is_mutable:
                printer.print_string(", mutable")
            if self.alloc_shape != self.shape_:
                printer.print_string(f", {'x'.join(str(size.data) for size in self.alloc_shape)}")


def _parse_bare_shape(parser: AttrParser) -> list[int]:
    """`128x128`, sizes without an element type; zero dimensions do not occur."""
    sizes = [parser.parse_shape_dimension(allow_dynamic=False)]
    # Public methods parse an element type too.
    while parser._parse_optional_shape_delimiter() is not None:  # pyright: ignore[reportPrivateUsage]
        sizes.append(parser.parse_shape_dimension(allow_dynamic=False))
    return sizes


@irdl_attr_definition
class TensorDescType(ParametrizedAttribute, TypeAttribute):
    """`!tt.tensordesc<...>`: a TMA descriptor of boxes of `block`, which shared memory holds in `layout`.

    Triton up to 3.7 writes `!tt.tensordesc<tensor<64x64xbf16, #layout>>`, later versions leave out `tensor`;
    `wraps_tensor` says which of the two is meant.
    """

    name = "tt.tensordesc"
    block: TensorType
    wraps_tensor: BoolAttr

    @classmethod
    def of(
        cls, shape: Sequence[int], element: Attribute, layout: NvmmaSharedLayout, *, wraps_tensor: bool = True
    ) -> TensorDescType:
        """A descriptor of boxes of a shape and layout."""
        return cls(TensorType(element, shape, layout), BoolAttr.from_bool(wraps_tensor))

    @property
    def shape(self) -> tuple[int, ...]:
        """The box that one copy moves."""
        return self.block.get_shape()

    def verify(self) -> None:
        if not 1 <= len(self.shape) <= 5:
            raise VerifyException(f"{self.name}: TMA has 1 to 5 dimensions, not {len(self.shape)}")
        layout = self.block.encoding
        if not isinstance(layout, NvmmaSharedLayout) or layout.is_transposed:
            raise VerifyException(f"{self.name}: {self.block} has no shared layout that TMA writes")
        if layout.rank != len(self.shape):
            raise VerifyException(f"{self.name}: {self.block} has a layout of rank {layout.rank}")
        layout.require_rows(self.shape)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            block = parser.parse_optional_type()
            if block is not None:
                return (block, BoolAttr.from_bool(True))
            shape, element = parser.parse_ranked_shape()
            parser.parse_punctuation(",")
            return (TensorType(element, shape, parser.parse_attribute()), BoolAttr.from_bool(False))

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            if self.wraps_tensor.value.data:
                printer.print_attribute(self.block)
                return
            _print_shape(printer, self.shape)
            printer.print_attribute(self.block.element_type)
            printer.print_string(", ")
            printer.print_attribute(self.block.encoding)


@irdl_attr_definition
class AsyncTokenType(ParametrizedAttribute, TypeAttribute):
    """`!ttg.async.token`: orders asynchronous copies."""

    name = "ttg.async.token"


BARRIER = MemDescType.of([1], i64, BARRIER_LAYOUT)
"""One mbarrier in shared memory."""


def tensor(shape: Sequence[int], element: Attribute, layout: RegisterLayout) -> TensorType:
    """A tensor type with a register layout."""
    return TensorType(element, shape, layout)


def memdesc_of(op: Operation, type_: Attribute) -> MemDescType:
    """The type as that of a buffer; raises a verification error that names the operation otherwise."""
    if not isinstance(type_, MemDescType):
        raise VerifyException(f"{op.name}: {type_} is not a buffer in shared memory")
    return type_


def layout_of(op: Operation, type_: Attribute) -> RegisterLayout:
    """The register layout of a tensor type; raises a verification error that names the operation otherwise."""
    if not isinstance(type_, TensorType) or not isinstance(type_.encoding, RegisterLayout):
        raise VerifyException(f"{op.name}: {type_} has no register layout")
    return type_.encoding


def require_barrier(op: Operation, type_: Attribute) -> None:
    """Raise a verification error unless the type is that of one mbarrier."""
    require(type_ == BARRIER, op, f"{type_} is not one mbarrier, {BARRIER}")


def require_mutable(op: Operation, type_: Attribute) -> MemDescType:
    """The type as that of a buffer that may be written; raises a verification error otherwise."""
    memdesc = memdesc_of(op, type_)
    require(memdesc.is_mutable, op, f"{type_} is not mutable")
    return memdesc


def bytes_of(shape: Sequence[int], element: Attribute) -> int:
    """Bytes that a buffer of this shape takes."""
    if not isinstance(element, IntegerType | AnyFloat):
        raise VerifyException(f"{element} is not a number type")
    return prod(shape) * element.bitwidth // 8


TYPES: tuple[type[ParametrizedAttribute], ...] = (MemDescType, TensorDescType, AsyncTokenType)
