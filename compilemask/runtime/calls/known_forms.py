"""What is known of tensors of one form: found again by a guard, as long as the tensors are like those of before."""

from __future__ import annotations

from typing import Generic, TypeVar

import torch
from torch import Tensor

from compilemask.runtime.calls.tensor_guard import Guard, guard_of

KEPT_SHAPES = 1024
"""Shapes of the first two tensors of which something is known."""
KEPT_ALIKE = 4
"""Forms of tensors that are known of which the first two have the same shapes."""

Known = TypeVar("Known")


class KnownForms(Generic[Known]):
    """What is known, by the form of tensors.

    Their form is what a `tensor_guard` compares: classes, dispatch keys, types, devices, sizes, strides, and whether
    they require gradients.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[torch.Size, torch.Size], tuple[tuple[int, Guard, Known], ...]] = {}
        """By the shapes of the first two: the number of tensors, their guard and what is known, the newest first."""

    def find(self, *tensors: torch.Tensor) -> Known | None:
        """What is known of these, two or more of anything, in a thread that is direct (`is_thread_direct`)."""
        for x in tensors:
            # A guard must not see a nested tensor.
            if type(x) is not Tensor or x.is_nested:
                return None
        for count, holds, known in self._known.get((tensors[0].shape, tensors[1].shape), ()):
            if count == len(tensors) and holds(*tensors):
                return known
        return None

    def add(self, known: Known, *tensors: torch.Tensor) -> None:
        """Remember what is known of these, which `is_direct` admits, if there is a guard for them."""
        guard = guard_of(*tensors)
        if guard is None:
            return
        shapes = tensors[0].shape, tensors[1].shape
        if len(self._known) >= KEPT_SHAPES and shapes not in self._known:
            self._known.clear()
        others = self._known.get(shapes, ())[: KEPT_ALIKE - 1]
        self._known[shapes] = ((len(tensors), guard, known), *others)

    def all(self) -> list[Known]:
        """All that is known."""
        return [known for forms in self._known.values() for _, _, known in forms]

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()
