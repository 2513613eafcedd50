"""The reference of the dialects names every operation, and the documentation builds as a site."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from compilemask.tools.reference import documented, reference, write

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "tests" / "filecheck" / "dialects"


def test_every_operation_and_type_is_explained(tmp_path: Path) -> None:
    write(tmp_path, EXAMPLES)
    for dialect in documented():
        page = (tmp_path / f"{dialect.name}.md").read_text()
        for kind in dialect.operations:
            section = page.split(f"## `{kind.name}`\n", 1)[1].split("\n## ", 1)[0]
            assert re.match(r"\n\S", section), f"{kind.name} has no docstring"
        for kind in dialect.attributes:
            assert f"{kind.name}`\n\n" in page
    text = (tmp_path / "mask.md").read_text()
    assert "Syntax: `` mask.band (`from` $lower^)? (`to` $upper^)? attr-dict ``" in text
    assert "| `lower` | operand | optional `i32` |" in text
    assert "```mlir\n%below = mask.band to %b\n```" in text


def test_examples_are_optional() -> None:
    for dialect in documented():
        assert "```mlir" not in reference(dialect).split("## `", 1)[1]


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    for name in ("README.md", "ARCHITECTURE.md", "Makefile", "mkdocs.yml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copytree(EXAMPLES, tmp_path / "tests" / "filecheck" / "dialects")
    command = ["make", "docs", f"PY={sys.executable}", "STAMP="]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "The dialect" in (tmp_path / "build" / "site" / "reference" / "mask" / "index.html").read_text()
    assert "dilated" in (tmp_path / "build" / "site" / "docs" / "tutorial" / "index.html").read_text()
