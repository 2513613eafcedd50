"""Functions of upstream dialects as machine code for this computer, compiled by MLIR's execution engine."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

import torch

from compilemask.errors import TargetError
from compilemask.passes.instrument import current_observers
from compilemask.runtime.upstream_mlir import bindings

PIPELINE = (
    "builtin.module(canonicalize,cse,func.func(loop-invariant-code-motion),convert-scf-to-cf,expand-strided-metadata,"
    "convert-vector-to-llvm,convert-math-to-llvm,convert-to-llvm,reconcile-unrealized-casts)"
)
"""From scf, vector, memref, math and arith to LLVM."""
_OPTIMIZATION = 3
_Entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Arguments:
    """The arguments of a function of memrefs [n] and f32 numbers: an array of the address of each one's bytes.

    A memref is five arguments: two addresses, an offset, its size and its stride.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], numbers: Sequence[float] = ()) -> None:
        values: list[int] = []
        for x in tensors:
            address = x.data_ptr()
            values += [address, address, 0, x.numel(), 1]
        values += [int.from_bytes(struct.pack("<f", number), "little") for number in numbers]
        self._memory = tensors
        self._values = (ctypes.c_int64 * len(values))(*values)
        first = ctypes.addressof(self._values)
        self._places = (ctypes.c_void_p * len(values))(*range(first, first + 8 * len(values), 8))
        self.address = ctypes.addressof(self._places)


class HostFunction:
    """Machine code that can be called, in several threads at a time; it runs without Python's lock."""

    def __init__(self, address: int, owner: object) -> None:
        self._entry = _Entry(address)
        # What the code lives in.
        self._owner = owner

    def __call__(self, arguments: Arguments) -> None:
        self._entry(arguments.address)


def compile_host_function(text: str, name: str) -> HostFunction:
    """The function of that name in a module. Raises MissingDependencyError without MLIR's bindings, TargetError if it
    cannot compile the module."""
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
    return HostFunction(engine.raw_lookup(name), engine)
