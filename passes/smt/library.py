"""The solver's library, z3: an optional package, imported when the first proof asks for it."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, TypeAlias

from compilemask.errors import MissingDependencyError

Term: TypeAlias = Any
"""A z3 expression, of integers or of truth values."""


@cache
def z3() -> Any:
    """The module `z3`; raises MissingDependencyError if it is not installed."""
    try:
        return import_module("z3")
    except ImportError as error:
        raise MissingDependencyError("proofs need z3: pip install z3-solver") from error


__all__ = ["Term", "z3"]
