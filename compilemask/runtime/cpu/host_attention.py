"""Calls of attention functions that MLIR compiled for this computer, in as many threads as PyTorch uses."""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache

import torch

from compilemask.lowering.descriptor_layout import Layout
from compilemask.lowering.tiling_to_scf.attention_frame import Blocks, Signature
from compilemask.runtime.cpu import upstream_mlir
from compilemask.runtime.cpu.host_code import Arguments, HostFunction, compile_host_function
from compilemask.runtime.descriptor import Descriptor

LARGEST_HEAD_DIM = 1024
"""A thread keeps blocks of rows and of sums on its stack."""
_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_VECTOR_BITS = {"AVX512": 512, "AVX2": 256}
_WORTH_A_THREAD = 1 << 20
"""Multiplications, about as many as are done while a thread is woken."""
KEPT_PLANS = 256
"""Plans of a function that are kept for the next call with the same shapes and strides."""

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


class HostAttention:
    """An attention function for all head dimensions; it is compiled for each one that comes."""

    def __init__(self, emit: Emit, signature: Signature) -> None:
        self._emit, self._signature = emit, signature
        self._names = (*signature.strided, *signature.per_query)
        self._plan = lru_cache(maxsize=KEPT_PLANS)(self._make_plan)
        self._function = cache(self._compile)
        self._lock = threading.Lock()

    def __call__(
        self, tensors: Mapping[str, torch.Tensor], heads: tuple[int, int], descriptor: Descriptor, scale: float
    ) -> None:
        """Run the function for its tensors, by name, with (query heads, key heads).

        Those called like a key are of key heads, the others of query heads; `descriptor` is what the function follows.
        """
        given = [tensors[name] for name in self._names]
        of_items = given[len(self._signature.strided) - 1]
        strides = [x.stride() for x in given[: len(self._signature.strided)]]
        plan = self._plan(_vector_bits(), of_items.shape, tensors["lse"].shape[2], heads, descriptor.layout, *strides)
        plan([*given, descriptor.buffer], scale)

    def _make_plan(
        self,
        vector_bits: int,
        items: Sequence[int],
        queries: int,
        heads: tuple[int, int],
        layout: Layout,
        *strides: tuple[int, ...],
    ) -> _Plan:
        """For (batches, heads) of `items` times the descriptor's tiles as items."""
        batch, of_items, _, head_dim = items
        values = {
            "items": batch * of_items * layout.query_tiles,
            "tiles": layout.query_tiles,
            "positions": layout.queries,
            "heads": of_items,
            "group": heads[0] // heads[1],
            "queries": queries,
            "rows": layout.rows,
            "batch_masks": layout.heads if layout.batch > 1 else 0,
            "head_masks": int(layout.heads > 1),
            "order": layout.order,
            "records": layout.tiles,
            "visits": layout.visits,
            "patterns": layout.patterns,
        }
        for name, (of_batch, of_head, of_row, _) in zip(self._signature.strided, strides, strict=True):
            values |= {f"{name}_batch": of_batch, f"{name}_head": of_head, f"{name}_row": of_row}
        sizes = array("q", [values[name] for name in self._signature.sizes])
        multiplications = batch * heads[0] * layout.queries * layout.keys * head_dim
        threads = min(values["items"], 1 + multiplications // _WORTH_A_THREAD)
        blocks = Blocks.choose(vector_bits, min(layout.queries, layout.rows))
        with self._lock:
            function = self._function(head_dim, blocks)
        return _Plan(function, sizes, threads)

    def _compile(self, head_dim: int, blocks: Blocks) -> HostFunction:
        return compile_host_function(self._emit(head_dim, blocks), self._signature.name)

    def forget(self) -> None:
        """Drop all functions: those that are called from now on are compiled, or loaded from disk, anew."""
        self._plan.cache_clear()
        self._function.cache_clear()


def _vector_bits() -> int:
    """Of this machine."""
    return _VECTOR_BITS.get(torch.backends.cpu.get_cpu_capability(), 128)


class _Plan:
    """All of a call that its tensors' addresses do not decide."""

    def __init__(self, function: HostFunction, sizes: array[int], threads: int) -> None:
        self._function, self._sizes, self._threads = function, sizes, threads
        self._idle: list[tuple[Arguments, array[int]]] = []
        """Arguments with their counters, for the next calls: one for each of as many as there were at a time."""

    def __call__(self, tensors: Sequence[torch.Tensor], scale: float) -> None:
        """Call the function in as many threads as are worth it, this one among them."""
        arguments, counter = self._arguments(tensors, scale)
        others = [
            _pool().submit(_work, self._function, arguments, tensors)
            for _ in range(1, min(torch.get_num_threads(), self._threads))
        ]
        self._function(arguments)
        for other in others:
            other.result()
        self._idle.append((arguments, counter))

    def _arguments(self, tensors: Sequence[torch.Tensor], scale: float) -> tuple[Arguments, array[int]]:
        try:
            arguments, counter = self._idle.pop()
        except IndexError:
            counter = array("q", [0])
            return Arguments((*tensors, self._sizes, counter), (scale,)), counter
        arguments.exchange(tensors, scale)
        counter[0] = 0
        return arguments, counter


def _work(function: HostFunction, arguments: Arguments, tensors: Sequence[torch.Tensor]) -> None:
    """What other threads do. They keep the tensors, in case that an interrupted call no longer does."""
    function(arguments)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="compilemask")


# Threads do not survive in a child process.
os.register_at_fork(after_in_child=_pool.cache_clear)
