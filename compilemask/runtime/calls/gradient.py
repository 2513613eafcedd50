"""The operator `compilemask::attention_backward`, and how autograd comes to it from `compilemask::attention`.

    d score = weight * (d out . v - delta),  delta = d out . out - d lse

with weights recomputed from the scores and the log-sum-exp: flash attention (Dao, arXiv 2307.08691). Where scores are
modified, `tiling.score_gradient` says how the gradient goes on from there. Both operators are differentiated once: a
gradient of the gradient raises GradientError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from compilemask.errors import GradientError
from compilemask.passes.instrument import current_observation, resuming
from compilemask.runtime.calls.batching import backward_mapped_by_autograd, backward_vmap
from compilemask.runtime.calls.gradient_inputs import GradientInputs, Gradients
from compilemask.runtime.calls.gradient_memory import gradient_like
from compilemask.runtime.cpu.attention_backward_cpu import attention_backward_cpu
from compilemask.runtime.gpu.hopper_backward import attention_backward_gpu

_SCORE_TENSORS = 6
"""Where they are among the arguments of `compilemask::attention`."""

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
    out: torch.Tensor,
    lse: torch.Tensor,
    descriptor: Sequence[torch.Tensor],
    scale: float,
    score: str,
    score_tensors: Sequence[torch.Tensor],
    score_numbers: Sequence[float],
    wanted: Sequence[bool],
) -> Gradients:
    tables = [x.new_empty(x.shape) for x, is_wanted in zip(score_tensors, wanted, strict=True) if is_wanted]
    return Gradients(gradient_like(q), gradient_like(k), gradient_like(v), tables)


def _no_second_gradient(ctx: Any, *grads: Any) -> None:
    raise GradientError("attention has a first gradient and no second one; do not ask for create_graph")


_library.impl("attention_backward", _backward_cpu, "CPU")
_library.impl("attention_backward", _backward_cuda, "CUDA")
torch.library.register_fake("compilemask::attention_backward", _backward_fake, lib=_library)
torch.library.register_autograd("compilemask::attention_backward", _no_second_gradient, lib=_library)
torch.library.register_vmap("compilemask::attention_backward", backward_vmap, lib=_library)
_library.impl("attention_backward", backward_mapped_by_autograd, "Batched")


def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    """What the gradient of `attention` needs of its inputs and outputs."""
    q, k, v, descriptor, ctx.scale, ctx.score, score_tensors, ctx.score_numbers = inputs
    ctx.save_for_backward(q, k, v, *output, *descriptor, *score_tensors)
    ctx.of_score = len(score_tensors)
    # A list of numbers has one gradient, none; an empty list could be one of tensors.
    ctx.no_descriptor, ctx.no_numbers = [None] * len(descriptor), None if ctx.score_numbers else []
    ctx.set_materialize_grads(False)
    ctx.observation = current_observation()


def backward(ctx: Any, grad_out: torch.Tensor | None, grad_lse: torch.Tensor | None) -> tuple[Any, ...]:
    """The gradients of the inputs of `attention`."""
    if grad_out is None and grad_lse is None:
        return None, None, None, ctx.no_descriptor, None, None, [None] * ctx.of_score, ctx.no_numbers
    q, k, v, out, lse, *others = ctx.saved_tensors
    descriptor, score_tensors = others[: len(ctx.no_descriptor)], others[len(ctx.no_descriptor) :]
    if len(descriptor) < 4:
        raise GradientError("the descriptor was built without its transpose, which the gradient follows")
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    wanted = list(ctx.needs_input_grad[_SCORE_TENSORS])
    scoring = (ctx.score, score_tensors, ctx.score_numbers)
    # Autograd has threads of its own for the gradients of each GPU.
    with resuming(ctx.observation):
        *gradients, tables = torch.ops.compilemask.attention_backward(
            grad_out, grad_lse, q, k, v, out, lse, descriptor, ctx.scale, *scoring, wanted
        )
    of_tables = iter(tables)
    of_tensors = [next(of_tables) if is_wanted else None for is_wanted in wanted]
    return *gradients, ctx.no_descriptor, None, None, of_tensors, ctx.no_numbers
