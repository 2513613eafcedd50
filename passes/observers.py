"""Observers of passes: they print the IR, what each pass changed and how long it took, read it back, and keep it."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import TextIO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.parser import Parser
from xdsl.passes import ModulePass
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from compilemask.errors import PipelineError
from compilemask.passes.instrument import Observer, described


def printed(module: ModuleOp, *, generic: bool = False) -> str:
    """A module as text that ends in a line break."""
    stream = StringIO()
    Printer(stream, print_generic_format=generic).print_op(module)
    return stream.getvalue() + "\n"


def heading(when: str, item: ModulePass) -> str:
    """The comment above printed IR: a pass with its options, and whether the IR is that before or after it."""
    return f"// ----- IR {when} {described(item)} -----\n"


@dataclass
class PrintIR(Observer):
    """Prints the IR before and after passes of the given names; None stands for all."""

    stream: TextIO
    before_names: Collection[str] | None = ()
    after_names: Collection[str] | None = ()

    def before(self, step: int, item: ModulePass, module: ModuleOp) -> None:
        if self.before_names is None or item.name in self.before_names:
            self.stream.write(heading("before", item) + printed(module))

    def after(self, step: int, item: ModulePass, module: ModuleOp, seconds: float) -> None:
        if self.after_names is None or item.name in self.after_names:
            self.stream.write(heading("after", item) + printed(module))


@dataclass
class PrintDiff(Observer):
    """Prints what each pass changed, as a unified diff."""

    stream: TextIO
    _last: str = ""

    def begin(self, module: ModuleOp, passes: Sequence[ModulePass]) -> None:
        self._last = printed(module)

    def after(self, step: int, item: ModulePass, module: ModuleOp, seconds: float) -> None:
        text = printed(module)
        lines = difflib.unified_diff(
            self._last.splitlines(),
            text.splitlines(),
            f"before {described(item)}",
            f"after {described(item)}",
            lineterm="",
        )
        self.stream.write("".join(f"{line}\n" for line in lines) or f"// {described(item)} changed nothing\n")
        self._last = text


@dataclass
class Timing(Observer):
    """Prints how long each pass took, once all have run."""

    stream: TextIO
    _rows: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])

    def begin(self, module: ModuleOp, passes: Sequence[ModulePass]) -> None:
        self._rows.clear()

    def after(self, step: int, item: ModulePass, module: ModuleOp, seconds: float) -> None:
        self._rows.append((described(item), seconds))

    def end(self, module: ModuleOp) -> None:
        total = sum(seconds for _, seconds in self._rows)
        for name, seconds in [*self._rows, ("total", total)]:
            share = seconds / total if total else 0.0
            self.stream.write(f"{seconds * 1e3:10.3f} ms {share:6.1%}  {name}\n")


@dataclass
class ReadBack(Observer):
    """After each pass, prints the IR in both syntaxes, reads it and compares; raises VerifyException on a fault."""

    context: Context

    def after(self, step: int, item: ModulePass, module: ModuleOp, seconds: float) -> None:
        for generic in (False, True):
            try:
                again = Parser(self.context, printed(module, generic=generic)).parse_module()
                again.verify()
            except Exception as error:
                raise VerifyException(f"the IR after {item.name} cannot be read again: {error}") from error
            if not module.is_structurally_equivalent(again):
                raise VerifyException(f"the IR after {item.name}, read again, is another")


@dataclass
class PrintLaunches(Observer):
    """Prints each launch of a kernel with the digest of the IR that it came from; names of dumped kernels end in it."""

    stream: TextIO

    def launched(self, name: str, text: str, grid: tuple[int, int, int]) -> None:
        self.stream.write(f"// launch {name} on {grid[0]} x {grid[1]} x {grid[2]} programs, IR {digest(text)}\n")


def digest(text: str) -> str:
    """Eight digits that tell texts apart."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass
class Dump(Observer):
    """Writes the IR into files: `FOLDER/NAME-HASH/00_input.mlir`, `01_PASS.mlir`, and kernels into `FOLDER/kernels`.

    NAME is that of the first function of the module, HASH tells modules of one name apart. What is written twice is
    the same: several processes may share a folder. Raises PipelineError where nothing can be written.
    """

    folder: str | Path
    _place: Path | None = None

    def begin(self, module: ModuleOp, passes: Sequence[ModulePass]) -> None:
        text = printed(module)
        self._place = Path(self.folder) / f"{_name(module)}-{digest(text)}"
        self._write("00_input.mlir", text)

    def after(self, step: int, item: ModulePass, module: ModuleOp, seconds: float) -> None:
        self._write(f"{step:02}_{item.name}.mlir", printed(module))

    def _write(self, name: str, text: str) -> None:
        assert self._place is not None
        _write_file(self._place / name, text)

    def compiled(self, name: str, target: str, forms: Mapping[str, str | bytes]) -> None:
        place = Path(self.folder) / "kernels"
        first = next(form for form in forms.values() if isinstance(form, str))
        stem = f"{name}-{target.replace(':', '')}-{digest(first)}"
        for level, content in forms.items():
            _write_file(place / f"{stem}.{level}", content)


def _write_file(path: Path, content: str | bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise PipelineError(f"nothing can be dumped to {path}: {error.strerror}") from None


def _name(module: ModuleOp) -> str:
    for op in module.ops:
        name = op.properties.get("sym_name")
        if isinstance(name, StringAttr) and name.data:
            return "".join(c if c.isalnum() or c in "_-." else "_" for c in name.data[:80])
    return "module"


__all__ = ["Dump", "PrintDiff", "PrintIR", "PrintLaunches", "ReadBack", "Timing", "digest", "printed"]
