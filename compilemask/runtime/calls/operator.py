"""Attention: the function that people call, and the PyTorch operator `compilemask::attention` behind it.

The operator is traceable by torch.compile and has a CPU and a CUDA implementation. It takes a descriptor as its
`tensors`, and a score modification as the fields of a `Scoring`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, overload

import torch

from compilemask.lowering.patch_grid import Patches
from compilemask.runtime.calls import gradient
from compilemask.runtime.calls.autocast import autocast
from compilemask.runtime.calls.batching import attention_vmap
from compilemask.runtime.calls.descriptor_operator import descriptor_tensors
from compilemask.runtime.calls.direct_gradient import attention_with_gradient
from compilemask.runtime.calls.known_calls import KnownCall, direct_call
from compilemask.runtime.compiled import Compiled, compile
from compilemask.runtime.cpu.attention_cpu import attention_cpu
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.gpu.hopper import Kind, attention_gpu, best_rows, takes_patches
from compilemask.runtime.scoring import Scoring
from compilemask.runtime.validate import (
    Problem,
    check_descriptor,
    check_mask_shape,
    check_no_tangents,
    check_scale,
    check_score,
    check_score_gradient,
    check_tensors,
    check_transposed,
    check_unpatched,
    needs_gradient,
)

if TYPE_CHECKING:
    from compilemask.language.mask import Mask
    from compilemask.score import Score

_Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""q, k and v."""

_library = torch.library.Library("compilemask", "DEF")
_library.define(
    "attention(Tensor q, Tensor k, Tensor v, Tensor[] descriptor, float scale, str score, "
    "Tensor[] score_tensors, float[] score_numbers) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)


def _attention_cpu(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    descriptor: Sequence[torch.Tensor],
    scale: float,
    score: str,
    score_tensors: Sequence[torch.Tensor],
    score_numbers: Sequence[float],
) -> tuple[torch.Tensor, torch.Tensor]:
    scoring = Scoring(score, score_tensors, score_numbers)
    # What is computed in float32 here stays so.
    with torch.autocast("cpu", enabled=False):
        return attention_cpu(q, k, v, _descriptor(descriptor, q, k), scale, scoring)


def _attention_cuda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    descriptor: Sequence[torch.Tensor],
    scale: float,
    score: str,
    score_tensors: Sequence[torch.Tensor],
    score_numbers: Sequence[float],
) -> tuple[torch.Tensor, torch.Tensor]:
    scoring = Scoring(score, score_tensors, score_numbers)
    return attention_gpu(q, k, v, _descriptor(descriptor, q, k), scale, scoring)


def _attention_fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    descriptor: Sequence[torch.Tensor],
    scale: float,
    score: str,
    score_tensors: Sequence[torch.Tensor],
    score_numbers: Sequence[float],
) -> tuple[torch.Tensor, torch.Tensor]:
    lse_type = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=lse_type)


_library.impl("attention", _attention_cpu, "CPU")
_library.impl("attention", _attention_cuda, "CUDA")
torch.library.register_fake("compilemask::attention", _attention_fake, lib=_library)
torch.library.register_autograd(
    "compilemask::attention", gradient.backward, setup_context=gradient.setup_context, lib=_library
)
torch.library.register_vmap("compilemask::attention", attention_vmap, lib=_library)


def _descriptor(tensors: Sequence[torch.Tensor], q: torch.Tensor, k: torch.Tensor) -> Descriptor:
    """The descriptor with these tensors, once it is known to fit."""
    descriptor = Descriptor.of_tensors(tensors)
    problem = Problem(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3])
    check_descriptor(descriptor.layout, descriptor.device, problem, q.device)
    return descriptor


def descriptor_for(
    mask: Mask | Compiled,
    problem: Problem,
    inputs: _Inputs,
    with_gradient: bool,
    is_scored: bool,
    kind: Kind | None = None,
) -> Descriptor:
    """The mask's descriptor, once the mask is known to fit, in the tiles that the kernel for these inputs takes.

    `kind` is that of inputs on a GPU, if it is known already.
    """
    compiled, device = compile(mask), inputs[0].device
    check_mask_shape(compiled.batch_shape, problem.batch, problem.query_heads)
    has_choice = kind is not None or (device.type == "cuda" and _is_plain(inputs) and not is_scored)
    patches = _patches_for(compiled, problem, inputs) if has_choice else None
    if with_gradient:
        return compiled.descriptor(problem.queries, problem.keys, device, gradient=True, patches=patches)
    rows = best_rows(*inputs, kind) if has_choice and patches is None else None
    return compiled.descriptor_on(device, problem.queries, problem.keys, rows, patches)


def _is_plain(inputs: _Inputs) -> bool:
    """Whether these are PyTorch's own tensors: they alone have addresses, on which the choice of a kernel depends."""
    return all(type(x) is torch.Tensor for x in inputs) and not torch._C._are_functorch_transforms_active()


def _patches_for(compiled: Compiled, problem: Problem, inputs: _Inputs) -> Patches | None:
    """The patches that tiles should be, if the kernel for these inputs on a GPU loads them from where they lie."""
    choice = compiled.patches_for(problem.queries, problem.keys)
    if choice is None or choice.patches is None or not takes_patches(*inputs, choice.patches):
        return None
    return choice.patches


def _directly(
    call: KnownCall,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask | Compiled | Descriptor,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse, without the operator. Raises what `attention` raises."""
    scale = call.scale if scale is None else check_scale(scale, call.problem.head_dim)
    with_gradient = call.requires_gradient and torch.is_grad_enabled()
    addresses = call.addresses(q, k, v)
    if isinstance(mask, Descriptor):
        if with_gradient:
            check_transposed(mask)
        call.check(mask)
        descriptor = mask
    else:
        given = call.given(mask, with_gradient, addresses)
        known = None if given is None else call.descriptor(given, mask)
        if known is None and with_gradient and call.kind is not None and (compiled := compile(mask)).tables:
            check_mask_shape(compiled.batch_shape, call.problem.batch, call.problem.query_heads)
            lengths = call.problem.queries, call.problem.keys
            descriptor, complete = compiled.descriptor_before_transpose(call.kind.device, *lengths)
            return attention_with_gradient(call, q, k, v, descriptor, scale, addresses, complete)
        descriptor = known or descriptor_for(mask, call.problem, (q, k, v), with_gradient, False, call.kind)
        if known is None and given is not None:
            call.remember(given, mask, descriptor)
    if with_gradient:
        return attention_with_gradient(call, q, k, v, descriptor, scale, addresses)
    return call.attend(q, k, v, descriptor, scale, addresses)


def _tensors_for(
    mask: Mask | Compiled, problem: Problem, inputs: _Inputs, with_gradient: bool, is_scored: bool
) -> list[torch.Tensor]:
    """The mask's descriptor as the operator takes it. torch.compile traces that of a compiled mask."""
    if not torch.compiler.is_compiling():
        return descriptor_for(mask, problem, inputs, with_gradient, is_scored).tensors
    if isinstance(mask, Compiled):
        return descriptor_tensors(mask, problem.queries, problem.keys, inputs[0].device, gradient=with_gradient)
    from compilemask.runtime.calls import untraced

    return untraced.descriptor_for(mask, problem, inputs, with_gradient, is_scored).tensors


@overload
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask | Compiled | Descriptor,
    scale: float | None = None,
    return_lse: Literal[False] = False,
    score: Score | None = None,
) -> torch.Tensor: ...


@overload
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask | Compiled | Descriptor,
    scale: float | None = None,
    *,
    return_lse: Literal[True],
    score: Score | None = None,
) -> tuple[torch.Tensor, torch.Tensor]: ...


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask | Compiled | Descriptor,
    scale: float | None = None,
    return_lse: bool = False,
    score: Score | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale * q k^T) v over the visible keys of each query; differentiable in q, k, v and the score's tensors.

    Under autocast, q, k and v are cast to its dtype.

    Args:
        q: [B, Hq, Sq, D], float16, bfloat16 or float32 (float64 on the CPU).
        k: [B, Hkv, Skv, D] like q; Hkv divides Hq, and query head h reads key head h // (Hq / Hkv).
        v: like k.
        mask: a mask, a compiled mask, or a descriptor for these lengths; using one descriptor again saves its build.
            A mask with parameters per batch or head fits tensors of that batch or number of query heads.
        scale: of the scores; 1 / sqrt(D) if not given.
        return_lse: also return the log-sum-exp.
        score: what to do to scaled scores before they are masked: `score.softcap`, `score.alibi`, ... or a score_mod
            of FlexAttention (`from_score_mod`). Its values are run-time data; only a new structure is compiled.

    Returns:
        out [B, Hq, Sq, D] in q's dtype, contiguous; 0 for a query that sees no key. With `return_lse`, also lse
        [B, Hq, Sq], the natural logarithm of the sum of exp(score), float32 (float64 for float64 inputs); -inf for a
        query that sees no key. A sink counts as a key (`score.sink`).

    Raises:
        ShapeError, DTypeError, DeviceError: q, k and v do not fit together, or have no backend.
        DescriptorError: the descriptor was built for other lengths, or in tiles of rows that no kernel takes here.
        MaskError: the mask is for other batches or heads, or does not fit the lengths.
        ScaleError: the scale is not finite.
        ScoreError: the score modification is for other batches or heads, in other memory, or has no log-sum-exp.
        GradientError: a gradient would be needed, and the descriptor was built without its transpose, or the score
            modification has none.
    """
    if score is None and (call := direct_call(q, k, v)) is not None:
        out, lse = _directly(call, q, k, v, mask, scale)
        return (out, lse) if return_lse else out
    q, k, v = autocast(q, k, v)
    problem = check_tensors(q, k, v)
    scale = check_scale(scale, problem.head_dim)
    scoring = Scoring() if score is None else check_score(score, problem, q.device, return_lse)
    check_no_tangents(q, k, v, *scoring.tensors)
    with_gradient = needs_gradient(q, k, v, *scoring.tensors)
    if with_gradient:
        check_score_gradient(scoring)
    if isinstance(mask, Descriptor):
        if with_gradient:
            check_transposed(mask)
        if score is not None:
            check_unpatched(mask)
        tensors = mask.tensors
    else:
        tensors = _tensors_for(mask, problem, (q, k, v), with_gradient, score is not None)
    out, lse = torch.ops.compilemask.attention(q, k, v, tensors, scale, *scoring)
    return (out, lse) if return_lse else out
