"""Times variants of the Hopper attention kernel on this GPU, to choose the defaults of `HopperConfig`.

    python benchmarks/hopper_configs.py --masks causal,clear --lengths 8192,32768 --head-dim 128

A variant is a schedule, then the words mbarrier (turns), dirty (values are not cleaned), early (nothing holds the
softmax), loose (rounding is not pinned), eager or slack (whether peaks have slack), keep or look (whether first peaks
are kept), r192 (rows of a tile, 128 if not said; first), s3 (stages), k1 (more stages of keys) and h4 (heads together),
joined by +: grid+r192+dirty+s3. All variants are compiled first, in parallel; then they are timed in shuffled rounds,
beside the portable kernel, with which they are compared.
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
from compilemask.lowering.tiling_to_ttg.attention import HopperConfig, Schedule
from compilemask.runtime.gpu.attention_cuda import ELEMENTS, attention_cuda
from compilemask.runtime.gpu.hopper import hopper_binary, prepare_launch

DEFAULT = "grid,grid+mbarrier,static,atomic,grid+dirty,grid+h16"
PORTABLE = "portable"
CHANGES: dict[str, dict[str, bool | float]] = {
    "mbarrier": {"named_barriers": False},
    "dirty": {"clean_values": False},
    "early": {"hold_softmax": False},
    "loose": {"pin_rounding": False},
    "eager": {"slack": 0.0},
    "slack": {"slack": 8.0},
    "keep": {"keeps_peaks": True},
    "look": {"keeps_peaks": False},
}


def parsed(text: str, head_dim: int, dtype: str) -> tuple[HopperConfig, int | None]:
    """A variant and its heads together, None for as many as fit the cache."""
    schedule, *words = text.split("+")
    rows = int(words.pop(0)[1:]) if words and words[0][0] == "r" else 128
    config = HopperConfig.choose(head_dim, ELEMENTS[getattr(torch, dtype)], rows, Schedule(schedule))
    heads = None
    for word in words:
        if word in CHANGES:
            config = replace(config, **CHANGES[word])
        elif word[0] == "s":
            config = replace(config, stages=int(word[1:]))
        elif word[0] == "k":
            config = replace(config, more_keys=int(word[1:]))
        elif word[0] == "h":
            heads = int(word[1:])
        else:
            raise SystemExit(f"unknown word {word!r} in variant {text!r}")
    return config, heads


def compile_variant(text: str, head_dim: int, dtype: str) -> str:
    """Compile into Triton's cache; what went wrong, or nothing."""
    try:
        hopper_binary(head_dim, getattr(torch, dtype), parsed(text, head_dim, dtype)[0])
    except Exception as error:
        return str(error)[-300:]
    return ""


def time_variants(
    name: str, length: int, head_dim: int, dtype: str, heads: int, variants: list[str], rounds: int
) -> None:
    """Print a line per variant."""
    device = torch.device("cuda", 0)
    found = case(name, length, "cuda")
    q, k, v = (torch.randn(1, heads, length, head_dim, device=device, dtype=getattr(torch, dtype)) for _ in range(3))
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3], device=device)
    compiled, scale = cm.compile(found.mask), head_dim**-0.5
    descriptors = {128: compiled.descriptor(length, length, device)}
    reference = attention_cuda(q, k, v, descriptors[128], scale)[0].float()
    calls: dict[str, Callable[[], object]] = {
        PORTABLE: _graph(partial(attention_cuda, q, k, v, descriptors[128], scale)),
    }
    for text in variants:
        config, together = parsed(text, head_dim, dtype)
        if config.rows not in descriptors:
            descriptors[config.rows] = compiled.descriptor(length, length, device, rows=config.rows)
        launch = prepare_launch(q, k, v, out, lse, descriptors[config.rows], scale, config)
        if together is not None:
            together = min(together, heads)
            launch.arguments[-3:-1] = [together, together]
        out.fill_(float("nan"))
        launch()
        error = ((out.float() - reference).norm() / reference.norm()).item()
        print(f"{text}: relative difference {error:.1e}", flush=True)
        calls[text] = _graph(launch)
    report_times(calls, f"{name:8} S={length} D={head_dim} {dtype}", found.flops(1, heads, head_dim), rounds)


def report_times(calls: dict[str, Callable[[], object]], title: str, flops: float, rounds: int) -> None:
    """Time calls in shuffled rounds and print a line for each."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    times: dict[str, list[float]] = {text: [] for text in calls}
    for _ in range(rounds):
        for text in random.sample(list(calls), len(calls)):
            times[text].append(_milliseconds(calls[text], flush, 3))
    for text, measured in times.items():
        median = statistics.median(measured)
        rate = flops / median * 1e-9
        print(f"{title} {text:20} {median:.4f} ms {rate:.1f} TFLOP/s", flush=True)


def main(
    compile_one: Callable[[str, int, str], str],
    time_all: Callable[[str, int, int, str, int, list[str], int], None],
    default: str,
) -> None:
    """Compile the variants, then time them on each mask and length."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--masks", default="causal,clear")
    parser.add_argument("--lengths", default="8192")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--variants", default=default)
    options = parser.parse_args()
    variants = options.variants.split(",")
    with ProcessPoolExecutor() as pool:
        job = partial(compile_one, head_dim=options.head_dim, dtype=options.dtype)
        faults = dict(zip(variants, pool.map(job, variants), strict=True))
    for text, fault in faults.items():
        if fault:
            print(f"{text}: {fault}", flush=True)
    usable = [text for text in variants if not faults[text]]
    for name in options.masks.split(","):
        for length in map(int, options.lengths.split(",")):
            time_all(name, length, options.head_dim, options.dtype, options.heads, usable, options.rounds)


if __name__ == "__main__":
    main(compile_variant, time_variants, DEFAULT)
