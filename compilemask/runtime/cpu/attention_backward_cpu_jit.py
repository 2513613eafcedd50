"""Gradients of attention on the CPU by functions that MLIR compiled: the default where its bindings are installed."""

from __future__ import annotations

from typing import cast

import torch

from compilemask.lowering.tiling_to_scf import attention_backward_keys as of_keys
from compilemask.lowering.tiling_to_scf import attention_backward_queries as of_queries
from compilemask.runtime.calls.gradient_inputs import GradientInputs, Gradients
from compilemask.runtime.calls.gradient_memory import gradient_like
from compilemask.runtime.cpu.host_attention import HostAttention, is_taken, readable

_of_queries = HostAttention(of_queries.attention_backward_queries, of_queries.SIGNATURE)
_of_keys = HostAttention(of_keys.attention_backward_keys, of_keys.SIGNATURE)


def takes(inputs: GradientInputs) -> bool:
    """Whether there are such functions for a type, head dimension and score modification."""
    return inputs.scoring.op is None and is_taken(inputs.query)


def attention_backward_cpu_jit(inputs: GradientInputs) -> Gradients:
    """As `attention_backward_cpu`, for inputs that it `takes`."""
    differentiated = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
    read = {name: readable(x) for name, x in {**differentiated, "grad_out": inputs.grad_out}.items()}
    delta = cast("torch.Tensor", torch.linalg.vecdot(read["grad_out"], inputs.out.to(torch.float32)))
    delta = delta if inputs.grad_lse is None else delta - inputs.grad_lse
    gradients = {f"grad_{name}": gradient_like(x, torch.float32) for name, x in differentiated.items()}
    tensors = {**read, **gradients, "lse": inputs.lse.contiguous(), "delta": delta.contiguous()}
    heads = (inputs.query.shape[1], inputs.key.shape[1])
    _of_queries(tensors, heads, inputs.descriptor, inputs.scale)
    _of_keys(tensors, heads, inputs.transposed, inputs.scale)
    return Gradients(*(x.to(inputs.query.dtype) for x in gradients.values()), tables=[])
