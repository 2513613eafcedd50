"""Times the backward pass and whole training steps side by side with their peers, as forward.py times the forward pass.

    python benchmarks/backward.py --masks causal,hstu,rm,clear --lengths 8192,32768 --head-dims 128 \
        --implementations compilemask,flex-triton --output benchmarks/results/

Pass `bwd` is the gradient of q, k and v alone, `step` the mask, the forward and the backward pass. A step is a graph
replay where it can be captured; the backward pass of implementations behind autograd is a plain call. An implementation
may be run deterministically: compilemask-deterministic.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from forward import Calls, Job, _graph, main

if TYPE_CHECKING:
    import torch
    from implementations import Prepared

LARGEST_ERROR = 2e-2
"""Of gradients in 16 bits, between two implementations."""


def _gradients(out: torch.Tensor, inputs: list[torch.Tensor], grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    import torch

    return torch.autograd.grad(out, inputs, grad, retain_graph=True)


def _calls(prepared: Prepared, inputs: list[torch.Tensor], grad: torch.Tensor) -> dict[str, Callable[[], object]]:
    """The two passes of one implementation."""
    out = prepared.forward()
    step = prepared.both or prepared.forward
    return {"bwd": lambda: _gradients(out, inputs, grad), "step": lambda: _gradients(step(), inputs, grad)}


def prepare(job: Job) -> tuple[Calls, dict[str, str], float]:
    """Calls by (implementation, pass), what failed by implementation, and the forward pass's visible TFLOP."""
    import torch
    from cases import case
    from deterministic import SUFFIX, switched
    from implementations import IMPLEMENTATIONS

    found = case(job.mask, job.length, "cuda")
    generator = torch.Generator(device="cuda").manual_seed(job.length)
    shape = (job.batch, job.heads, job.length, job.head_dim)
    *inputs, grad = (
        torch.randn(shape, device="cuda", dtype=getattr(torch, job.dtype), generator=generator) for _ in range(4)
    )
    inputs = [x.requires_grad_() for x in inputs]
    calls: Calls = {}
    failed: dict[str, str] = {}
    reference: tuple[torch.Tensor, ...] | None = None
    for name in job.implementations:
        try:
            prepared = IMPLEMENTATIONS[name.removesuffix(SUFFIX)](found, *inputs)
            gradients = switched(name, _gradients)(prepared.forward(), inputs, grad)
            reference = gradients if reference is None else reference
            for letter, ours, theirs in zip("qkv", gradients, reference, strict=True):
                error = ((ours - theirs).float().norm() / theirs.float().norm()).item()
                if not error < LARGEST_ERROR:
                    raise ArithmeticError(f"d{letter} differs from {job.implementations[0]} by {error:.1e}")
            passes = {kind: switched(name, call) for kind, call in _calls(prepared, inputs, grad).items()}
            calls[name, "bwd"] = passes["bwd"]
            calls[name, "step"] = _graph(passes["step"]) if prepared.capturable else passes["step"]
        except Exception as fault:
            failed[name] = f"{type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else ''}"[:200]
    return calls, failed, found.flops(job.batch, job.heads, job.head_dim) * 1e-12


if __name__ == "__main__":
    main("backward", Path(__file__), prepare)
