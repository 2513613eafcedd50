"""The examples in the documentation run, and its links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

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


def test_shown_ir_is_what_the_compiler_prints(capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.findall(
        r"^\$ compilemask (.*)\n```\n\n```mlir\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S
    )
    assert shown
    for command, expected in shown:
        assert main(shlex.split(command)) == 0
        printed = capsys.readouterr().out
        assert [line.strip() for line in expected.splitlines()] == body_of(printed)


def body_of(printed: str) -> list[str]:
    """The lines of a printed module without the module around them."""
    lines = [line.strip() for line in printed.strip().splitlines()]
    return lines[1:-1] if lines[0].startswith("builtin.module") else lines


@pytest.mark.parametrize("document", DOCUMENTS, ids=names)
def test_links_and_paths_exist(document: Path) -> None:
    text = document.read_text()
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (document.parent / link).exists(), f"{document.name} links to {link}"
    for path in re.findall(r"(?:compilemask|dialects|passes|lowering|tests|docs)/[\w./]*\w(?:\.py|\.md|/)", text):
        assert (ROOT / path).exists(), f"{document.name} names {path}"
