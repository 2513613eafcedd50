"""Compiled kernels on disk, beside Triton's own, so that a new process neither emits IR nor asks Triton.

A kernel is found by what decides its IR (`Source.identity`) and by everything that turns it into code: the sources of
this package, the versions of xDSL and Triton, and Triton's settings. Files are written as Triton writes its own: to
another name first, so that several processes may share them.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, cast

from compilemask.errors import MissingDependencyError
from compilemask.passes.instrument import current_observers
from compilemask.runtime.gpu.binary import Binary
from compilemask.runtime.gpu.target import Target

if TYPE_CHECKING:
    from triton.runtime.cache import CacheManager

_FILE = "compilemask.bin"


def triton_version() -> str:
    """The version of the installed Triton. Raises MissingDependencyError without it."""
    try:
        import triton
    except ImportError as error:
        raise MissingDependencyError("compiling kernels needs the package triton") from error
    return triton.__version__


def find(identity: str, target: Target) -> Binary | None:
    """The binary of an identity; None if there is none, or it is damaged, or somebody observes compilation.

    Raises MissingDependencyError without Triton.
    """
    triton_version()
    from triton import knobs

    if current_observers() or knobs.compilation.always_compile:
        return None
    path = _manager(identity, target).get_file(_FILE)
    return None if path is None else _read(Path(path))


def keep(identity: str, target: Target, binary: Binary) -> None:
    """Writes the binary of an identity."""
    _manager(identity, target).put(_bytes(binary), _FILE)


def _manager(identity: str, target: Target) -> CacheManager:
    from triton._C import libtriton
    from triton.runtime import cache as triton_cache

    settings = sorted(cast("dict[str, str]", libtriton.get_cache_invalidating_env_vars()).items())
    key = f"{identity}\n{_versions(target)}\n{settings}"
    return triton_cache.get_cache_manager(hashlib.sha256(key.encode()).hexdigest())


def _bytes(binary: Binary) -> bytes:
    """A line of JSON, then the machine code."""
    described = binary._replace(cubin=b"")._asdict() | {
        "cubin": len(binary.cubin),
        "digest": hashlib.sha256(binary.cubin).hexdigest(),
    }
    return json.dumps(described).encode() + b"\n" + binary.cubin


def _read(path: Path) -> Binary | None:
    """The binary in a file; None if it is damaged."""
    try:
        line, _, cubin = path.read_bytes().partition(b"\n")
        described = json.loads(line)
        if described.pop("cubin") != len(cubin) or described.pop("digest") != hashlib.sha256(cubin).hexdigest():
            return None
        described |= {name: tuple(described[name]) for name in ("offsets", "scratch")}
        return Binary(cubin=cubin, **described)
    except (OSError, ValueError, KeyError, TypeError):
        return None


@cache
def _versions(target: Target) -> str:
    """What emits and compiles kernels. Triton's backend names the version of the assembler that it calls."""
    from triton.compiler import make_backend

    backend = make_backend(target.for_triton()).hash()
    return f"{_sources()} xdsl {metadata.version('xdsl')} triton {triton_version()} {backend}"


@cache
def _sources() -> str:
    """The digest of this package's code, wherever its parts lie."""
    from compilemask import dialects, lowering, passes, runtime

    digest = hashlib.sha256()
    for package in (dialects, passes, lowering, runtime):
        for folder in map(Path, package.__path__):
            for path in sorted(folder.rglob("*.py")):
                digest.update(f"{path.relative_to(folder)}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()
