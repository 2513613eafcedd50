"""The examples in the documentation run, and its links lead somewhere."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import shlex
import textwrap
from pathlib import Path

import pytest

from compilemask.lowering.descriptor_layout import VERSION
from compilemask.tools.cli import main

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(document: Path, *languages: str) -> list[str]:
    """The fenced blocks of a document in some languages."""
    return [body for language, body in FENCE.findall(document.read_text()) if language in languages]


def names(document: Path) -> str:
    """A document as the test reports name it."""
    return document.name


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if blocks(d, "python")], ids=names)
def test_python_examples_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    for block in blocks(document, "python"):
        exec(compile(block, document.name, "exec"), scope)


def test_the_descriptor_s_version() -> None:
    text = (ROOT / "docs" / "descriptor.md").read_text()
    assert text.startswith(f"# The descriptor, version {VERSION}\n")
    assert f"1 version ({VERSION})" in text


COMMANDS = sorted(
    {
        line.removeprefix("$ ")
        for document in DOCUMENTS
        for block in blocks(document, "console")
        for line in block.splitlines()
        if line.startswith("$ compilemask ")
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)[1:]) == 0


SHOWN_IR = re.compile(r"(^\$ compilemask ([^\n]*)\n```\n\n```mlir\n)(.*?)(^```)", re.MULTILINE | re.DOTALL)


def test_shown_ir_is_what_the_compiler_prints() -> None:
    readme = (ROOT / "README.md").read_text()
    assert SHOWN_IR.search(readme)
    assert with_current_ir(readme) == readme, "run `python tests/test_docs.py` to put the current IR into README.md"


def with_current_ir(text: str) -> str:
    """A document whose shown IR is that of the commands above it."""
    return SHOWN_IR.sub(lambda found: found[1] + printed_function(found[2]) + found[4], text)


def printed_function(command: str) -> str:
    """The function of its level that a `lower` command prints, without the module around it."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert main(shlex.split(command)) == 0
    level = command.split()[-1]
    function = re.search(rf"^  {level}\.func.*?^  }}$", output.getvalue(), re.MULTILINE | re.DOTALL)
    assert function, output.getvalue()
    return textwrap.dedent(function[0]) + "\n"


@pytest.mark.parametrize("document", DOCUMENTS, ids=names)
def test_links_and_paths_exist(document: Path) -> None:
    text = document.read_text()
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (document.parent / link).exists(), f"{document.name} links to {link}"
    for path in re.findall(r"(?:compilemask|dialects|passes|lowering|tests|docs)/[\w./]*\w(?:\.py|\.md|/)", text):
        assert (ROOT / path).exists(), f"{document.name} names {path}"


if __name__ == "__main__":
    (ROOT / "README.md").write_text(with_current_ir((ROOT / "README.md").read_text()))


def test_the_table_of_benchmarks_is_that_of_the_results() -> None:
    spec = importlib.util.spec_from_file_location("table", ROOT / "benchmarks" / "table.py")
    assert spec is not None
    assert spec.loader is not None
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    assert table.PAGE.read_text() == table.page()
