"""`torch.vmap` over attention: the mapped dimension joins the batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from compilemask.errors import ShapeError

_Dims = tuple[Any, ...]


def _joined(size: int, x: torch.Tensor | None, dim: int | None) -> torch.Tensor | None:
    """A tensor [B, ...], mapped along `dim` or not at all, as [size * B, ...]."""
    if x is None:
        return None
    mapped = x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
    return mapped.flatten(0, 1)


def _check_shared(descriptor: Sequence[torch.Tensor], dims: Sequence[int | None]) -> None:
    if any(dim is not None for dim in dims):
        raise ShapeError("vmap maps q, k and v, and no descriptor")
    for numbers in descriptor[1::2]:
        if int(numbers[0]) != 1:
            raise ShapeError(f"vmap over a mask of {int(numbers[0])} batches; expected one that all batches share")


def attention_vmap(info: Any, in_dims: _Dims, *args: Any) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
    """The rule of `compilemask::attention`."""
    q, k, v, descriptor, scale, score, tensors, numbers = args
    _check_shared(descriptor, in_dims[3])
    if score and any(x.shape[0] != 1 or dim is not None for x, dim in zip(tensors, in_dims[6], strict=True)):
        raise ShapeError("vmap over a score of several batches; expected one that all batches share")
    inputs = [_joined(info.batch_size, x, dim) for x, dim in zip((q, k, v), in_dims, strict=False)]
    outputs = torch.ops.compilemask.attention(*inputs, descriptor, scale, score, tensors, numbers)
    return tuple(x.unflatten(0, (info.batch_size, -1)) for x in outputs), (0, 0)


def backward_vmap(info: Any, in_dims: _Dims, *args: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The rule of `compilemask::attention_backward`."""
    *tensors, descriptor, scale, score, score_tensors, score_numbers, wanted = args
    _check_shared(descriptor, in_dims[len(tensors)])
    inputs = [_joined(info.batch_size, x, dim) for x, dim in zip(tensors, in_dims, strict=False)]
    # What all batches share has a gradient for each mapped one: batches are told apart, and those of one added up.
    q = inputs[2]
    assert q is not None
    shared = [x.expand(q.shape[0], -1, -1) for x in score_tensors]
    *gradients, tables = torch.ops.compilemask.attention_backward(
        *inputs, descriptor, scale, score, shared, score_numbers, wanted
    )
    mapped = [x.unflatten(0, (info.batch_size, -1)) for x in gradients]
    of_tables = [x.unflatten(0, (info.batch_size, -1)).sum(dim=1, keepdim=True) for x in tables]
    return (*mapped, of_tables), (0, 0, 0, [0] * len(of_tables))
