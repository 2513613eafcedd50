"""IR text in, verified modules out; every fault is an `IRError` that says where."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast

from typing_extensions import override
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError
from xdsl.utils.lexer import Span
from xdsl.utils.mlir_lexer import MLIRLexer

from compilemask.dialects.function import FunctionLike, MisplacedOperationError
from compilemask.dialects.registry import make_context
from compilemask.errors import IRError

# xDSL's own pattern takes time exponential in the length of a string that is not closed. This one never looks back.
MLIRLexer._unescaped_characters_regex = re.compile(  # pyright: ignore[reportPrivateUsage]
    r'"(?:[^"\\\n\v\f]++|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+"'
)


@dataclass(frozen=True, eq=False)
class Source:
    """A module and where its parts stand in the text."""

    module: ModuleOp
    file: str | None
    text: str = ""
    places: dict[Operation, Span] = field(default_factory=dict[Operation, Span])
    names: dict[SSAValue, str] = field(default_factory=dict[SSAValue, str])
    """The names of values in the text, without `%`."""

    def fail(self, message: str, op: Operation | None) -> NoReturn:
        """Raises an `IRError` at the operation's place, or, if it has none, at that of the next operation around it."""
        while op is not None and op not in self.places:
            op = op.parent_op()
        place = self.places[op].get_location() if op is not None else None
        line, column = (place.line, place.col) if place else (None, None)
        raise IRError(message, file=self.file, line=line, column=column, text=self.text) from None


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file.

    Raises:
        IRError: the file cannot be read, or is not UTF-8 text.
    """
    if not isinstance(path, str | os.PathLike):
        raise IRError(f"a path must be a str or a PathLike, got {type(path).__name__}")
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise IRError(f"cannot be read: {error.strerror}", file=str(path)) from None
    except UnicodeDecodeError:
        raise IRError("is not UTF-8 text", file=str(path)) from None
    except ValueError as error:  # a null byte in the path
        raise IRError(f"cannot be read: {error}", file=repr(str(path))) from None


def parse_source(text: str, file: str | None = None) -> Source:
    """The verified module that `text` holds, at any level; `file` names the text in errors.

    Raises:
        IRError: the text cannot be parsed or does not verify.
    """
    if not isinstance(text, str):
        raise IRError(f"IR text must be a str, got {type(text).__name__}", file=file)
    parser: _RecordingParser | None = None
    try:
        parser = _RecordingParser(make_context(), text, file or "<text>")
        module = parser.parse_module()
    except ParseError as error:
        place = error.span.get_location()
        message = error.msg.strip()
        if message.startswith("in "):  # what xDSL says where a list or a block goes on with something else
            message = f"unexpected text {message}"
        raise IRError(message, file=file, line=place.line, column=place.col, text=text) from None
    except Exception as error:  # verifiers of attributes, and whatever odd text makes the parser stumble over
        if parser is None:
            raise IRError(str(error), file=file) from None
        place = (parser.innermost or parser.here()).get_location()
        raise IRError(
            str(error) or type(error).__name__, file=file, line=place.line, column=place.col, text=text
        ) from None
    source = Source(module, file, text, parser.places, parser.names)
    _verify(source)
    return source


class _RecordingParser(Parser):
    """Remembers where operations start and what values are called."""

    def __init__(self, context: Context, text: str, file: str) -> None:
        super().__init__(context, text, file)
        self.places: dict[Operation, Span] = {}
        self.names: dict[SSAValue, str] = {}
        self.innermost: Span | None = None
        """Where the operation starts whose parsing raised."""
        self._open: list[Span] = []

    def here(self) -> Span:
        """The next token."""
        return self._current_token.span

    @override
    def raise_error(self, msg: str, at_position: Any = None, end_position: int | None = None) -> NoReturn:
        """As xDSL's, but two faults that it finds too late get the place where they start."""
        if at_position is None and "is not registered" in msg and self._open:
            at_position = self._open[-1]
        if at_position is None and msg.startswith("values used but not defined"):
            unknown = next(iter(next(iter(self.forward_ssa_references.values())).values()))
            at_position = next((self.places[use.operation] for use in unknown.uses), None)
        super().raise_error(msg, at_position, end_position)  # pyright: ignore[reportArgumentType, reportCallIssue]

    @override
    def parse_operation(self) -> Operation:
        place = self.here()
        self._open.append(place)
        try:
            op = super().parse_operation()
        except Exception:
            self.innermost = self.innermost or place
            raise
        self._open.pop()
        self.places[op] = place
        return op

    @override
    def _register_ssa_definition(self, name: str, values: Sequence[SSAValue], span: Span) -> None:
        super()._register_ssa_definition(name, values, span)
        self.names.update((value, name) for value in values)


def _verify(source: Source) -> None:
    """Verifies operations inside out, so that the first fault is the innermost one, then the order of definitions."""
    for op in _inside_out(source.module):
        if isinstance(op, ModuleOp):
            blocks = sum(len(region.blocks) for region in op.regions)
            if len(op.regions) != 1 or blocks != 1:
                source.fail(f"{op.name} holds one region of one block, this one {blocks} blocks", op)
            _check_names(source, op)
        try:
            op.verify()
        except Exception as error:
            source.fail(_message(error, op), error.operation if isinstance(error, MisplacedOperationError) else op)
        _check_characters(source, op)
    for region in source.module.regions:
        for block in region.blocks:
            _check_order(source, block, set())


def _check_names(source: Source, module: ModuleOp) -> None:
    """Raises, at the second one, if two functions of a module share a name."""
    known: set[str] = set()
    for op in module.ops:
        if isinstance(op, FunctionLike):
            name = op.sym_name.data
            if name in known:
                source.fail(f"{op.name} @{name}: there is a function of that name already", op)
            known.add(name)


def _check_characters(source: Source, op: Operation) -> None:
    """Raises for names of attributes and strings that are not ASCII: xDSL prints what it reads as something else."""
    for name, value in (*op.attributes.items(), *op.properties.items()):
        for text in (name, *_texts(value)):
            if not text.isascii():
                source.fail(f"{op.name}: {text!r} holds characters other than ASCII", op)


def _texts(attribute: Attribute) -> Iterator[str]:
    """Strings and names in an attribute."""
    if isinstance(attribute, StringAttr):
        yield attribute.data
    elif isinstance(attribute, ArrayAttr):
        for value in cast("ArrayAttr[Attribute]", attribute):
            yield from _texts(value)
    elif isinstance(attribute, DictionaryAttr):
        for name, value in attribute.data.items():
            yield name
            yield from _texts(value)


def _inside_out(op: Operation) -> Iterator[Operation]:
    for region in op.regions:
        for block in region.blocks:
            for inner in block.ops:
                yield from _inside_out(inner)
    yield op


def _message(error: Exception, op: Operation) -> str:
    text = str(error) or type(error).__name__
    function = op
    while function is not None and not isinstance(function, FunctionLike):
        function = function.parent_op()
    if function is None or function is op:
        return text
    name = function.properties.get("sym_name")  # the function itself has not been verified yet
    return f"{text} (in {function.name} @{name.data})" if isinstance(name, StringAttr) else text


def _check_order(source: Source, block: Block, known: set[SSAValue]) -> None:
    """Raises unless values are defined before they are used. `known` holds the values of the blocks around."""
    known = known | set(block.args)
    for op in block.ops:
        for operand in op.operands:
            if operand not in known:
                name = source.names.get(operand, "value")
                source.fail(f"{op.name} uses %{name} before it is defined", op)
        for region in op.regions:
            if len(region.blocks) == 1:
                _check_order(source, region.block, known)
        known.update(op.results)


__all__ = ["Source", "parse_source", "read_text"]
