"""The types that torch computes in, where they matter: truth values, and integers of fewer than 32 bits.

Torch brings the operands of a function to one type. Sums and products of truth values are truth values again, and
integers of 8 and 16 bits wrap around: 200 + 100 of uint8 is 44.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
import torch

from compilemask.language.from_mask_mod_graph import Graph, Node

NARROW = (torch.int8, torch.uint8, torch.int16)


def is_truth(x: object) -> TypeGuard[bool | np.bool_]:
    """Whether this is a truth value of Python or numpy."""
    return isinstance(x, bool | np.bool_)


def is_integer(x: object) -> TypeGuard[int | np.integer[Any]]:
    """Whether this is an integer of Python or numpy."""
    return isinstance(x, int | np.integer)


def is_float(x: object) -> TypeGuard[float | np.floating[Any]]:
    """Whether this is a float of Python or numpy."""
    return isinstance(x, float | np.floating)


def common_type(*operands: Any) -> torch.dtype:
    """The type of one or two tensors or numbers together; int64 if they are anything else."""
    plain: list[Any] = [operand.item() if isinstance(operand, np.generic) else operand for operand in operands]
    if not all(isinstance(operand, torch.Tensor | int | float) for operand in plain):
        return torch.int64
    with torch._C.DisableTorchFunction():
        return torch.result_type(plain[0], plain[-1])


def kept(dtype: torch.dtype) -> torch.dtype | None:
    """A narrow type; None for all others, which follow from the values."""
    return dtype if dtype in NARROW else None


def wrapped(graph: Graph, value: Node, dtype: torch.dtype) -> Node:
    """An integer as one of a narrow type: what its lowest bits say."""
    limits = torch.iinfo(dtype)
    lowest = graph.binary(
        "and", graph.binary("sub", value, graph.integer(limits.min)), graph.integer(2**limits.bits - 1)
    )
    return graph.binary("add", lowest, graph.integer(limits.min))


__all__ = ["NARROW", "common_type", "is_float", "is_integer", "is_truth", "kept", "wrapped"]
