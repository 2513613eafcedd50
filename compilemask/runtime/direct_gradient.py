"""Attention of tensors of which a gradient is wanted, past PyTorch's dispatcher, and the gradient past it too.

The operators' gradient goes through the machinery of `torch.library`, which takes the host longer than the kernels take
the GPU. What is saved, and in what order, is what the operator saves: a checkpoint may recompute by either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from compilemask.lowering.descriptor_layout import Layout
from compilemask.passes.instrument import current_observation, resuming
from compilemask.runtime.attention_backward_cpu import attention_backward_cpu
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.direct import is_direct
from compilemask.runtime.gradient_inputs import GradientInputs
from compilemask.runtime.hopper_backward import attention_backward_gpu
from compilemask.runtime.known_calls import KnownCall


def attention_with_gradient(
    call: KnownCall, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, descriptor: Descriptor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse, differentiable in q, k and v. Takes checked arguments of a direct call."""
    return cast("tuple[torch.Tensor, torch.Tensor]", _Attention.apply(q, k, v, descriptor, scale, call))


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        descriptor: Descriptor,
        scale: float,
        call: KnownCall,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = call.attend(q, k, v, descriptor, scale, call.addresses(q, k, v))
        ctx.save_for_backward(q, k, v, out, lse, *descriptor.tensors)
        ctx.set_materialize_grads(False)
        # Not the descriptor itself: its memory is freed with all that is saved.
        assert descriptor.transposed is not None
        ctx.layouts, ctx.scale = (descriptor.layout, descriptor.transposed.layout), scale
        ctx.observation = current_observation()
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor | None) -> tuple[Any, ...]:
        grad_out, grad_lse = grad_outputs
        if grad_out is None and grad_lse is None:
            return None, None, None, None, None, None
        q, k, v, out, lse, *descriptor = ctx.saved_tensors
        if grad_out is None:
            grad_out = torch.zeros_like(out)
        given = (grad_out, grad_lse, q, k, v, out, lse)
        # Autograd has threads of its own for the gradients of each GPU.
        with resuming(ctx.observation):
            # The operator says what becomes of a gradient's gradient.
            if torch.is_grad_enabled() or not is_direct(*(x for x in (*given, *descriptor) if x is not None)):
                by_operator = torch.ops.compilemask.attention_backward
                *gradients, _ = by_operator(*given, descriptor, ctx.scale, "", [], [], [])
            else:
                differentiate = attention_backward_cpu if q.device.type == "cpu" else attention_backward_gpu
                inputs = GradientInputs(*given, _descriptor(descriptor, ctx.layouts), ctx.scale)
                *gradients, _ = differentiate(inputs)
        return *gradients, None, None, None


def _descriptor(tensors: Sequence[torch.Tensor], layouts: tuple[Layout, Layout]) -> Descriptor:
    """With its transpose, from the `tensors` that were saved: hooks may have put others in their place."""
    buffer, numbers, of_transpose, numbers_of_transpose = tensors
    transposed = Descriptor(of_transpose, layouts[1], numbers=numbers_of_transpose)
    return Descriptor(buffer, layouts[0], transposed, numbers)
