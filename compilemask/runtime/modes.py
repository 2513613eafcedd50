"""What a caller may be in the middle of, that makes something else of PyTorch's operations and tensors."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack


def has_content() -> bool:
    """Whether tensors can be read, and what is made of them be kept: not under a mode (`FakeTensorMode`, a trace)."""
    return torch._C._len_torch_dispatch_stack() == 0


def outside_transformations() -> AbstractContextManager[Any]:
    """A context in which tensors are as they are outside those of `torch.func` (vmap, functionalize), which a mask and
    its descriptor are not a part of: they would be read as something that they are not.
    """
    if torch._C._are_functorch_transforms_active():
        return temporarily_clear_interpreter_stack()
    return nullcontext()


__all__ = ["has_content", "outside_transformations"]
