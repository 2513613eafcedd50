"""Implementations by name with PyTorch's deterministic algorithms: those whose name ends with `-deterministic`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

SUFFIX = "-deterministic"

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def switched(name: str, call: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A call of an implementation, deterministic if its name says so."""
    import torch

    if not name.endswith(SUFFIX):
        return call

    @wraps(call)
    def deterministic(*arguments: Arguments.args, **more: Arguments.kwargs) -> Result:
        # `torch.use_deterministic_algorithms` also tells TorchInductor, which takes longer than short gradients.
        torch._C._set_deterministic_algorithms(True)
        try:
            return call(*arguments, **more)
        finally:
            torch._C._set_deterministic_algorithms(False)

    return deterministic
