"""The reference of the dialects, made from the definitions of their operations.

python -m compilemask.tools.reference docs/reference --examples tests/filecheck/dialects
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from xdsl.ir import Attribute, Dialect, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import IRDLOperation

from compilemask.dialects.registry import all_dialects

SEGMENTS = "operandSegmentSizes"
"""A property that only says how many operands each group has."""
DOCUMENTED = ("mask", "interval", "tiling", "tt", "ttg", "ttng")


def reference(dialect: Dialect, examples: str = "") -> str:
    """The page of a dialect in Markdown; examples of operations are looked up in `examples`, IR in custom syntax."""
    operations = sorted((kind for kind in dialect.operations if issubclass(kind, IRDLOperation)), key=lambda k: k.name)
    parts = [f"# The dialect `{dialect.name}`\n", *_introduction(operations)]
    for kind in operations:
        parts.append("\n".join(_operation(kind, examples)))
    attributes = sorted(dialect.attributes, key=lambda kind: kind.name)
    if attributes:
        parts.append("\n".join(["## Types and attributes\n", *map(_attribute, attributes)]))
    return "\n".join(parts).rstrip() + "\n"


def _introduction(operations: Sequence[type[IRDLOperation]]) -> Iterator[str]:
    home = sys.modules[operations[0].__module__]
    yield f"{inspect.cleandoc(home.__doc__ or '')}\n"


def _operation(kind: type[IRDLOperation], examples: str) -> Iterator[str]:
    definition = kind.get_irdl_definition()
    yield f"## `{kind.name}`\n"
    yield f"{_text(kind)}\n"
    if definition.assembly_format:
        yield f"Syntax: `` {kind.name} {definition.assembly_format} ``\n"
    rows: list[tuple[str, str, str]] = []
    for what, found in (
        ("operand", definition.operands),
        ("result", definition.results),
        ("region", definition.regions),
    ):
        rows += [(name, what, _constraint(entry)) for name, entry in found]
    rows += [(name, "property", _constraint(entry)) for name, entry in definition.properties.items()]
    rows += [(name, "attribute", _constraint(entry)) for name, entry in definition.attributes.items()]
    rows = [row for row in rows if row[0] != SEGMENTS]
    if rows:
        yield "| name | kind | type |\n|---|---|---|"
        yield "\n".join(f"| `{name}` | {what} | {type_} |" for name, what, type_ in rows) + "\n"
    if example := _example(kind.name, examples):
        yield f"```mlir\n{example}\n```\n"


def _constraint(entry: object) -> str:
    """What an operand, result, region or attribute must be, as far as its constraint says so in a word."""
    constraint = getattr(entry, "constr", None)
    while (inner := getattr(constraint, "constr", getattr(constraint, "constraint", None))) is not None:
        constraint = inner
    optional = "optional " if type(entry).__name__.startswith("Opt") else ""
    several = "any number of " if type(entry).__name__.startswith("Var") else ""
    return f"{optional}{several}{_kinds(constraint)}".strip()


def _kinds(constraint: object) -> str:
    if constraint is None:
        return ""
    exact = getattr(constraint, "attr", None)
    if exact is not None:
        return f"`{exact.name if isinstance(exact, type) else exact}`"
    bases = getattr(constraint, "get_bases", lambda: None)()
    return " or ".join(sorted(f"`{base.name}`" for base in bases)) if bases else "any"


def _attribute(kind: type[Attribute]) -> str:
    sigil = "!" if issubclass(kind, TypeAttribute) else "#"
    parameters = [name for name in kind.__annotations__ if issubclass(kind, ParametrizedAttribute) and name != "name"]
    shown = f" Parameters: {', '.join(f'`{name}`' for name in parameters)}." if parameters else ""
    return f"### `{sigil}{kind.name}`\n\n{_text(kind)}{shown}\n"


def _text(kind: type) -> str:
    text = inspect.cleandoc(vars(kind).get("__doc__") or "")
    return text if not text.startswith(f"{kind.__name__}(") else ""  # what dataclass writes


def _example(name: str, examples: str) -> str:
    """The first line of the examples that is such an operation, with its region."""
    lines = examples.splitlines()
    for number, line in enumerate(lines):
        if re.match(rf"\s*(?:[%\w, :]+ = )?\"?{re.escape(name)}\b", line) and not line.lstrip().startswith("//"):
            indent, found = len(line) - len(line.lstrip()), [line]
            if line.rstrip().endswith("{"):
                for following in lines[number + 1 :]:
                    found.append(following)
                    if following.strip().startswith("}") and len(following) - len(following.lstrip()) == indent:
                        break
            return inspect.cleandoc("\n".join(found))
    return ""


def documented() -> list[Dialect]:
    """The dialects that are defined here."""
    return [dialect for dialect in all_dialects() if dialect.name in DOCUMENTED]


def write(folder: Path, examples: Path | None) -> None:
    """Write one page per dialect, and an overview, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    overview = ["# Dialects\n", "Made from the definitions of the operations.\n"]
    for dialect in documented():
        texts = sorted((examples / dialect.name).glob("ops.mlir")) if examples is not None else []
        page = reference(dialect, "\n".join(path.read_text() for path in texts))
        (folder / f"{dialect.name}.md").write_text(page)
        overview.append(f"- [`{dialect.name}`]({dialect.name}.md): {len(list(dialect.operations))} operations")
    (folder / "index.md").write_text("\n".join(overview) + "\n")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Write the reference of the dialects")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--examples", type=Path, default=None, help="folder with DIALECT/ops.mlir")
    options = parser.parse_args()
    write(options.folder, options.examples)


if __name__ == "__main__":
    main()
