"""Attention masks, compiled: masks are regions of the (query, key) plane, lowered through MLIR dialects to Triton IR.

Names load on first use, so that `compilemask.dialects`, `compilemask.passes` and `compilemask.lowering` stay free of
PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from compilemask.errors import (
        CompileMaskError,
        DescriptorError,
        DeviceError,
        DTypeError,
        IRError,
        LoweringError,
        MaskError,
        MissingDependencyError,
        ShapeError,
        TargetError,
    )
    from compilemask.language import (
        Mask,
        Parameter,
        band,
        box2d,
        causal,
        clear,
        cols,
        disk2d,
        document,
        full,
        hstu,
        load,
        padding,
        parse,
        rows,
        shared_prompt,
        where,
        window,
    )

__all__ = [
    "CompileMaskError",
    "DTypeError",
    "DescriptorError",
    "DeviceError",
    "IRError",
    "LoweringError",
    "Mask",
    "MaskError",
    "MissingDependencyError",
    "Parameter",
    "ShapeError",
    "TargetError",
    "band",
    "box2d",
    "causal",
    "clear",
    "cols",
    "disk2d",
    "document",
    "full",
    "hstu",
    "load",
    "padding",
    "parse",
    "rows",
    "shared_prompt",
    "where",
    "window",
]

_HOMES = ("compilemask.errors", "compilemask.language", "compilemask.runtime")


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        for home in _HOMES:
            module = import_module(home)
            if name in getattr(module, "__all__", ()):
                value = getattr(module, name)
                globals()[name] = value
                return value
    raise AttributeError(f"module 'compilemask' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
