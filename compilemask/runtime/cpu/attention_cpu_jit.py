"""Attention on the CPU by a function that MLIR compiled: the default where its bindings are installed."""

from __future__ import annotations

import torch

from compilemask.lowering.tiling_to_scf.attention import SIGNATURE, attention
from compilemask.runtime.cpu.host_attention import HostAttention, is_taken, readable
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.scoring import Scoring

_attend = HostAttention(attention, SIGNATURE)


def takes(query: torch.Tensor, scoring: Scoring) -> bool:
    """Whether there is such a function for a query [B, Hq, Sq, D] and a score modification."""
    return scoring.op is None and is_taken(query)


def attention_cpu_jit(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, descriptor: Descriptor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `attention_cpu`, for arguments that it `takes`."""
    out = torch.empty(query.shape, dtype=torch.float32)
    lse = torch.empty(query.shape[:3], dtype=torch.float32)
    tensors = {"query": readable(query), "key": readable(key), "value": readable(value), "out": out, "lse": lse}
    _attend(tensors, (query.shape[1], key.shape[1]), descriptor, scale)
    return out.to(query.dtype), lse


def forget() -> None:
    """Drop all functions: those that are called from now on are compiled, or loaded from disk, anew."""
    _attend.forget()
