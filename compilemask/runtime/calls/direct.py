"""Which calls may go straight to a backend, past PyTorch's dispatcher, which takes longer than all the rest.

Those on whose way the dispatcher would do nothing, but for autograd, whose part `direct_gradient` takes: on tensors of
PyTorch's own class in main memory or on a GPU, outside of every transformation, tracing, mode and profile. All others
are left to it.
"""

from __future__ import annotations

import torch
from torch._C import _dispatch_tls_local_include_set, _is_any_autocast_enabled, _len_torch_function_stack
from torch._C._autograd import _profiler_enabled
from torch.autograd import forward_ad
from torch.compiler import is_compiling

_Key = torch._C.DispatchKey


def _bits(*keys: torch._C.DispatchKey) -> int:
    bits = 0
    for key in keys:
        bits |= torch._C.DispatchKeySet(key).raw_repr()
    return bits


_FOREIGN = ~_bits(
    *(_Key.CPU, _Key.AutogradCPU, _Key.AutocastCPU),
    *(_Key.CUDA, _Key.AutogradCUDA, _Key.AutocastCUDA),
    _Key.ADInplaceOrView,
)
"""What the dispatcher acts upon in a tensor, but for what is known to be without effect here."""
_FOREIGN_MODES = ~_bits(_Key.BackendSelect, _Key.ADInplaceOrView)
"""The same of what a thread is in the middle of."""


def is_direct(*tensors: torch.Tensor) -> bool:
    """Whether these, which may be anything, would pass the dispatcher without being touched, except by autograd."""
    return is_thread_direct() and are_plain(*tensors)


def is_thread_direct() -> bool:
    """The part of `is_direct` that no tensor tells: this thread is in no tracing, transformation, mode or profile."""
    if is_compiling() or _len_torch_function_stack() or _dispatch_tls_local_include_set().raw_repr() & _FOREIGN_MODES:
        return False
    return not (forward_ad._current_level >= 0 or _is_any_autocast_enabled() or _profiler_enabled())


def are_plain(*tensors: torch.Tensor) -> bool:
    """The part of `is_direct` that tensors tell: they are PyTorch's own, with nothing that the dispatcher acts upon."""
    keys = 0
    for x in tensors:
        if type(x) is not torch.Tensor:
            return False
        keys |= torch._C._dispatch_keys(x).raw_repr()
    return not keys & _FOREIGN
