"""Attention of tensors of which a gradient is wanted, past PyTorch's dispatcher, and the gradient past it too.

The operators' gradient goes through the machinery of `torch.library`, which takes the host longer than the kernels take
the GPU. What is saved, and in what order, is what the operator saves: a checkpoint may recompute by either way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, cast
from weakref import ref

import torch

from compilemask.lowering.descriptor_layout import Layout
from compilemask.passes.instrument import current_observation, resuming
from compilemask.runtime.calls.gradient_inputs import GradientInputs
from compilemask.runtime.calls.known_calls import KnownCall
from compilemask.runtime.calls.known_gradients import direct_gradient_of
from compilemask.runtime.cpu.attention_backward_cpu import attention_backward_cpu
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.gpu.hopper import Addresses


def attention_with_gradient(
    call: KnownCall,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    descriptor: Descriptor,
    scale: float,
    addresses: Addresses | None,
    complete: Callable[[], Descriptor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`KnownCall.attend`, differentiable in q, k and v.

    `complete` gives the descriptor with its transpose, if it has none yet: it is called once attention has started.
    """
    attend = cast("Callable[..., tuple[torch.Tensor, torch.Tensor]]", _Attention.apply)
    return attend(q, k, v, descriptor, scale, call, addresses, complete)


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
        addresses: Addresses | None,
        complete: Callable[[], Descriptor] | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = call.attend(q, k, v, descriptor, scale, addresses)
        descriptor = descriptor if complete is None else complete()
        ctx.save_for_backward(q, k, v, out, lse, *descriptor.tensors)
        ctx.set_materialize_grads(False)
        # Not the descriptor itself: its memory is freed with all that is saved.
        assert descriptor.transposed is not None
        ctx.descriptor, ctx.layouts = ref(descriptor), (descriptor.layout, descriptor.transposed.layout)
        ctx.scale = scale
        ctx.observation = current_observation()
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor | None) -> tuple[Any, ...]:
        grad_out, grad_lse = grad_outputs
        if grad_out is None and grad_lse is None:
            return (None,) * 8
        saved = ctx.saved_tensors
        q, k, v, out, lse, *descriptor = saved
        if grad_out is None:
            grad_out = torch.zeros_like(out)
        given = (grad_out, grad_lse, q, k, v, out, lse)
        # Autograd has threads of its own for the gradients of each GPU.
        with resuming(ctx.observation):
            # The operator says what becomes of a gradient's gradient.
            known = None if torch.is_grad_enabled() else direct_gradient_of(grad_out, grad_lse, saved)
            if known is None:
                by_operator = torch.ops.compilemask.attention_backward
                *gradients, _ = by_operator(*given, descriptor, ctx.scale, "", [], [], [])
            else:
                differentiate = attention_backward_cpu if q.device.type == "cpu" else known.on_gpu
                inputs = GradientInputs(*given, _descriptor(descriptor, ctx.descriptor(), ctx.layouts), ctx.scale)
                *gradients, _ = differentiate(inputs)
        return *gradients, *(None,) * 5


def _descriptor(
    tensors: Sequence[torch.Tensor], known: Descriptor | None, layouts: tuple[Layout, Layout]
) -> Descriptor:
    """With its transpose, from the `tensors` that were saved: hooks may have put others in their place.

    `known` is that of the forward pass, if it still exists.
    """
    if known is not None and all(map(is_, tensors, known.tensors)):
        return known
    buffer, numbers, of_transpose, numbers_of_transpose = tensors
    transposed = Descriptor(of_transpose, layouts[1], numbers=numbers_of_transpose)
    return Descriptor(buffer, layouts[0], transposed, numbers)
