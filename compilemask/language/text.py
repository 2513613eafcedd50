"""IR text: modules at any level, and masks written out in the mask dialect with their parameters bound by name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, ModuleOp, i64
from xdsl.ir import BlockArgument, Operation, SSAValue

from compilemask.dialects import mask as dialect
from compilemask.dialects.function import ascending_tables
from compilemask.dialects.mask_interface import RegionInterface
from compilemask.errors import MaskError
from compilemask.language.builder import TABLE, Builder
from compilemask.language.extent import Extent, end_of_image, last_offset
from compilemask.language.mask import Mask
from compilemask.language.source import Source, parse_source, read_text
from compilemask.language.values import Value, scalar, table

if TYPE_CHECKING:
    from compilemask.language.values import Scalar


@dataclass(frozen=True, eq=False, repr=False)
class _Stored(Mask):
    func: dialect.FuncOp
    bound: tuple[tuple[str, Value], ...]

    @property
    def name(self) -> str:
        return self.func.sym_name.data

    def extents(self) -> tuple[Extent, ...]:
        """Those of segments and images whose numbers are parameters."""
        block = self.func.body.block
        given: dict[SSAValue, Value] = {a: value for a, (_, value) in zip(block.args, self.bound, strict=True)}
        found: list[Extent] = []
        for op in block.ops:
            values = tuple(given[operand] for operand in op.operands if operand in given)
            if isinstance(op, dialect.SegmentsOp) and values:
                found.append(Extent(f"@{self.name}: the last offset", values, last_offset))
            elif isinstance(op, dialect.GridOp) and len(values) == len(op.operands):
                found.append(Extent(f"@{self.name}: the end of the image", values, end_of_image, is_image=True))
        return tuple(found)

    def emit(self, builder: Builder) -> SSAValue:
        block = self.func.body.block
        copies: dict[SSAValue, SSAValue] = {}
        for argument, (name, value) in zip(block.args, self.bound, strict=True):
            copies[argument] = builder.table(name, value) if value.is_table else builder.scalar(name, value)
        for op in block.ops:
            if isinstance(op, dialect.ReturnOp):
                return copies[op.value]
            copy = op.clone(copies)
            for inner in copy.walk():
                _renumber(inner, [copies[argument] for argument in block.args])
            builder.add(copy)
        raise AssertionError("a verified mask.func ends in mask.return")


def _renumber(op: Operation, arguments: list[SSAValue]) -> None:
    """Names ascending tables by their numbers among the parameters of the function that the operation goes into."""
    if numbers := ascending_tables(op):
        moved = sorted(cast("BlockArgument", arguments[number]).index for number in numbers)
        op.attributes["ascending"] = ArrayAttr([IntegerAttr(number, i64) for number in moved])


def parse_module(text: str, file: str | None = None) -> ModuleOp:
    """The verified module that `text` holds, at any level of CompileMask. `file` names it in errors.

    Raises:
        IRError: the text cannot be parsed or does not verify.
    """
    return parse_source(text, file).module


def parse_module_for(names: Iterable[str], text: str, file: str | None = None) -> ModuleOp:
    """As `parse_module`, but every one of `names` must be a parameter of some mask of the text.

    Raises:
        IRError: the text cannot be parsed or does not verify.
        MaskError: no mask has a parameter of that name.
    """
    source = parse_source(text, file)
    functions = [op for op in source.module.walk() if isinstance(op, dialect.FuncOp)]
    known = {name for func in functions for name in _names(source, func)}
    for name in names:
        if name not in known:
            takes = "; ".join(f"@{func.sym_name.data} takes {_takes(source, func)}" for func in functions)
            raise MaskError(f"there is no parameter {name!r}; {takes or 'there is no mask.func'}")
    return source.module


def parse(text: str, name: str | None = None, /, **arguments: Scalar) -> Mask:
    """The mask that IR text holds.

    Args:
        text: a module with a `mask.func`, as `str(mask)` prints it.
        name: which `mask.func`, if the module holds several.
        arguments: the function's parameters by their names in the text: an int for `i32`, int32/int64 data of shape
            [n], [B, n] or [B, H, n] for `memref<?xi32>`.

    Raises:
        IRError: the text cannot be parsed or does not verify, or holds no such function.
        MaskError: a parameter is missing, unknown or of another type.
    """
    return _mask(parse_source(text), name, arguments)


def load(path: str | os.PathLike[str], name: str | None = None, /, **arguments: Scalar) -> Mask:
    """The mask that a `.mlir` file holds; otherwise as `parse`.

    Raises:
        IRError: the file cannot be read or parsed, does not verify, or holds no such function.
        MaskError: a parameter is missing, unknown or of another type.
    """
    return _mask(parse_source(read_text(path), str(path)), name, arguments)


def loads(text: str, file: str | None = None, /, **arguments: Scalar) -> Mask:
    """The only mask of a text that came from `file`; otherwise as `parse`.

    Raises:
        IRError: the text cannot be parsed, does not verify, or does not hold one mask.
        MaskError: a parameter is missing, unknown or of another type.
    """
    return _mask(parse_source(text, file), None, arguments)


def _mask(source: Source, name: str | None, arguments: dict[str, Scalar]) -> Mask:
    func = _find(source, name)
    _check_operations(source, func)
    return _Stored(func, _bind(source, func, arguments))


def _find(source: Source, name: str | None) -> dialect.FuncOp:
    if name is not None and not isinstance(name, str):
        raise MaskError(f"the name of a mask.func must be a str, got {name!r} ({type(name).__name__})")
    functions = {op.sym_name.data: op for op in source.module.walk() if isinstance(op, dialect.FuncOp)}
    if name is None and len(functions) == 1:
        return next(iter(functions.values()))
    known = ", ".join(f"@{known}" for known in functions) or "none"
    if name is None:
        source.fail(f"expected one mask.func, or the name of one; found {known}", source.module)
    if name not in functions:
        source.fail(f"there is no mask.func @{name}; found {known}", source.module)
    return functions[name]


def _check_operations(source: Source, func: dialect.FuncOp) -> None:
    from compilemask.dialects.semantics import arith

    allowed = frozenset(dialect.MASK.operations) - {dialect.FuncOp}
    for op in func.body.walk():
        if type(op) not in allowed and not arith.handles(op) and not isinstance(op, RegionInterface):
            source.fail(f"a mask cannot hold {op.name}", op)


def _names(source: Source, func: dialect.FuncOp) -> list[str]:
    return [source.names.get(argument, f"arg{argument.index}") for argument in func.body.block.args]


def _takes(source: Source, func: dialect.FuncOp) -> str:
    parameters = zip(_names(source, func), func.body.block.args, strict=True)
    return ", ".join(f"{name}: {argument.type}" for name, argument in parameters) or "no parameters"


def _bind(source: Source, func: dialect.FuncOp, arguments: dict[str, Scalar]) -> tuple[tuple[str, Value], ...]:
    label = f"@{func.sym_name.data}"
    names, takes = _names(source, func), _takes(source, func)
    for given in arguments:
        if given not in names:
            raise MaskError(f"{label} has no parameter {given!r}; it takes {takes}")
    bound: list[tuple[str, Value]] = []
    for name, argument in zip(names, func.body.block.args, strict=True):
        if name not in arguments:
            raise MaskError(f"{label} needs the parameter {name!r}; it takes {takes}")
        what, given = f"{label}: {name}", arguments[name]
        if argument.type == TABLE:
            bound.append((name, table(what, given)))
            continue
        value = scalar(what, given)
        if value.is_table:
            raise MaskError(f"{what} is {argument.type} and takes an int, got {type(given).__name__}")
        bound.append((name, value))
    return tuple(bound)


__all__ = ["load", "loads", "parse", "parse_module", "parse_module_for"]
