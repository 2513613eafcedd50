"""Calls of attention functions that MLIR compiled for this computer, in as many threads as PyTorch uses."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch

from compilemask.lowering.tiling_to_scf.attention_frame import Blocks, Signature
from compilemask.runtime import upstream_mlir
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.host_code import Arguments, HostFunction, compile_host_function

LARGEST_HEAD_DIM = 1024
"""A thread keeps blocks of rows and of sums on its stack."""
_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_VECTOR_BITS = {"AVX512": 512, "AVX2": 256}
_WORTH_A_THREAD = 1 << 20
"""Multiplications, about as many as are done while a thread is woken."""
_lock = threading.Lock()

Emit = Callable[[int, Blocks], str]
"""From a head dimension and blocks to the module of a function."""


def is_taken(query: torch.Tensor) -> bool:
    """Whether there are such functions for a query [B, Hq, Sq, D], and MLIR to compile them."""
    fits = query.dtype in _TYPES and 0 < query.shape[3] <= LARGEST_HEAD_DIM
    return fits and upstream_mlir.find() is not None


def readable(x: torch.Tensor) -> torch.Tensor:
    """In f32, with rows whose numbers lie side by side."""
    x = x if x.dtype == torch.float32 else x.to(torch.float32)
    return x if x.stride(-1) == 1 else x.contiguous()


def call(
    emit: Emit,
    signature: Signature,
    tensors: Mapping[str, torch.Tensor],
    heads: tuple[int, int],
    descriptor: Descriptor,
    scale: float,
) -> None:
    """Run the function of a signature for its tensors, by name, with (query heads, key heads).

    Those called like a key are of key heads, the others of query heads; `descriptor` is what the function follows.
    """
    given = [tensors[name] for name in (*signature.strided, *signature.per_query)]
    batch, of_items, _, head_dim = tensors[signature.strided[-1]].shape
    sizes = _sizes(signature, tensors, heads, descriptor, (batch, of_items))
    arguments = Arguments((*given, descriptor.buffer, sizes, [0]), (scale,))
    layout = descriptor.layout
    multiplications = batch * heads[0] * layout.queries * layout.keys * head_dim
    threads = min(torch.get_num_threads(), sizes[0], 1 + multiplications // _WORTH_A_THREAD)
    _run(_function(emit, signature.name, head_dim), arguments, threads)


def _sizes(
    signature: Signature,
    tensors: Mapping[str, torch.Tensor],
    heads: tuple[int, int],
    descriptor: Descriptor,
    items: tuple[int, int],
) -> list[int]:
    """What `Signature.sizes` says, for a function with (batches, heads) times the descriptor's tiles as items."""
    layout = descriptor.layout
    values = {
        "items": items[0] * items[1] * layout.query_tiles,
        "tiles": layout.query_tiles,
        "positions": layout.queries,
        "heads": items[1],
        "group": heads[0] // heads[1],
        "queries": tensors["lse"].shape[2],
        "rows": layout.rows,
        "batch_masks": layout.heads if layout.batch > 1 else 0,
        "head_masks": int(layout.heads > 1),
        "order": layout.order,
        "records": layout.tiles,
        "visits": layout.visits,
        "patterns": layout.patterns,
    }
    for name, of_axes in _stride_names(signature.strided):
        values.update(zip(of_axes, tensors[name].stride(), strict=False))  # not that of the last axis, which is 1
    return [values[name] for name in signature.sizes]


@cache
def _stride_names(strided: tuple[str, ...]) -> list[tuple[str, tuple[str, str, str]]]:
    """The names of the strides of tensors by name."""
    return [(name, (f"{name}_batch", f"{name}_head", f"{name}_row")) for name in strided]


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


def _function(emit: Emit, name: str, head_dim: int) -> HostFunction:
    with _lock:
        return _compiled(emit, name, head_dim, _VECTOR_BITS.get(torch.backends.cpu.get_cpu_capability(), 128))


@cache
def _compiled(emit: Emit, name: str, head_dim: int, vector_bits: int) -> HostFunction:
    return compile_host_function(emit(head_dim, Blocks.choose(vector_bits)), name)
