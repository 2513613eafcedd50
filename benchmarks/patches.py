"""Times windows on images and videos, whose tiles may be patches, as forward.py times the forward pass.

    python benchmarks/patches.py --implementations compilemask,raster,flex-triton,flex-fa4,flex-fa4-patches \
        --output benchmarks/results/

`compilemask` has patches where the compiler chooses them, as attention does; `raster` is this project without.
`flex-fa4-patches` gets inputs whose tokens are stored patch by patch, of 8 x 16 pixels, and keeps its results so: what
a model does that reorders its tokens once. Passes `fwd` and `bwd` are those of forward.py and backward.py; neither
builds a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from forward import Calls, Job, _graph, main

if TYPE_CHECKING:
    import torch
    from cases import Case

LENGTHS = {"natten2d": (16384,), "natten3d": (16384, 108000), "clear": (32768, 8192, 32732, 16756)}
MASKS = ("clear", "clear8", "clear32", "natten2d", "natten3d")
CASES = ",".join(
    f"{mask}:{length}:{dim}" for mask in MASKS for dim in (128, 64) for length in LENGTHS.get(mask, (32768, 8192))
)
LARGEST_ERROR = 2e-2
"""Of results in 16 bits, between two implementations."""
PATCH = (8, 16)


@dataclass(frozen=True)
class Subject:
    """An implementation at work: its inputs, its forward pass, and how tensors get into its order and back."""

    inputs: tuple[torch.Tensor, ...]
    forward: Callable[[], torch.Tensor]
    moved: Callable[[torch.Tensor], torch.Tensor] = lambda x: x
    restored: Callable[[torch.Tensor], torch.Tensor] = lambda x: x


def _ours(case: Case, inputs: tuple[torch.Tensor, ...], *, in_patches: bool) -> Subject:
    import compilemask as cm

    compiled, (q, k, v), length = cm.compile(case.mask), inputs, case.length
    choice = compiled.patches_for(length, length) if in_patches else None
    patches = None if choice is None else choice.patches
    descriptor = compiled.descriptor(length, length, q.device, gradient=True, patches=patches)
    return Subject(inputs, lambda: cm.attention(q, k, v, descriptor))


def _flex(case: Case, inputs: tuple[torch.Tensor, ...], *, backend: str) -> Subject:
    from implementations import IMPLEMENTATIONS

    return Subject(inputs, IMPLEMENTATIONS[backend](case, *inputs).forward)


def _flex_in_patches(case: Case, inputs: tuple[torch.Tensor, ...]) -> Subject:
    import torch
    from cases import IMAGES, TEXT
    from implementations import IMPLEMENTATIONS

    from compilemask.lowering.patch_grid import PatchGrid

    if not case.name.startswith("clear"):
        raise ValueError("tokens are stored as patches for CLEAR only")
    grid = PatchGrid(TEXT, IMAGES[case.length], PATCH, case.length)
    if grid.total != case.length:
        raise ValueError("an image that goes into patches badly has no such order of tokens")
    positions, places = (torch.from_numpy(x).to(inputs[0].device) for x in (grid.positions, grid.places))
    table = positions.to(torch.int32)

    def predicate(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return case.predicate(b, h, table[q], table[kv])

    def moved(x: torch.Tensor) -> torch.Tensor:
        return x.detach().index_select(2, positions)

    own = tuple(moved(x).requires_grad_() for x in inputs)
    forward = IMPLEMENTATIONS["flex-fa4"](replace(case, predicate=predicate), *own).forward
    return Subject(own, forward, moved, lambda x: x.index_select(2, places))


SUBJECTS: dict[str, Callable[[Case, tuple[torch.Tensor, ...]], Subject]] = {
    "compilemask": partial(_ours, in_patches=True),
    "raster": partial(_ours, in_patches=False),
    "flex-triton": partial(_flex, backend="flex-triton"),
    "flex-fa4": partial(_flex, backend="flex-fa4"),
    "flex-fa4-patches": _flex_in_patches,
}


def _measured(subject: Subject, grad: torch.Tensor) -> tuple[list[torch.Tensor], dict[str, Callable[[], object]]]:
    """Output and gradients in raster order, and the calls of both passes. `grad` is that of the output."""
    import torch

    out, grad = subject.forward(), subject.moved(grad)
    inputs = list(subject.inputs)

    def backward() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(out, inputs, grad, retain_graph=True)

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return subject.forward()

    results = [subject.restored(x.detach()) for x in (out, *backward())]
    return results, {"fwd": _graph(forward), "bwd": backward}


def prepare(job: Job) -> tuple[Calls, dict[str, str], float]:
    """Calls by (implementation, pass), what failed by implementation, and the forward pass's visible TFLOP."""
    import torch
    from cases import case

    found = case(job.mask, job.length, "cuda")
    generator = torch.Generator(device="cuda").manual_seed(job.length)
    shape = (job.batch, job.heads, job.length, job.head_dim)
    *inputs, grad = (
        torch.randn(shape, device="cuda", dtype=getattr(torch, job.dtype), generator=generator) for _ in range(4)
    )
    inputs = tuple(x.requires_grad_() for x in inputs)
    calls: Calls = {}
    failed: dict[str, str] = {}
    reference: list[torch.Tensor] | None = None
    for name in job.implementations:
        try:
            results, passes = _measured(SUBJECTS[name](found, inputs), grad)
            reference = results if reference is None else reference
            for what, ours, theirs in zip(("out", "dq", "dk", "dv"), results, reference, strict=True):
                error = ((ours - theirs).float().norm() / theirs.float().norm()).item()
                if not error < LARGEST_ERROR:
                    raise ArithmeticError(f"{what} differs from {job.implementations[0]} by {error:.1e}")
            calls |= {(name, kind): call for kind, call in passes.items()}
        except Exception as fault:
            failed[name] = f"{type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else ''}"[:200]
    return calls, failed, found.flops(job.batch, job.heads, job.head_dim) * 1e-12


if __name__ == "__main__":
    main("patches", Path(__file__), prepare, CASES)
