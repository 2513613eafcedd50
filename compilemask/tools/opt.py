"""`compilemask-opt`: reads IR of any level, runs passes on it and prints it, by xDSL's driver."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import IO

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.transforms.canonicalize import CanonicalizePass
from xdsl.transforms.common_subexpression_elimination import CommonSubexpressionElimination
from xdsl.transforms.dead_code_elimination import DeadCodeElimination
from xdsl.utils.exceptions import ArgSpecParseError, DiagnosticException, ParseError
from xdsl.xdsl_opt_main import xDSLOptMain

from compilemask import lowering, passes
from compilemask.dialects.registry import DIALECTS
from compilemask.errors import CompileMaskError
from compilemask.language.source import parse_source

GENERAL: tuple[type[ModulePass], ...] = (CanonicalizePass, CommonSubexpressionElimination, DeadCodeElimination)
"""Passes of xDSL that serve every level."""


def all_passes() -> dict[str, type[ModulePass]]:
    """Every pass and lowering by its name."""
    found = {kind.name: kind for kind in GENERAL}
    for package in (passes, lowering):
        for module in _modules(package):
            for kind in vars(module).values():
                if isinstance(kind, type) and issubclass(kind, ModulePass) and kind.__module__ == module.__name__:
                    found[kind.name] = kind
    return found


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield import_module(info.name)


class Driver(xDSLOptMain):
    """The driver: one run per object."""

    version_format = "compilemask-opt, built on xDSL {xdsl_version}"

    def __init__(self, args: Sequence[str] | None = None) -> None:
        super().__init__("Runs passes on the IR of CompileMask", args)

    def register_all_dialects(self) -> None:
        for dialect in DIALECTS:
            self.ctx.register_dialect(dialect.name, lambda dialect=dialect: dialect)

    def parse_chunk(self, chunk: IO[bytes], file_extension: str, start_offset: int = 0) -> ModuleOp | None:
        """As xDSL's, but faults say where they are; the options that want xDSL's own reports get them."""
        options = self.args
        own = options.verify_diagnostics or options.parsing_diagnostics or options.disable_verify
        if own or options.allow_unregistered_dialect or (options.frontend or file_extension) != "mlir":
            return super().parse_chunk(chunk, file_extension, start_offset)
        # Pieces of a split file keep the line numbers of the whole.
        text = "\n" * start_offset + chunk.read().decode()
        return parse_source(text, self.get_input_name()).module

    def register_all_passes(self) -> None:
        for name, kind in all_passes().items():
            self.register_pass(name, lambda kind=kind: kind)


def main() -> None:
    """The command: faults in the input go to stderr in a few lines."""
    try:
        Driver().run()
    except (ParseError, ArgSpecParseError, DiagnosticException, CompileMaskError, OSError, ValueError) as error:
        print(f"compilemask-opt: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
