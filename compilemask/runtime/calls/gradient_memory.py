"""Memory for gradients."""

from __future__ import annotations

import torch


def gradient_like(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Memory for the gradient of a tensor, in the order of its strides unless that would part rows.

    In the tensor's dtype if none is given.
    """
    gradient = torch.empty_like(x, dtype=dtype)
    if gradient.stride(-1) == 1:
        return gradient
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
