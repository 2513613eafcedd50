"""What the functions of every level share: a name, typed arguments and one block that a terminator ends.

Each level has a function operation of its own (`mask.func`, `interval.func`, `tiling.func`), which says what its body
may hold and must return; `FunctionLike` gives them their syntax. A module may hold functions of several levels, each
under a name of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from xdsl.dialects.builtin import (
    FunctionType,
    MemRefType,
    StringAttr,
    SymbolNameConstraint,
    i32,
)
from xdsl.dialects.utils import parse_func_op_like, print_func_op_like
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import IRDLOperation, prop_def, region_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from compilemask.dialects.narrowing import is_array, is_integer, is_memref

_RESERVED = ("sym_name", "function_type")


class MisplacedOperationError(VerifyException):
    """An operation stands where it may not; the verifier of what is around it says so."""

    def __init__(self, operation: Operation, expected: str) -> None:
        self.operation = operation
        super().__init__(f"{operation.name} cannot stand here; {expected}")


class FunctionLike(IRDLOperation):
    """A symbol with a function type and a single-block body whose block arguments are the function's arguments."""

    sym_name = prop_def(SymbolNameConstraint())
    function_type = prop_def(FunctionType)
    body = region_def("single_block")

    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface())

    def __init__(
        self,
        name: str | StringAttr,
        function_type: FunctionType,
        body: Region | None = None,
        attributes: dict[str, Attribute] | None = None,
    ) -> None:
        if body is None:
            body = Region(Block(arg_types=function_type.inputs.data))
        super().__init__(
            properties={
                "sym_name": StringAttr(name) if isinstance(name, str) else name,
                "function_type": function_type,
            },
            attributes=attributes or {},
            regions=[body],
        )

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        name, inputs, outputs, region, attributes, _, _ = parse_func_op_like(parser, reserved_attr_names=_RESERVED)
        return cls(
            name,
            FunctionType.from_lists(inputs, outputs),
            region,
            dict(attributes.data) if attributes is not None else None,
        )

    def print(self, printer: Printer) -> None:
        print_func_op_like(
            printer, self.sym_name, self.function_type, self.body, self.attributes, reserved_attr_names=_RESERVED
        )

    def verify_signature(self, leading: Sequence[str], result: type[Attribute]) -> None:
        """Raise unless the arguments are `leading` i32 values, then mask parameters, and there is one `result`."""
        inputs, outputs = self.function_type.inputs.data, self.function_type.outputs.data
        name = self.sym_name.data
        if not (name.isascii() and name.isprintable()):
            # Other characters are printed as escapes, which are not read back as a name.
            raise VerifyException(f"{self.name}: the name {name!r} holds characters other than printable ASCII")
        if tuple(arg.type for arg in self.body.block.args) != tuple(inputs):
            raise VerifyException(f"{self.name} @{self.sym_name.data}: block arguments do not match the function type")
        if len(outputs) != 1 or not isinstance(outputs[0], result):
            raise VerifyException(f"{self.name} @{self.sym_name.data} must return one !{result.name}")
        if len(inputs) < len(leading) or any(ty != i32 for ty in inputs[: len(leading)]):
            names = ", ".join(f"{name}: i32" for name in leading)
            raise VerifyException(f"{self.name} @{self.sym_name.data} must start with ({names})")
        for position, ty in enumerate(inputs[len(leading) :], start=len(leading)):
            if not is_parameter_type(ty):
                raise VerifyException(
                    f"{self.name} @{self.sym_name.data}: argument {position} is {ty}; "
                    "a mask parameter is i32 or memref<?xi32>"
                )


def is_parameter_type(ty: Attribute) -> bool:
    """Whether a mask parameter may have this type: `i32` (a host integer) or `memref<?xi32>` (a table in device
    memory).
    """
    if ty == i32:
        return True
    return is_memref(ty) and ty.element_type == i32 and len(ty.get_shape()) == 1


def verify_table(name: str, table: SSAValue) -> None:
    """Raise unless an operand of the operation `name` may be a table in device memory."""
    if not is_parameter_type(table.type):
        raise VerifyException(f"{name} takes a memref<?xi32>, got {table.type}")


def ascending_tables(op: Operation) -> list[int]:
    """The numbers in the attribute `ascending`, by which an operation says that tables ascend: numbers of arguments of
    the function that it stands in, or is.
    """
    listed = op.attributes.get("ascending")
    items = listed.data if is_array(listed) else ()
    return [item.value.data for item in items if is_integer(item)]


def verify_ascending(func: FunctionLike) -> None:
    """Raise unless what `ascending` names, of a function and of all in its body, are tables among its arguments."""
    types = func.function_type.inputs.data
    for op in (func, *func.body.walk()):
        for number in ascending_tables(op):
            if not 0 <= number < len(types) or not isinstance(types[number], MemRefType):
                name = func.sym_name.data
                raise VerifyException(f"{op.name} in @{name}: ascending names argument {number}, which is no table")


__all__ = [
    "FunctionLike",
    "MisplacedOperationError",
    "ascending_tables",
    "is_parameter_type",
    "verify_ascending",
    "verify_table",
]
