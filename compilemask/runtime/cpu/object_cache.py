"""Object files for this computer's CPU on disk, in a folder of Triton's cache, so that a new process compiles nothing
again. Triton itself is not needed, nor imported: that alone takes as long as to compile a function.

An object is found by all that decides it; one that is damaged is not found. Files are written to another name first, so
that several processes may share them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from compilemask.passes.instrument import current_observers

_DIGEST = 32
"""Bytes of the digest that a file begins with."""


def find(identity: str) -> bytes | None:
    """The object of an identity; None if there is none, or it is damaged, or somebody observes compilation."""
    always = os.environ.get("TRITON_ALWAYS_COMPILE", "").lower() in ("1", "true", "yes", "on", "y")
    if current_observers() or always:
        return None
    try:
        data = _path(identity).read_bytes()
    except OSError:
        return None
    digest, data = data[:_DIGEST], data[_DIGEST:]
    return data if hashlib.sha256(data).digest() == digest else None


def keep(identity: str, data: bytes) -> None:
    """Write the object of an identity, if the folder can be written."""
    with contextlib.suppress(OSError):
        path = _path(identity)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            written = Path(folder) / path.name
            written.write_bytes(hashlib.sha256(data).digest() + data)
            written.replace(path)


def _path(identity: str) -> Path:
    """Where Triton's cache is, and in it what this identity names. Raises OSError for a user without a home."""
    cache = os.environ.get("TRITON_CACHE_DIR")
    folder = Path(cache) if cache else (_home() / ".triton" / "cache")
    return folder / "compilemask" / f"{hashlib.sha256(identity.encode()).hexdigest()}.o"


def _home() -> Path:
    try:
        return Path(os.environ.get("TRITON_HOME") or Path.home())
    except RuntimeError as error:
        raise FileNotFoundError(str(error)) from None
