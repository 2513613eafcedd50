"""IR for reading: without the locations that Triton attaches, in custom instead of generic syntax where we know one."""

from __future__ import annotations

import re

_LOCATION = re.compile(r'^#loc.*\n|[ \t]*\bloc\((?:#loc\d*|unknown|"[^"]*":\d+:\d+|"[^"]*")\)', re.MULTILINE)
_HEADING = re.compile(r"^(// \w+\n)", re.MULTILINE)
_GENERIC = '"builtin.module"'


def readable(text: str) -> str:
    """The same IR, as text that people read. Modules may follow each other under headings `// name`."""
    return "".join(_readable_module(part) for part in _HEADING.split(text)).strip() + "\n"


def _readable_module(text: str) -> str:
    if not text.startswith(_GENERIC):
        return _LOCATION.sub("", text)
    from compilemask.language.text import parse_module

    return f"{parse_module(text)}\n"
