"""What a wheel of this repository installs, and that the lists which packaging needs are in step with the tree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

import compilemask

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = ("compilemask", "dialects", "passes", "lowering")


def test_version_is_that_of_the_package() -> None:
    assert compilemask.__version__ == PROJECT["project"]["version"]


def test_package_list_is_in_step_with_the_tree() -> None:
    found = set()
    for folder in FOLDERS:
        for directory in {path.parent for path in (ROOT / folder).rglob("*.py")}:
            assert (directory / "__init__.py").is_file(), f"{directory.relative_to(ROOT)} has no __init__.py"
            parts = directory.relative_to(ROOT).parts
            found.add(".".join(parts if folder == "compilemask" else ("compilemask", *parts)))
    assert found == set(PROJECT["tool"]["setuptools"]["packages"])


def requirement_names(requirements: list[str]) -> set[str]:
    """Normalized names of requirement lines."""
    return {re.split(r"[\s\[<>=;!~]", line)[0].lower().replace("_", "-") for line in requirements}


def test_constraints_pin_everything_that_is_asked_for() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all("==" in line for line in lines)
    asked = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["test"]]
    assert requirement_names(asked) <= requirement_names(lines)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that holds a wheel built from a copy of the sources, and nothing else."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    options = ["--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "wheel", *options, "--wheel-dir", place, source], check=True)
    (wheel,) = place.glob("compilemask-*.whl")
    environment = place / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    subprocess.run([*pip, "--python", python, "install", "--no-deps", "--no-index", wheel], check=True)
    return environment


def site_packages(environment: Path) -> Path:
    """Where an environment keeps its packages."""
    return next((environment / "lib").glob("python*/site-packages"))


def test_only_compilemask_lands_at_top_level(installed: Path) -> None:
    names = {path.name for path in site_packages(installed).iterdir()}
    assert names == {"compilemask", f"compilemask-{PROJECT['project']['version']}.dist-info"}
    packages = site_packages(installed) / "compilemask"
    assert (packages / "py.typed").is_file()
    assert {path.name for path in (packages / "samples").iterdir()} == {
        path.name for path in (ROOT / "compilemask" / "samples").iterdir()
    }
    assert {"compilemask", "compilemask-opt"} <= {path.name for path in (installed / "bin").iterdir()}


@pytest.fixture(scope="module")
def complete(installed: Path) -> Path:
    """The environment with the dependencies of this one."""
    (site_packages(installed) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return installed


def test_installed_command_works(complete: Path, tmp_path: Path) -> None:
    installed = complete
    command = [installed / "bin" / "compilemask", "lower", "hstu.mlir", "--to", "mask"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "mask.func @hstu" in result.stdout
    code = "import compilemask.dialects, compilemask.lowering, sys; print(compilemask.lowering.__file__)"
    where = subprocess.run(
        [installed / "bin" / "python", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert Path(where.stdout.strip()).is_relative_to(installed)


def test_xdsl_opt_knows_the_dialects_and_passes(complete: Path, tmp_path: Path) -> None:
    code = "from xdsl.xdsl_opt_main import xDSLOptMain; xDSLOptMain('').run()"
    sample = ROOT / "compilemask" / "samples" / "hstu.mlir"
    command = [complete / "bin" / "python", "-c", code, sample, "-p", "mask-to-interval,interval-normalize"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "interval.func @hstu" in result.stdout
