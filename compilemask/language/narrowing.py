"""`isinstance` for generic classes, after which a type checker knows their parameters too."""

from __future__ import annotations

from typing import Any, TypeGuard


def is_tuple(x: object) -> TypeGuard[tuple[Any, ...]]:
    """Whether this is a tuple."""
    return isinstance(x, tuple)


def is_listed(x: object) -> TypeGuard[tuple[Any, ...] | list[Any]]:
    """Whether this is a tuple or a list."""
    return isinstance(x, tuple | list)


__all__ = ["is_listed", "is_tuple"]
