"""Times variants of the Hopper backward kernel on this GPU, to choose the defaults of `HopperBackwardConfig`.

    python benchmarks/hopper_backward_configs.py --masks causal,clear/patches --lengths 8192,32768 --head-dim 128

Tiles of a mask with /patches are patches of its image.

A variant is `sum` or `leave` (the gradient of queries: summed by the kernel, or left to another one), then the words
q64 or q128 (queries of a step), s4 (stages), hold or early (whether something holds the weights) and loose (rounding is
not pinned), joined by +: leave+q64+s4. All variants are compiled first, in parallel; then they are timed in shuffled
rounds, with all kernels of the gradient, beside the portable ones, with which they are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from cases import case
from forward import _graph
from hopper_configs import main, report_times

import compilemask as cm
from compilemask.lowering.tiling_to_ttg.attention_backward import HopperBackwardConfig
from compilemask.lowering.tiling_to_ttg.attention_config import Patch
from compilemask.runtime.calls.gradient_inputs import GradientInputs
from compilemask.runtime.gpu.attention_backward_cuda import attention_backward_cuda
from compilemask.runtime.gpu.attention_cuda import ELEMENTS
from compilemask.runtime.gpu.hopper import attention_gpu
from compilemask.runtime.gpu.hopper_backward import attention_backward_hopper, backward_binary
from compilemask.runtime.gpu.patch_maps import patch_shapes_of
from compilemask.runtime.patched import gradients_in_patched_order

DEFAULT = "sum,leave"
PORTABLE = "portable"
BACKWARD_OF_FORWARD = 2.5
"""Five products for two."""
WORDS: dict[str, dict[str, Any]] = {
    "hold": {"hold_weights": True},
    "early": {"hold_weights": False},
    "loose": {"pin_rounding": False},
}


def parsed(
    text: str, head_dim: int, dtype: str, query_patch: Patch | None = None, key_patch: Patch | None = None
) -> HopperBackwardConfig:
    """A variant, of such patches of queries and keys."""
    mode, *words = text.split("+")
    if mode not in ("sum", "leave"):
        raise SystemExit(f"variant {text!r} starts with neither sum nor leave")
    config = HopperBackwardConfig.choose(
        head_dim,
        ELEMENTS[getattr(torch, dtype)],
        sums_queries=mode == "sum",
        query_patch=query_patch,
        key_patch=key_patch,
    )
    for word in words:
        if word in WORDS:
            config = replace(config, **WORDS[word])
        elif word[0] == "s":
            config = replace(config, stages=int(word[1:]))
        elif word[0] == "q":
            config = replace(config, queries=int(word[1:]))
        else:
            raise SystemExit(f"unknown word {word!r} in variant {text!r}")
    return config


def compile_variant(text: str, head_dim: int, dtype: str) -> str:
    """Compile into the cache; what went wrong, or nothing."""
    try:
        backward_binary(head_dim, getattr(torch, dtype), parsed(text, head_dim, dtype))
    except Exception as error:
        return str(error)[-300:]
    return ""


def time_variants(
    name: str, length: int, head_dim: int, dtype: str, heads: int, variants: list[str], rounds: int
) -> None:
    """Print a line per variant."""
    device = torch.device("cuda", 0)
    mask, _, tiles = name.partition("/")
    found = case(mask, length, "cuda")
    compiled = cm.compile(found.mask)
    choice = compiled.patches_for(length, length) if tiles else None
    patches = None if choice is None else choice.patches
    q, k, v, grad = (
        torch.randn(1, heads, length, head_dim, device=device, dtype=getattr(torch, dtype)) for _ in "qkvg"
    )
    descriptor = compiled.descriptor(length, length, device, gradient=True, patches=patches)
    scale = head_dim**-0.5
    inputs = GradientInputs(grad, None, q, k, v, *attention_gpu(q, k, v, descriptor, scale), descriptor, scale)
    portable = attention_backward_cuda
    if patches is not None:
        portable = partial(gradients_in_patched_order, portable)
    reference = [x.float() for x in portable(inputs)[:3]]
    # What variants allocate lies at the same addresses: elsewhere the same kernel may take some percent more.
    pool = torch.cuda.graph_pool_handle()
    calls: dict[str, Callable[[], object]] = {PORTABLE: _graph(partial(portable, inputs), pool)}
    key_patch, query_patch = patch_shapes_of(inputs.transposed.layout)
    for text in variants:
        config = parsed(text, head_dim, dtype, query_patch, key_patch)
        call = partial(attention_backward_hopper, inputs, config)
        errors = [float((x.float() - y).norm() / y.norm()) for x, y in zip(call()[:3], reference, strict=True)]
        print(f"{text}: relative differences of q, k, v {', '.join(f'{error:.1e}' for error in errors)}", flush=True)
        calls[text] = _graph(call, pool)
    flops = BACKWARD_OF_FORWARD * found.flops(1, heads, head_dim)
    report_times(calls, f"{name:8} S={length} D={head_dim} {dtype}", flops, rounds)


if __name__ == "__main__":
    main(compile_variant, time_variants, DEFAULT)
