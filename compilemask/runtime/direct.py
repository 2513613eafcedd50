"""Which calls may go straight to a backend, past PyTorch's dispatcher, which takes longer than all the rest.

Those on whose way the dispatcher would do nothing: on tensors of PyTorch's own class in main memory or on a GPU, of
which no gradient is wanted, outside of every transformation, tracing, mode and profile. All others are left to it.
"""

from __future__ import annotations

import torch
from torch._C._autograd import _profiler_enabled
from torch.autograd import forward_ad

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


def is_direct(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether attention of these, which may be anything, would pass the dispatcher without being touched."""
    if torch.compiler.is_compiling() or not (type(q) is type(k) is type(v) is torch.Tensor):
        return False
    keys_of = torch._C._dispatch_keys
    keys = keys_of(q).raw_repr() | keys_of(k).raw_repr() | keys_of(v).raw_repr()
    modes = torch._C._dispatch_tls_local_include_set().raw_repr()
    if keys & _FOREIGN or modes & _FOREIGN_MODES or torch._C._len_torch_function_stack():
        return False
    if (q.requires_grad or k.requires_grad or v.requires_grad) and torch.is_grad_enabled():
        return False
    return not (forward_ad._current_level >= 0 or torch._C._is_any_autocast_enabled() or _profiler_enabled())
