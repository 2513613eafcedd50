"""Autocast: attention computes in the dtype that `torch.autocast` asks for, as matrix products do."""

from __future__ import annotations

import torch


def autocast(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """The tensors in autocast's dtype, if it is on for their device; float64 stays, as in PyTorch's own operators."""
    if not all(isinstance(x, torch.Tensor) for x in tensors):
        return list(tensors)  # which the checks refuse
    kind = tensors[0].device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return list(tensors)
    dtype = torch.get_autocast_dtype(kind)
    return [x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors]
