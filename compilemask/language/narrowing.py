"""`isinstance` for generic classes, after which a type checker knows their parameters too."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np


def is_tuple(x: object) -> TypeGuard[tuple[Any, ...]]:
    """Whether this is a tuple."""
    return isinstance(x, tuple)


def is_listed(x: object) -> TypeGuard[tuple[Any, ...] | list[Any]]:
    """Whether this is a tuple or a list."""
    return isinstance(x, tuple | list)


def is_truth(x: object) -> TypeGuard[bool | np.bool_]:
    """Whether this is a truth value of Python or numpy."""
    return isinstance(x, bool | np.bool_)


def is_integer(x: object) -> TypeGuard[int | np.integer[Any]]:
    """Whether this is an integer of Python or numpy."""
    return isinstance(x, int | np.integer)


def is_float(x: object) -> TypeGuard[float | np.floating[Any]]:
    """Whether this is a float of Python or numpy."""
    return isinstance(x, float | np.floating)


__all__ = ["is_float", "is_integer", "is_listed", "is_truth", "is_tuple"]
