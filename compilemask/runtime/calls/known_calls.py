"""Calls of attention like others before: what follows from the form of q, k and v is found out once and remembered.

From the form of q, k and v (`known_forms`) follows that a call may go past the dispatcher, that its inputs fit, and how
a kernel for them is launched. What no form tells is looked up for each call: what the thread is in the middle of,
whether gradients are enabled, the scale, the mask, addresses, the current device and stream.
"""

from __future__ import annotations

from typing import Any
from weakref import ReferenceType, ref

import torch

from compilemask.language.mask import Mask
from compilemask.lowering.descriptor_layout import Layout
from compilemask.runtime.calls.direct import are_plain, is_thread_direct
from compilemask.runtime.calls.known_forms import KnownForms
from compilemask.runtime.compiled import Compiled, kept_by
from compilemask.runtime.cpu.attention_cpu import attention_cpu
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.gpu.hopper import Addresses, Kind, Plan, attend, attention_gpu, kind_of, plan_along
from compilemask.runtime.gpu.launch import current_stream, is_capturing
from compilemask.runtime.gpu.split_keys import is_forced
from compilemask.runtime.gpu.tensor_map import STRIDE_BYTES
from compilemask.runtime.kept_descriptors import Kept
from compilemask.runtime.validate import check_descriptor, check_scale, known_problem

KEPT_OF_A_CALL = 64
"""Descriptors and layouts that are remembered for one call."""

_Given = tuple[int, bool, int]
"""The identity of a mask, whether a gradient is wanted, and the current stream."""


class KnownCall:
    """What is known of calls with inputs of one form."""

    def __init__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """For inputs that `is_direct` admits. Raises what `check_tensors` raises."""
        self.problem = known_problem(q, k, v)
        self.scale = check_scale(None, self.problem.head_dim)
        """The scale if none is given."""
        self.requires_gradient = q.requires_grad or k.requires_grad or v.requires_grad
        """Whether a gradient is wanted where gradients are enabled."""
        self.kind = _kind_on_gpu(q, k, v)
        """None on the CPU."""
        self._device = q.device
        self._fitting: dict[int, Layout] = {}
        """Layouts of descriptors that fit, by identity. Those that are held here share theirs with no other."""
        self._plans: dict[int, tuple[Layout, Plan | None]] = {}
        """Of attention along descriptors with a layout, by its identity."""
        self._given: dict[_Given, tuple[ReferenceType[object], Kept]] = {}

    # ---- descriptors ----

    def check(self, descriptor: Descriptor) -> None:
        """Raise DescriptorError, MaskError or DeviceError unless a descriptor fits."""
        layout, device = descriptor.layout, descriptor.buffer.device
        if id(layout) not in self._fitting or device != self._device:
            check_descriptor(layout, device, self.problem, self._device)
            _make_room(self._fitting)
            self._fitting[id(layout)] = layout

    def given(self, mask: object, with_gradient: bool, addresses: Addresses | None) -> _Given | None:
        """Under what the descriptor of a mask is remembered for these calls; None for a call that needs one of its own.

        One that is captured builds its descriptor in the graph, and on a GPU the tiles depend on addresses.
        """
        if self.kind is None:
            return id(mask), with_gradient, 0
        if addresses is None or is_capturing():
            return None
        return id(mask), with_gradient, current_stream(self.kind.device.index)

    def descriptor(self, given: _Given, mask: object) -> Descriptor | None:
        """The descriptor that `remember` was told of, while it is kept."""
        found = self._given.get(given)
        # The identity may be that of a mask that is gone.
        return None if found is None or found[0]() is not mask else found[1].use()

    def remember(self, given: _Given, mask: object, descriptor: Descriptor) -> None:
        """Remember the descriptor of a mask, if it is the same for the next call."""
        kept = kept_by(descriptor)
        # What is no mask of ours may not be one that can be referred to weakly.
        if kept is not None and isinstance(mask, Mask | Compiled):
            _make_room(self._given)
            self._given[given] = ref(mask), kept

    # ---- attention ----

    def addresses(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Addresses | None:
        """Where q, k and v start, if that is where inputs on a GPU start of which all that is remembered holds."""
        if self.kind is None:
            return None
        addresses = (q.data_ptr(), k.data_ptr(), v.data_ptr())
        is_aligned = not (addresses[0] | addresses[1] | addresses[2]) % STRIDE_BYTES
        return addresses if is_aligned and not is_forced() else None

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        descriptor: Descriptor,
        scale: float,
        addresses: Addresses | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """out and lse, along a descriptor that fits; `addresses` are what the method of that name says."""
        if self.kind is None:
            return attention_cpu(q, k, v, descriptor, scale)
        if addresses is not None and scale >= 0:
            plan = self._plan_along(self.kind, descriptor.layout)
            if plan is not None:
                return attend(plan, addresses, descriptor, scale)
        return attention_gpu(q, k, v, descriptor, scale, kind=self.kind)

    def _plan_along(self, kind: Kind, layout: Layout) -> Plan | None:
        found = self._plans.get(id(layout))
        if found is None:
            _make_room(self._plans)
            found = self._plans[id(layout)] = (layout, plan_along(kind, layout))
        return found[1]


def _make_room(kept: dict[Any, Any]) -> None:
    if len(kept) >= KEPT_OF_A_CALL:
        kept.clear()


def _kind_on_gpu(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Kind | None:
    return None if q.device.type == "cpu" else kind_of(q, k, v)


_known: KnownForms[KnownCall] = KnownForms()


def direct_call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> KnownCall | None:
    """What is known of a call with these, which may be anything; None for one that is not direct (`is_direct`).

    Raises ShapeError, DTypeError or DeviceError for inputs of a direct call that do not fit together.
    """
    if not is_thread_direct():
        return None
    call = _known.find(q, k, v)
    if call is None and are_plain(q, k, v):
        call = KnownCall(q, k, v)
        _known.add(call, q, k, v)
    return call


def forget() -> None:
    """Drop what is known, the kernels in it too."""
    _known.clear()
