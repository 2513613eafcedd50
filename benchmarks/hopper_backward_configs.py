"""Times variants of the Hopper backward kernel on this GPU, to choose the defaults of `HopperBackwardConfig`.

    python benchmarks/hopper_backward_configs.py --masks causal,clear --lengths 8192,32768 --head-dim 128

A variant is `sum` or `leave` (the gradient of queries: summed by the kernel, or left to another one), then the words
q64 or q128 (queries of a step), s4 (stages), hold or early (whether something holds the weights) and loose (rounding is
not pinned), joined by +: leave+q64+s4. All variants are compiled first, in parallel; then they are timed in shuffled
rounds, with all kernels of the gradient, beside the portable ones, with which they are compared.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

import torch
from cases import case
from forward import FLUSH_BYTES, _graph, _milliseconds

import compilemask as cm
from compilemask.lowering.tiling_to_ttg.attention_backward import HopperBackwardConfig
from compilemask.runtime.attention_backward_cuda import attention_backward_cuda
from compilemask.runtime.attention_cuda import ELEMENTS
from compilemask.runtime.hopper import attention_gpu
from compilemask.runtime.hopper_backward import attention_backward_hopper, backward_binary

DEFAULT = "sum,leave"
PORTABLE = "portable"
BACKWARD_OF_FORWARD = 2.5
"""Five products for two."""
WORDS: dict[str, dict[str, bool]] = {
    "hold": {"hold_weights": True},
    "early": {"hold_weights": False},
    "loose": {"pin_rounding": False},
}


def parsed(text: str, head_dim: int, dtype: str) -> HopperBackwardConfig:
    """A variant."""
    mode, *words = text.split("+")
    if mode not in ("sum", "leave"):
        raise SystemExit(f"variant {text!r} starts with neither sum nor leave")
    config = HopperBackwardConfig.choose(head_dim, ELEMENTS[getattr(torch, dtype)], sums_queries=mode == "sum")
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
    found = case(name, length, "cuda")
    q, k, v, grad = (
        torch.randn(1, heads, length, head_dim, device=device, dtype=getattr(torch, dtype)) for _ in "qkvg"
    )
    descriptor = cm.compile(found.mask).descriptor(length, length, device, gradient=True)
    scale = head_dim**-0.5
    inputs = (grad, None, q, k, v, *attention_gpu(q, k, v, descriptor, scale), descriptor, scale)
    reference = [x.float() for x in attention_backward_cuda(*inputs)]
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)
    calls: dict[str, Callable[[], object]] = {PORTABLE: _graph(partial(attention_backward_cuda, *inputs))}
    for text in variants:
        call = partial(attention_backward_hopper, *inputs, parsed(text, head_dim, dtype))
        errors = [float((x.float() - y).norm() / y.norm()) for x, y in zip(call(), reference, strict=True)]
        print(f"{text}: relative differences of q, k, v {', '.join(f'{error:.1e}' for error in errors)}", flush=True)
        calls[text] = _graph(call)
    times: dict[str, list[float]] = {text: [] for text in calls}
    for _ in range(rounds):
        for text in random.sample(list(calls), len(calls)):
            times[text].append(_milliseconds(calls[text], flush, 3))
    for text, measured in times.items():
        median = statistics.median(measured)
        rate = BACKWARD_OF_FORWARD * found.flops(1, heads, head_dim) / median * 1e-9
        print(f"{name:8} S={length} D={head_dim} {dtype} {text:20} {median:.4f} ms {rate:.1f} TFLOP/s", flush=True)


def main() -> None:
    """Compile, then time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--masks", default="causal,clear")
    parser.add_argument("--lengths", default="8192")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--variants", default=DEFAULT)
    options = parser.parse_args()
    variants = options.variants.split(",")
    with ProcessPoolExecutor() as pool:
        job = partial(compile_variant, head_dim=options.head_dim, dtype=options.dtype)
        faults = dict(zip(variants, pool.map(job, variants), strict=True))
    for text, fault in faults.items():
        if fault:
            print(f"{text}: {fault}", flush=True)
    usable = [text for text in variants if not faults[text]]
    for name in options.masks.split(","):
        for length in map(int, options.lengths.split(",")):
            time_variants(name, length, options.head_dim, options.dtype, options.heads, usable, options.rounds)


if __name__ == "__main__":
    main()
