"""`isinstance` for generic classes of xDSL, after which a type checker knows their parameters too."""

from __future__ import annotations

from typing import TypeGuard

from xdsl.dialects.builtin import ArrayAttr, IntAttr, IntegerAttr, IntegerType, MemRefType, TensorType
from xdsl.ir import Attribute, SSAValue


def is_value(x: object) -> TypeGuard[SSAValue]:
    """Whether this is a value."""
    return isinstance(x, SSAValue)


def is_memref(x: object) -> TypeGuard[MemRefType[Attribute]]:
    """Whether this is a memref type."""
    return isinstance(x, MemRefType)


def is_tensor(x: object) -> TypeGuard[TensorType[Attribute]]:
    """Whether this is a tensor type."""
    return isinstance(x, TensorType)


def is_integer_type(x: object) -> TypeGuard[IntegerType]:
    """Whether this is an integer type."""
    return isinstance(x, IntegerType)


def is_integer(x: object) -> TypeGuard[IntegerAttr]:
    """Whether this is an integer attribute."""
    return isinstance(x, IntegerAttr)


def is_plain_integer(x: object) -> TypeGuard[IntAttr]:
    """Whether this is an integer without a type."""
    return isinstance(x, IntAttr)


def is_array(x: object) -> TypeGuard[ArrayAttr[Attribute]]:
    """Whether this is an array of attributes."""
    return isinstance(x, ArrayAttr)


__all__ = ["is_array", "is_integer", "is_integer_type", "is_memref", "is_plain_integer", "is_tensor", "is_value"]
