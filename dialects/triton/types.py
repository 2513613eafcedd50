"""Types of the `tt` dialect and questions about scalar and tensor types that its operations ask."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from xdsl.dialects.builtin import IntAttr, NoneAttr, TensorType
from xdsl.ir import Attribute, Operation, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from compilemask.dialects.narrowing import is_tensor

GLOBAL_MEMORY = 1


@irdl_attr_definition
class PointerType(ParametrizedAttribute, TypeAttribute):
    """`!tt.ptr<T>`: an address of a value of type T in global memory; `!tt.ptr<T, n>`: in address space n."""

    name = "tt.ptr"
    pointee_type: Attribute
    address_space: IntAttr

    def __init__(self, pointee_type: Attribute, address_space: int | IntAttr = GLOBAL_MEMORY) -> None:
        space = IntAttr(address_space) if isinstance(address_space, int) else address_space
        super().__init__(pointee_type, space)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            pointee = parser.parse_type()
            space = GLOBAL_MEMORY
            if parser.parse_optional_punctuation(","):
                space = parser.parse_integer(allow_boolean=False, allow_negative=False)
        return (pointee, IntAttr(space))

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_attribute(self.pointee_type)
            if self.address_space.data != GLOBAL_MEMORY:
                printer.print_string(f", {self.address_space.data}")


def element_of(type_: Attribute) -> Attribute:
    """The element type of a tensor; a scalar type itself."""
    return type_.element_type if is_tensor(type_) else type_


def shape_of(type_: Attribute) -> tuple[int, ...]:
    """The shape of a tensor; `()` for a scalar."""
    return type_.get_shape() if isinstance(type_, TensorType) else ()


@lru_cache(maxsize=1024)
def _tensor(element: Attribute, shape: tuple[int, ...], encoding: Attribute) -> TensorType[Attribute]:
    """The type, made once: of a thousand types in a kernel a dozen differ."""
    return TensorType(element, shape, encoding)


def with_shape(element: Attribute, shape: Sequence[int], encoding: Attribute | None = None) -> Attribute:
    """A tensor of `element` with this shape and encoding; `element` itself for the empty shape."""
    return _tensor(element, tuple(shape), encoding or NoneAttr()) if shape else element


def encoding_of(type_: Attribute) -> Attribute | None:
    """The encoding of a tensor, such as a register layout; None for scalars and tensors without one."""
    return type_.encoding if isinstance(type_, TensorType) and not isinstance(type_.encoding, NoneAttr) else None


def like(type_: Attribute, element: Attribute) -> Attribute:
    """`type_` (scalar or tensor) with another element type and the same encoding."""
    if isinstance(type_, TensorType):
        return _tensor(element, type_.get_shape(), type_.encoding)
    return element


def pointee_of(type_: Attribute) -> Attribute | None:
    """What a pointer, or a tensor of pointers, points to, elementwise; None for other types."""
    element = element_of(type_)
    return like(type_, element.pointee_type) if isinstance(element, PointerType) else None


def require(condition: bool, op: Operation, message: str) -> None:
    """Raise a verification error that names the operation unless `condition` holds."""
    if not condition:
        raise VerifyException(f"{op.name}: {message}")


def require_same_element(op: Operation, source: Attribute, result: Attribute) -> None:
    """Raise a verification error unless both types have one element type."""
    require(element_of(source) == element_of(result), op, f"element types of {source} and {result} differ")
