"""`torch.vmap` over attention: the mapped dimension joins the batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch._C._functorch import is_legacy_batchedtensor
from torch._subclasses.fake_tensor import is_fake

from compilemask.errors import ShapeError

_Dims = tuple[Any, ...]
_torch: Any = torch
_library: Any = torch._C
"""With what they do not export to others."""


def _joined(size: int, x: torch.Tensor | None, dim: int | None) -> torch.Tensor | None:
    """A tensor [B, ...], mapped along `dim` or not at all, as [size * B, ...]."""
    if x is None:
        return None
    mapped = x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
    return mapped.flatten(0, 1)


def _split(size: int, x: torch.Tensor) -> torch.Tensor:
    """The inverse of `_joined`, for any number of batches, 0 too."""
    return x.reshape(size, x.shape[0] // size, *x.shape[1:])


def _check_shared(descriptor: Sequence[torch.Tensor], dims: Sequence[int | None]) -> None:
    if any(dim is not None for dim in dims):
        raise ShapeError("vmap maps q, k and v, and no descriptor")
    for numbers in descriptor[1::2]:
        # Traced, it has no content; the operator finds then that the mask has another number of batches.
        if not is_fake(numbers) and int(numbers[0]) != 1:
            raise ShapeError(f"vmap over a mask of {int(numbers[0])} batches; expected one that all batches share")


def attention_vmap(info: Any, in_dims: _Dims, *args: Any) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
    """The rule of `compilemask::attention`."""
    q, k, v, descriptor, scale, score, tensors, numbers = args
    _check_shared(descriptor, in_dims[3])
    if score and any(x.shape[0] != 1 or dim is not None for x, dim in zip(tensors, in_dims[6], strict=True)):
        raise ShapeError("vmap over a score of several batches; expected one that all batches share")
    inputs = [_joined(info.batch_size, x, dim) for x, dim in zip((q, k, v), in_dims, strict=False)]
    outputs = torch.ops.compilemask.attention(*inputs, descriptor, scale, score, tensors, numbers)
    return tuple(_split(info.batch_size, x) for x in outputs), (0, 0)


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
    mapped = [_split(info.batch_size, x) for x in gradients]
    of_tables = [_split(info.batch_size, x).sum(dim=1, keepdim=True) for x in tables]
    return (*mapped, of_tables), (0, 0, 0, [0] * len(of_tables))


class _Mapping(NamedTuple):
    """What a rule is told of a mapping by torch.vmap."""

    batch_size: int


def backward_mapped_by_autograd(*args: Any) -> tuple[Any, ...]:
    """The same where autograd maps gradients: `grad(is_grads_batched=True)`, `jacobian(vectorize=True)`.

    It does not do so by torch.vmap, but by what was before that, which has no rules: a kernel takes mapped tensors
    apart, and makes some of what it gives.
    """
    level = _library._vmapmode_increment_nesting() - 1
    _library._vmapmode_decrement_nesting()
    given, dims, size = list(args), [_no_dims(x) for x in args], 0
    for number, x in enumerate(args):
        if isinstance(x, torch.Tensor) and is_legacy_batchedtensor(x):
            given[number], dims[number] = _torch._remove_batch_dim(x, level, 1, 0), 0
            size = given[number].shape[0]
    (*gradients, tables), _ = backward_vmap(_Mapping(size), tuple(dims), *given)

    def mapped(x: torch.Tensor) -> torch.Tensor:
        return _torch._add_batch_dim(x, 0, level)

    return *map(mapped, gradients), list(map(mapped, tables))


def _no_dims(x: Any) -> Any:
    """The mapped dimensions of an argument that has none."""
    return [None] * len(cast("list[Any]", x)) if isinstance(x, list) else None
