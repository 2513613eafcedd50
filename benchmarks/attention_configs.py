"""Times variants of the portable attention kernel on this GPU, to choose the defaults of `AttentionConfig`.

    python benchmarks/attention_configs.py --masks causal,clear --length 8192 --head-dim 128 \
        --configs 128x64x8x3,128x128x8x2

A configuration is block_q x block_kv x warps x stages. All variants are compiled first, in parallel; then they are
timed in shuffled rounds and compared with the first one.
"""

from __future__ import annotations

import argparse
import random
import statistics
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import torch
from cases import case
from forward import FLUSH_BYTES, _graph, _milliseconds

import compilemask as cm
from compilemask.dialects.triton.printing import print_generic
from compilemask.lowering.tiling_to_tt.attention import AttentionConfig, attention_module, attention_op, emit
from compilemask.runtime.gpu.attention_cuda import ELEMENTS, kernel_arguments
from compilemask.runtime.gpu.compile_kernel import Options, compile_for, kernel_for
from compilemask.runtime.gpu.launch import launch

DEFAULT = "128x64x8x3,128x64x4x3,128x128x8x2,128x128x8x3,128x64x8x2,64x64x4x3,128x32x8x3"


def kernel_text(config: AttentionConfig, head_dim: int, dtype: str) -> str:
    """Triton IR of one variant."""
    element = ELEMENTS[getattr(torch, dtype)]
    return print_generic(emit(attention_op(attention_module(head_dim, element)), config))


def compile_variant(config: AttentionConfig, head_dim: int, dtype: str, target: str) -> str:
    """Compile into Triton's cache; what went wrong, or nothing."""
    try:
        compile_for(kernel_text(config, head_dim, dtype), target, Options(config.num_warps, config.num_stages))
    except Exception as error:
        return str(error)[-300:]
    return ""


def _parsed(text: str) -> AttentionConfig:
    return AttentionConfig(*map(int, text.split("x")))


def time_variants(
    name: str, length: int, head_dim: int, dtype: str, configs: list[AttentionConfig], rounds: int
) -> None:
    """Print a line per variant."""
    device = torch.device("cuda", 0)
    found = case(name, length, "cuda")
    q, k, v = (torch.randn(1, 16, length, head_dim, device=device, dtype=getattr(torch, dtype)) for _ in range(3))
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3], device=device)
    descriptor = cm.compile(found.mask).descriptor(length, length, device)
    reference = cm.attention(q, k, v, descriptor).float()
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)
    scale = head_dim**-0.5
    calls, times = {}, {}
    for config in configs:
        kernel = kernel_for(kernel_text(config, head_dim, dtype), device, Options(config.num_warps, config.num_stages))
        grid = (descriptor.layout.query_tiles * config.programs_per_tile, 16, 1)
        call = partial(launch, kernel, grid, device, [*kernel_arguments(q, k, v, out, lse, descriptor), scale])
        out.fill_(float("nan"))
        call()
        error = ((out.float() - reference).norm() / reference.norm()).item()
        print(f"{config}: relative difference {error:.1e}, {kernel.binary.shared_bytes} bytes shared", flush=True)
        calls[config], times[config] = _graph(call), []
    for _ in range(rounds):
        for config in random.sample(configs, len(configs)):
            times[config].append(_milliseconds(calls[config], flush, 3))
    for config in configs:
        median = statistics.median(times[config])
        rate = found.flops(1, 16, head_dim) / median * 1e-9
        print(f"{name:8} S={length} D={head_dim} {dtype} {config} {median:.4f} ms {rate:.1f} TFLOP/s", flush=True)


def main() -> None:
    """Compile, then time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--masks", default="causal,clear")
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--configs", default=DEFAULT)
    options = parser.parse_args()
    configs = [_parsed(text) for text in options.configs.split(",")]
    target = "cuda:{}{}".format(*torch.cuda.get_device_capability())
    with ProcessPoolExecutor() as pool:
        job = partial(compile_variant, head_dim=options.head_dim, dtype=options.dtype, target=target)
        faults = dict(zip(configs, pool.map(job, configs), strict=True))
    for config, fault in faults.items():
        if fault:
            print(f"{config}: {fault}", flush=True)
    usable = [config for config in configs if not faults[config]]
    for name in options.masks.split(","):
        time_variants(name, options.length, options.head_dim, options.dtype, usable, options.rounds)


if __name__ == "__main__":
    main()
