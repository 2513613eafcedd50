"""Memory for gradients."""

from __future__ import annotations

import torch


def gradient_like(x: torch.Tensor) -> torch.Tensor:
    """Memory for the gradient of a tensor, in the order of its strides unless that would part rows."""
    gradient = torch.empty_like(x)
    return gradient if gradient.stride(-1) == 1 else torch.empty_like(x, memory_format=torch.contiguous_format)
