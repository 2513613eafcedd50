"""Gradients like others before: what follows from the form of what they are computed from is found out once.

From the form of what was saved, and of the gradients that are given, follows that this one may be computed past the
dispatcher, and how its kernels are launched along descriptors with a layout. Addresses, what the thread is in the
middle of, and whether algorithms are to be deterministic are looked up each time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compilemask.lowering.descriptor_layout import Layout
from compilemask.runtime.calls.direct import are_plain, is_thread_direct
from compilemask.runtime.calls.gradient_inputs import GradientInputs, Gradients
from compilemask.runtime.calls.known_forms import KnownForms
from compilemask.runtime.gpu.hopper import kind_of
from compilemask.runtime.gpu.hopper_backward import Plan, attention_backward_gpu, gradients_by, plan_along
from compilemask.runtime.gpu.tensor_map import is_aligned

KEPT_PLANS = 64


class KnownGradient:
    """What is known of gradients whose tensors have one form."""

    def __init__(self, grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        self._kind, self._gradient_stride = kind_of(query, key, value), grad_out.stride()
        self._plans: dict[tuple[int, bool], tuple[Layout, Plan | None]] = {}
        """By the identity of the transposed layout, and whether the gradient of queries is summed in any order. Layouts
        that are held here share theirs with no other.
        """

    def on_gpu(self, inputs: GradientInputs) -> Gradients:
        """What `attention_backward_gpu` gives for inputs of this form with unmodified scores."""
        if is_aligned(inputs.query, inputs.key, inputs.value, inputs.grad_out):
            plan = self._plan_along(inputs.transposed.layout, not torch.are_deterministic_algorithms_enabled())
            if plan is not None:
                return gradients_by(plan, inputs)
        return attention_backward_gpu(inputs)

    def _plan_along(self, layout: Layout, sums_queries: bool) -> Plan | None:
        found = self._plans.get((id(layout), sums_queries))
        if found is None:
            if len(self._plans) >= KEPT_PLANS:
                self._plans.clear()
            found = (layout, plan_along(self._kind, self._gradient_stride, layout, sums_queries))
            self._plans[id(layout), sums_queries] = found
        return found[1]


_known: KnownForms[KnownGradient] = KnownForms()


def direct_gradient_of(
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None,
    saved: Sequence[torch.Tensor],
) -> KnownGradient | None:
    """What is known of a gradient; None for one that is not direct (`is_direct`).

    `saved` are query, key and value, the outputs, and the tensors of the descriptor.
    """
    if not is_thread_direct():
        return None
    tensors = (*saved, grad_out) if grad_lse is None else (*saved, grad_out, grad_lse)
    known = _known.find(*tensors)
    if known is None and are_plain(*tensors):
        query, key, value, *_ = saved
        known = KnownGradient(grad_out, query, key, value)
        _known.add(known, *tensors)
    return known


def forget() -> None:
    """Drop what is known, the kernels in it too."""
    _known.clear()
