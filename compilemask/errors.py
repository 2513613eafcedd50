"""Every error that CompileMask raises on bad input.

Each is raised before anything is launched and names the value it met and what was expected. All of them derive from
`CompileMaskError`; each also derives from the built-in exception that a caller would expect, so that `except
ValueError` works.
"""

from __future__ import annotations

__all__ = [
    "CompileMaskError",
    "DTypeError",
    "DescriptorError",
    "DeviceError",
    "DialectError",
    "GradientError",
    "IRError",
    "LoweringError",
    "MaskError",
    "MissingDependencyError",
    "PipelineError",
    "ScaleError",
    "ScoreError",
    "ShapeError",
    "TargetError",
]


class CompileMaskError(Exception):
    """Base class of all errors raised on bad input."""


class ShapeError(CompileMaskError, ValueError):
    """A tensor has the wrong rank, size or layout, or head counts do not divide."""


class DTypeError(CompileMaskError, TypeError):
    """A tensor has a data type that is not supported here, or two tensors differ in theirs."""


class DeviceError(CompileMaskError, ValueError):
    """Tensors live on different devices, or on a device that has no backend."""


class ScaleError(CompileMaskError, ValueError):
    """The scale of the scores is not finite."""


class ScoreError(CompileMaskError, ValueError):
    """A score modification has impossible parameters, does not fit the tensors that it is used with, or is none."""


class GradientError(CompileMaskError, NotImplementedError):
    """A gradient was asked for that attention does not have, or without the descriptor that it follows."""


class MaskError(CompileMaskError, ValueError):
    """A mask has impossible parameters, or does not fit the lengths that it is used with."""


class DescriptorError(CompileMaskError, ValueError):
    """A descriptor was built for other lengths, another version, or is damaged."""


class LoweringError(CompileMaskError, ValueError):
    """A module is valid, but holds something that the requested lowering cannot take."""


class TargetError(CompileMaskError, ValueError):
    """A compilation target or level is unknown or not supported by the installed Triton."""


class PipelineError(CompileMaskError, ValueError):
    """A pipeline is malformed, names an unknown pass, or gives a pass an option that it does not take."""


class DialectError(CompileMaskError, ValueError):
    """A dialect of another package cannot be loaded, or has a name that is taken."""


class MissingDependencyError(CompileMaskError, ImportError):
    """An optional package is needed for this call and is not installed."""


class IRError(CompileMaskError, ValueError):
    """IR text is malformed or mistyped.

    `file`, `line` and `column` (both from 1) say where, as far as the fault has a place in the text; `excerpt` is the
    line with a caret below the column.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
        text: str | None = None,
    ) -> None:
        self.file, self.line, self.column = file, line, column
        self.excerpt = _excerpt(text, line, column)
        where = ":".join(str(part) for part in (file or "<text>", line, column) if part is not None)
        super().__init__(f"{where}: {message}")


_LONGEST_EXCERPT = 160


def _excerpt(text: str | None, line: int | None, column: int | None) -> str:
    """The line of a text, and a caret below its column; nothing without a place."""
    lines = text.split("\n") if text is not None else []
    if line is None or column is None or not 1 <= line <= len(lines):
        return ""
    start = max(0, column - 1 - _LONGEST_EXCERPT // 2)
    shown = lines[line - 1][start : start + _LONGEST_EXCERPT]
    indent = "".join("\t" if c == "\t" else " " for c in shown[: column - 1 - start]).ljust(column - 1 - start)
    return f"    {shown}\n    {indent}^"
