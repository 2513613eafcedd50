"""Operations of the `tt` dialect on pointers and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from xdsl.dialects.builtin import AnyFloat, IntegerAttr, i1, i64
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    AnyAttr,
    AttrSizedOperandSegments,
    IRDLOperation,
    VarConstraint,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

from compilemask.dialects.narrowing import is_integer_type
from compilemask.dialects.triton.enums import (
    CACHE_MODIFIERS,
    EVICTION_POLICIES,
    MEM_SCOPES,
    MEM_SEMANTICS,
    RMW_OPS,
    enum_attr,
    enum_name,
    parse_enum,
)
from compilemask.dialects.triton.types import element_of, like, pointee_of, require

# ---------------------------------------------------------------- pointers


@irdl_op_definition
class AddPtrOp(IRDLOperation):
    """Pointers moved by offsets, elementwise; offsets (i32 or i64, same shape) count elements, not bytes."""

    name = "tt.addptr"
    T: ClassVar = VarConstraint("T", AnyAttr())
    ptr = operand_def(T)
    offset = operand_def(AnyAttr())
    result = result_def(T)
    assembly_format = "$ptr `,` $offset attr-dict `:` type($ptr) `,` type($offset)"
    traits = traits_def(Pure())

    def __init__(self, ptr: SSAValue | Operation, offset: SSAValue | Operation) -> None:
        ptr = SSAValue.get(ptr)
        super().__init__(operands=[ptr, offset], result_types=[ptr.type])

    def verify_(self) -> None:
        require(pointee_of(self.ptr.type) is not None, self, f"{self.ptr.type} is not a pointer")
        offset = element_of(self.offset.type)
        require(
            is_integer_type(offset) and self.offset.type == like(self.ptr.type, offset),
            self,
            f"offset {self.offset.type} does not fit {self.ptr.type}",
        )


@irdl_op_definition
class PtrToIntOp(IRDLOperation):
    """The address of each pointer as i64."""

    name = "tt.ptr_to_int"
    src = operand_def(AnyAttr())
    result = result_def(AnyAttr())
    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"
    traits = traits_def(Pure())

    def __init__(self, src: SSAValue | Operation) -> None:
        src = SSAValue.get(src)
        super().__init__(operands=[src], result_types=[like(src.type, i64)])

    def verify_(self) -> None:
        require(pointee_of(self.src.type) is not None, self, f"{self.src.type} is not a pointer")
        require(self.result.type == like(self.src.type, i64), self, "the result must be i64 in the source's shape")


@irdl_op_definition
class IntToPtrOp(IRDLOperation):
    """An i64 address as a pointer, elementwise."""

    name = "tt.int_to_ptr"
    src = operand_def(AnyAttr())
    result = result_def(AnyAttr())
    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"
    traits = traits_def(Pure())

    def __init__(self, src: SSAValue | Operation, result_type: Attribute) -> None:
        super().__init__(operands=[src], result_types=[result_type])

    def verify_(self) -> None:
        require(pointee_of(self.result.type) is not None, self, f"{self.result.type} is not a pointer")
        require(self.src.type == like(self.result.type, i64), self, "the source must be i64 in the result's shape")


# ---------------------------------------------------------------- loads and stores


def _require_access(op: Operation, ptr: SSAValue, value: Attribute, mask: SSAValue | None) -> None:
    pointee = pointee_of(ptr.type)
    require(pointee is not None, op, f"{ptr.type} is not a pointer")
    require(value == pointee, op, f"value {value} should be {pointee}")
    if mask is not None:
        require(mask.type == like(ptr.type, i1), op, f"mask {mask.type} does not fit {ptr.type}")


def _parse_operands(parser: Parser) -> list[UnresolvedOperand]:
    return parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)


def _parse_hints(parser: Parser) -> tuple[IntegerAttr | None, IntegerAttr | None]:
    cache = evict = None
    if parser.parse_optional_keyword("cacheModifier"):
        parser.parse_punctuation("=")
        cache = parse_enum(parser, CACHE_MODIFIERS)
    if parser.parse_optional_keyword("evictionPolicy"):
        parser.parse_punctuation("=")
        evict = parse_enum(parser, EVICTION_POLICIES)
    return cache, evict


def _print_access(
    printer: Printer, operands: Sequence[SSAValue], cache: IntegerAttr | None, evict: IntegerAttr | None
) -> None:
    printer.print_string(" ")
    printer.print_list(operands, printer.print_ssa_value)
    if cache is not None:
        printer.print_string(f" cacheModifier = {enum_name(CACHE_MODIFIERS, cache)}")
    if evict is not None:
        printer.print_string(f" evictionPolicy = {enum_name(EVICTION_POLICIES, evict)}")
    printer.print_string(" : ")
    printer.print_attribute(operands[0].type)


def _hint_attr(names: Mapping[str, int], hint: str | IntegerAttr | None) -> IntegerAttr | None:
    return enum_attr(names, hint) if isinstance(hint, str) else hint


@irdl_op_definition
class LoadOp(IRDLOperation):
    """The values at pointers, in their shape; a lane with a false mask touches no memory and gives `other`."""

    name = "tt.load"
    ptr = operand_def(AnyAttr())
    mask = opt_operand_def(AnyAttr())
    other = opt_operand_def(AnyAttr())
    cache = opt_prop_def(IntegerAttr)
    evict = opt_prop_def(IntegerAttr)
    result = result_def(AnyAttr())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(MemoryReadEffect())

    def __init__(
        self,
        ptr: SSAValue | Operation,
        mask: SSAValue | Operation | None = None,
        other: SSAValue | Operation | None = None,
        *,
        cache: str | IntegerAttr | None = None,
        evict: str | IntegerAttr | None = None,
    ) -> None:
        ptr = SSAValue.get(ptr)
        pointee = pointee_of(ptr.type)
        if pointee is None:
            raise VerifyException(f"tt.load: {ptr.type} is not a pointer")
        super().__init__(
            operands=[ptr, mask, other],
            result_types=[pointee],
            properties={"cache": _hint_attr(CACHE_MODIFIERS, cache), "evict": _hint_attr(EVICTION_POLICIES, evict)},
        )

    def verify_(self) -> None:
        _require_access(self, self.ptr, self.result.type, self.mask)
        if self.other is not None:
            require(self.mask is not None, self, "`other` without a mask")
            require(self.other.type == self.result.type, self, f"other {self.other.type} should be {self.result.type}")
        _require_hints(self.cache, self.evict)

    @classmethod
    def parse(cls, parser: Parser) -> LoadOp:
        operands = _parse_operands(parser)
        cache, evict = _parse_hints(parser)
        parser.parse_punctuation(":")
        type_ = parser.parse_type()
        types = (type_, like(type_, i1), pointee_of(type_))
        if types[2] is None or len(operands) > 3:
            parser.raise_error("expected a pointer, and at most a mask and an other value")
        resolved = [parser.resolve_operand(o, t) for o, t in zip(operands, types, strict=False) if t is not None]
        return cls(*resolved, cache=cache, evict=evict)

    def print(self, printer: Printer) -> None:
        _print_access(printer, self.operands, self.cache, self.evict)


def _require_hints(cache: IntegerAttr | None, evict: IntegerAttr | None) -> None:
    if cache is not None:
        enum_name(CACHE_MODIFIERS, cache)
    if evict is not None:
        enum_name(EVICTION_POLICIES, evict)


@irdl_op_definition
class StoreOp(IRDLOperation):
    """Writes values to pointers, elementwise; lanes whose mask is false touch no memory."""

    name = "tt.store"
    ptr = operand_def(AnyAttr())
    value = operand_def(AnyAttr())
    mask = opt_operand_def(AnyAttr())
    cache = opt_prop_def(IntegerAttr)
    evict = opt_prop_def(IntegerAttr)
    traits = traits_def(MemoryWriteEffect())

    def __init__(
        self,
        ptr: SSAValue | Operation,
        value: SSAValue | Operation,
        mask: SSAValue | Operation | None = None,
        *,
        cache: str | IntegerAttr | None = None,
        evict: str | IntegerAttr | None = None,
    ) -> None:
        super().__init__(
            operands=[ptr, value, mask],
            properties={"cache": _hint_attr(CACHE_MODIFIERS, cache), "evict": _hint_attr(EVICTION_POLICIES, evict)},
        )

    def verify_(self) -> None:
        _require_access(self, self.ptr, self.value.type, self.mask)
        _require_hints(self.cache, self.evict)

    @classmethod
    def parse(cls, parser: Parser) -> StoreOp:
        operands = _parse_operands(parser)
        cache, evict = _parse_hints(parser)
        parser.parse_punctuation(":")
        type_ = parser.parse_type()
        pointee = pointee_of(type_)
        if pointee is None or len(operands) not in (2, 3):
            parser.raise_error("expected a pointer, a value, and at most a mask")
        types = (type_, pointee, like(type_, i1))
        return cls(
            *(parser.resolve_operand(o, t) for o, t in zip(operands, types, strict=False)), cache=cache, evict=evict
        )

    def print(self, printer: Printer) -> None:
        _print_access(printer, self.operands, self.cache, self.evict)


# ---------------------------------------------------------------- atomics


@irdl_op_definition
class AtomicRMWOp(IRDLOperation):
    """Combines values into memory atomically, elementwise where the mask holds, and gives the values from before."""

    name = "tt.atomic_rmw"
    atomic_rmw_op = prop_def(IntegerAttr)
    sem = prop_def(IntegerAttr)
    scope = prop_def(IntegerAttr)
    T: ClassVar = VarConstraint("T", AnyAttr())
    ptr = operand_def(AnyAttr())
    val = operand_def(T)
    mask = opt_operand_def(AnyAttr())
    result = result_def(T)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(
        self,
        kind: str | IntegerAttr,
        ptr: SSAValue | Operation,
        val: SSAValue | Operation,
        mask: SSAValue | Operation | None = None,
        *,
        sem: str | IntegerAttr = "acq_rel",
        scope: str | IntegerAttr = "gpu",
    ) -> None:
        val = SSAValue.get(val)
        super().__init__(
            operands=[ptr, val, mask],
            result_types=[val.type],
            properties={
                "atomic_rmw_op": _hint_attr(RMW_OPS, kind),
                "sem": _hint_attr(MEM_SEMANTICS, sem),
                "scope": _hint_attr(MEM_SCOPES, scope),
            },
        )

    def verify_(self) -> None:
        _require_access(self, self.ptr, self.val.type, self.mask)
        kind = enum_name(RMW_OPS, self.atomic_rmw_op)
        enum_name(MEM_SEMANTICS, self.sem)
        enum_name(MEM_SCOPES, self.scope)
        if kind == "exch":
            return
        is_float = isinstance(element_of(self.val.type), AnyFloat)
        require(is_float == (kind == "fadd"), self, f"{kind} does not take {self.val.type}")

    @classmethod
    def parse(cls, parser: Parser) -> AtomicRMWOp:
        kind = parse_enum(parser, RMW_OPS)
        parser.parse_punctuation(",")
        sem = parse_enum(parser, MEM_SEMANTICS)
        parser.parse_punctuation(",")
        scope = parse_enum(parser, MEM_SCOPES)
        parser.parse_punctuation(",")
        operands = _parse_operands(parser)
        parser.parse_punctuation(":")
        types = parser.parse_function_type().inputs.data
        resolved = parser.resolve_operands(operands, types, parser.pos)
        if len(resolved) not in (2, 3):
            parser.raise_error("expected a pointer, a value, and at most a mask")
        return cls(kind, *resolved, sem=sem, scope=scope)

    def print(self, printer: Printer) -> None:
        kind, sem = enum_name(RMW_OPS, self.atomic_rmw_op), enum_name(MEM_SEMANTICS, self.sem)
        printer.print_string(f" {kind}, {sem}, {enum_name(MEM_SCOPES, self.scope)}, ")
        printer.print_list(self.operands, printer.print_ssa_value)
        printer.print_string(" : ")
        printer.print_operation_type(self)


MEMORY_OPS: tuple[type[Operation], ...] = (AddPtrOp, PtrToIntOp, IntToPtrOp, LoadOp, StoreOp, AtomicRMWOp)
