"""Text that Triton's parser takes: generic form, no aliases, no locations."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute
from xdsl.printer import Printer


def print_generic(module: ModuleOp) -> str:
    """The module as generic MLIR text, for `triton.compile` of a `.ttir` or `.ttgir` file."""
    stream = StringIO()
    _Printer(stream, print_generic_format=True).print_op(module)
    return stream.getvalue() + "\n"


class _Printer(Printer):
    """Prints each attribute once and remembers its text: of a thousand types in a kernel a dozen differ."""

    def __init__(self, stream: StringIO, *, print_generic_format: bool) -> None:
        super().__init__(stream, print_generic_format=print_generic_format)
        self._texts: dict[Attribute, str] = {}

    def print_attribute(self, attribute: Attribute) -> None:
        self.print_string(self._text(attribute))

    def print_function_type(self, input_types: Iterable[Attribute], output_types: Iterable[Attribute]) -> None:
        inputs, outputs = (", ".join(map(self._text, types)) for types in (input_types, output_types))
        self.print_string(f"({inputs}) -> ({outputs})")

    def _text(self, attribute: Attribute) -> str:
        text = self._texts.get(attribute)
        if text is None:
            stream = StringIO()
            Printer(stream, print_generic_format=True).print_attribute(attribute)
            text = self._texts[attribute] = stream.getvalue()
        return text
