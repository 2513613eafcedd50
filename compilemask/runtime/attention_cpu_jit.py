"""Attention on the CPU by a function that MLIR compiled: the default where its bindings are installed."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch

from compilemask.lowering.tiling_to_scf import attention as source
from compilemask.lowering.tiling_to_scf.attention_frame import SIZES, Blocks
from compilemask.runtime import upstream_mlir
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.host_code import Arguments, HostFunction, compile_host_function
from compilemask.runtime.scoring import Scoring

LARGEST_HEAD_DIM = 1024
"""A thread keeps a block of queries and of sums on its stack."""
_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_VECTOR_BITS = {"AVX512": 512, "AVX2": 256}
_WORTH_A_THREAD = 1 << 20
"""Multiplications, about as many as are done while a thread is woken."""
_lock = threading.Lock()


def takes(query: torch.Tensor, scoring: Scoring) -> bool:
    """Whether there is such a function for a query [B, Hq, Sq, D] and a score modification."""
    fits = query.dtype in _TYPES and 0 < query.shape[3] <= LARGEST_HEAD_DIM and scoring.op is None
    return fits and upstream_mlir.find() is not None


def attention_cpu_jit(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, descriptor: Descriptor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `attention_cpu`, for arguments that it `takes`."""
    q, k, v = (_readable(x) for x in (query, key, value))
    out = torch.empty(query.shape, dtype=torch.float32)
    lse = torch.empty(query.shape[:3], dtype=torch.float32)
    sizes = torch.tensor(_sizes(q, k, v, descriptor))
    counter = torch.zeros(1, dtype=torch.int64)
    arguments = Arguments((q, k, v, out, lse, descriptor.buffer, sizes, counter), (scale,))
    multiplications = out.numel() * k.shape[2]
    threads = min(torch.get_num_threads(), int(sizes[0]), 1 + multiplications // _WORTH_A_THREAD)
    _run(_function(query.shape[3]), arguments, threads)
    return out.to(query.dtype), lse


def _readable(x: torch.Tensor) -> torch.Tensor:
    """In f32, with rows whose numbers lie side by side."""
    x = x.to(torch.float32)
    return x if x.stride(-1) == 1 else x.contiguous()


def _sizes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, descriptor: Descriptor) -> list[int]:
    layout = descriptor.layout
    values = {
        "items": q.shape[0] * q.shape[1] * layout.query_tiles,
        "query_tiles": layout.query_tiles,
        "query_heads": q.shape[1],
        "group": q.shape[1] // k.shape[1],
        "queries": layout.queries,
        "rows": layout.rows,
        "batch_masks": layout.heads if layout.batch > 1 else 0,
        "head_masks": int(layout.heads > 1),
        "order": layout.order,
        "visits": layout.visits,
        "patterns": layout.patterns,
    }
    for name, x in (("query", q), ("key", k), ("value", v)):
        values |= {f"{name}_batch": x.stride(0), f"{name}_head": x.stride(1), f"{name}_row": x.stride(2)}
    return [values[name] for name in SIZES]


def _run(function: HostFunction, arguments: Arguments, threads: int) -> None:
    """Call a function in so many threads, this one among them."""
    others = [_pool().submit(function, arguments) for _ in range(threads - 1)]
    function(arguments)
    for other in others:
        other.result()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="compilemask")


# Threads do not survive in a child process.
os.register_at_fork(after_in_child=_pool.cache_clear)


def _function(head_dim: int) -> HostFunction:
    with _lock:
        return _compiled(head_dim)


@cache
def _compiled(head_dim: int) -> HostFunction:
    bits = _VECTOR_BITS.get(torch.backends.cpu.get_cpu_capability(), 128)
    return compile_host_function(source.attention(head_dim, Blocks.choose(bits)), source.NAME)
