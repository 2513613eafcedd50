"""The folders know only what they may: dependencies point one way, and torch and Triton stay above."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ("dialects", "passes", "lowering", "compilemask")
"""From the bottom up: a folder may import itself and what stands before it."""
FRAMEWORKS = {"torch", "triton"}
LONGEST_FILE = 600

SOURCES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))
BELOW = [path for path in SOURCES if path.relative_to(ROOT).parts[0] != "compilemask"]


def name_of(path: Path) -> str:
    """A file as the test reports name it."""
    return str(path.relative_to(ROOT))


def imports(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports anywhere in its text, imported names included."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno} imports relatively; use the full name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer_of(module: str) -> str | None:
    """The layer that a module belongs to; None for other packages and for the leaf `compilemask.errors`."""
    parts = module.split(".")
    if parts[0] != "compilemask" or parts[1:2] == ["errors"]:
        return None
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else "compilemask"


@pytest.mark.parametrize("path", BELOW, ids=name_of)
def test_no_framework_below_compilemask(path: Path) -> None:
    assert not FRAMEWORKS & {module.split(".")[0] for module in imports(path)}


@pytest.mark.parametrize("path", BELOW, ids=name_of)
def test_dependencies_point_one_way(path: Path) -> None:
    own = LAYERS.index(path.relative_to(ROOT).parts[0])
    above = {module for module in imports(path) if (layer := layer_of(module)) and LAYERS.index(layer) > own}
    assert not above, f"{LAYERS[own]} may import {', '.join(LAYERS[: own + 1])} and compilemask.errors only"


def test_errors_is_a_leaf() -> None:
    assert not [module for module in imports(ROOT / "compilemask" / "errors.py") if module.startswith("compilemask")]


@pytest.mark.parametrize("module", ["compilemask", "compilemask.dialects.mask", "compilemask.dialects.tiling"])
def test_import_is_light(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({FRAMEWORKS!r} & sys.modules.keys()))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_files_stay_readable(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_FILE
    assert "utils" not in path.stem


def test_code_folders_do_not_install_at_top_level() -> None:
    code = "import importlib.util as u; print([n for n in ('dialects', 'passes', 'lowering') if u.find_spec(n)])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert result.stdout.strip() == "[]"
