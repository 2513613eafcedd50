"""Functions of upstream dialects as machine code for this computer, compiled by MLIR's execution engine."""

from __future__ import annotations

import contextlib
import ctypes
import platform
import struct
import tempfile
from array import array
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from compilemask.errors import TargetError
from compilemask.passes.instrument import current_observers
from compilemask.runtime.cpu import object_cache
from compilemask.runtime.cpu.host_object import LoadedObject
from compilemask.runtime.cpu.upstream_mlir import bindings, version

PIPELINE = (
    "builtin.module(canonicalize,sccp,cse,func.func(loop-invariant-code-motion),canonicalize,convert-scf-to-cf,"
    "expand-strided-metadata,convert-vector-to-llvm,convert-math-to-llvm,convert-to-llvm,reconcile-unrealized-casts)"
)
"""From scf, vector, memref, math and arith to LLVM."""
_OPTIMIZATION = 3
_Entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Arguments:
    """The arguments of a function of memrefs [n] and f32 numbers: an array of the address of each one's bytes.

    A memref is five arguments: two addresses, an offset, its size and its stride. Memory is a tensor, or an array of
    i64. Tensors are not kept alive: who calls the function does that.
    """

    def __init__(self, memory: Sequence[torch.Tensor | array[int]], numbers: Sequence[float] = ()) -> None:
        values: list[int] = []
        for x in memory:
            address, size = x.buffer_info() if isinstance(x, array) else (x.data_ptr(), x.numel())
            values += (address, address, 0, size, 1)
        self._arrays = [x for x in memory if isinstance(x, array)]
        self._first_number = len(values)
        values += map(_word, numbers)
        self._values = array("q", values)
        first = self._values.buffer_info()[0]
        self._places = array("q", range(first, first + 8 * len(values), 8))
        self.address = self._places.buffer_info()[0]

    def exchange(self, tensors: Sequence[torch.Tensor], *numbers: float) -> None:
        """Put others of the same sizes in place of the first tensors and numbers: far cheaper than new arguments."""
        values = self._values
        for place, x in enumerate(tensors):
            values[5 * place] = values[5 * place + 1] = x.data_ptr()
        for place, number in enumerate(numbers, self._first_number):
            values[place] = _word(number)


def _word(number: float) -> int:
    """The bits of an f32 number."""
    return int.from_bytes(struct.pack("<f", number), "little")


class HostFunction:
    """Machine code that can be called, in several threads at a time; it runs without Python's lock."""

    def __init__(self, address: int, owner: object) -> None:
        self._entry = _Entry(address)
        # What the code lives in.
        self._owner = owner

    def __call__(self, arguments: Arguments) -> None:
        self._entry(arguments.address)


def compile_host_function(text: str, name: str) -> HostFunction:
    """The function of that name in a module, from disk if it was compiled before. Raises MissingDependencyError without
    MLIR's bindings, TargetError if it cannot compile the module."""
    identity = "\n".join((text, PIPELINE, str(_OPTIMIZATION), version(), _processor()))
    data = object_cache.find(identity)
    if data is not None and (found := LoadedObject.of(data)) is not None:
        return HostFunction(found.address(_entry_of(name)), found)
    engine = _compiled(text, name)
    function = HostFunction(engine.raw_lookup(name), engine)
    # Where nothing can be written, nothing is kept.
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "object"
        engine.dump_to_object_file(str(path))
        object_cache.keep(identity, path.read_bytes())
    return function


def _entry_of(name: str) -> str:
    """The function that takes the address of its arguments' addresses, as the engine names it."""
    return f"_mlir_{name}"


def _compiled(text: str, name: str) -> Any:
    """An execution engine with the module's code."""
    mlir = bindings()
    with mlir.ir.Context():
        try:
            module = mlir.ir.Module.parse(text)
            mlir.passmanager.PassManager.parse(PIPELINE).run(module.operation)
            lowered = str(module) if current_observers() else ""
            engine = mlir.execution_engine.ExecutionEngine(module, opt_level=_OPTIMIZATION)
            engine.initialize()
        except (mlir.ir.MLIRError, RuntimeError) as error:
            raise TargetError(f"MLIR cannot compile this module for the CPU: {error}") from error
    for observer in current_observers():
        observer.compiled(name, "cpu", {"mlir": text, "llvm": lowered})
    return engine


@cache
def _processor() -> str:
    """What code is made for: instructions that one processor has are foreign to another."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().split("\n\n")[0].splitlines() if file.exists() else []
    says = [line for line in lines if line.startswith(("model", "flags", "Features", "CPU"))]
    return "\n".join((platform.machine(), platform.processor(), *says))
