"""The operator `compilemask::attention_backward`, and how autograd comes to it from `compilemask::attention`.

    d score = weight * (d out . v - delta),  delta = d out . out - d lse

with weights recomputed from the scores and the log-sum-exp: flash attention (Dao, arXiv 2307.08691). Both are
differentiated once: a gradient of the gradient raises GradientError.
"""

from __future__ import annotations

from typing import Any

import torch

from compilemask.errors import GradientError
from compilemask.passes.instrument import current_observation, resuming
from compilemask.runtime.attention_backward_cpu import attention_backward_cpu
from compilemask.runtime.batching import backward_vmap
from compilemask.runtime.gradient_inputs import GradientInputs, Gradients
from compilemask.runtime.gradient_memory import gradient_like
from compilemask.runtime.hopper_backward import attention_backward_gpu

_library = torch.library.Library("compilemask", "FRAGMENT")
_library.define(
    "attention_backward(Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    "Tensor[] descriptor, float scale, str score, Tensor[] score_tensors, float[] score_numbers, bool[] wanted) "
    "-> (Tensor, Tensor, Tensor, Tensor[])",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)


def _backward_cpu(*arguments: Any) -> Gradients:
    with torch.autocast("cpu", enabled=False):
        return attention_backward_cpu(GradientInputs.of_operator(*arguments))


def _backward_cuda(*arguments: Any) -> Gradients:
    return attention_backward_gpu(GradientInputs.of_operator(*arguments))


def _backward_fake(
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *others: Any,
) -> Gradients:
    return Gradients(gradient_like(q), gradient_like(k), gradient_like(v), [])


def _no_second_gradient(ctx: Any, *grads: Any) -> None:
    raise GradientError("attention has a first gradient and no second one; do not ask for create_graph")


_library.impl("attention_backward", _backward_cpu, "CPU")
_library.impl("attention_backward", _backward_cuda, "CUDA")
torch.library.register_fake("compilemask::attention_backward", _backward_fake, lib=_library)
torch.library.register_autograd("compilemask::attention_backward", _no_second_gradient, lib=_library)
torch.library.register_vmap("compilemask::attention_backward", backward_vmap, lib=_library)


def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    """What the gradient of `attention` needs of its inputs and outputs."""
    q, k, v, descriptor, scale = inputs[:5]
    ctx.save_for_backward(q, k, v, *output, *descriptor)
    ctx.scale, ctx.others = scale, [[None] * len(x) if isinstance(x, list) else None for x in inputs[3:]]
    ctx.set_materialize_grads(False)
    ctx.observation = current_observation()


def backward(ctx: Any, grad_out: torch.Tensor | None, grad_lse: torch.Tensor | None) -> tuple[Any, ...]:
    """The gradients of the inputs of `attention`."""
    if grad_out is None and grad_lse is None:
        return None, None, None, *ctx.others
    q, k, v, out, lse, *descriptor = ctx.saved_tensors
    if len(descriptor) < 4:
        raise GradientError("the descriptor was built without its transpose, which the gradient follows")
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    # Autograd has threads of its own for the gradients of each GPU.
    with resuming(ctx.observation):
        *gradients, _ = torch.ops.compilemask.attention_backward(
            grad_out, grad_lse, q, k, v, out, lse, descriptor, ctx.scale, "", [], [], []
        )
    return *gradients, *ctx.others
