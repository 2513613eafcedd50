"""A test, in one call, of whether tensors are like others that were seen: by the guards of TorchDynamo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._C._dynamo

_guards: Any = torch._C._dynamo.guards

Guard = Callable[..., bool]
"""Whether tensors, outside of every mode, are like those that the guard was made of."""


def guard_of(*tensors: torch.Tensor) -> Guard | None:
    """The guard of these, which `is_direct` admits; None if there is none for them, or in this PyTorch.

    It compares the classes of tensors, their dispatch keys as the dispatcher sees them, data types, devices, sizes and
    strides, and whether they require gradients. Dispatch keys tell of negated, sparse, batched and functional tensors,
    and of those that were made in inference mode. Addresses are not compared, and modes in Python are left out of the
    keys: `is_thread_direct` tells of those. A nested tensor must not be shown to it, for it ends the process: asked for
    its sizes, such a tensor throws what nothing catches there. It holds for no tensors of which one stands twice.
    """
    make = getattr(_guards, "TensorGuards", None)
    if make is None or len({id(x) for x in tensors}) < len(tensors):
        return None
    try:
        guard: Guard = make(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    except TypeError:
        return None
    return guard if guard(*tensors) else None
