"""Asynchronous matrix products (wgmma): computed when they are waited for, from what their operands hold then."""

from __future__ import annotations

import numpy as np
from xdsl.ir import Attribute

from compilemask.dialects.semantics.triton_gpu_order import History, KernelError
from compilemask.dialects.semantics.triton_gpu_shared import Buffer
from compilemask.dialects.semantics.triton_memory import Array, array_dtype


class Product:
    """The result of a `ttng.warp_group_dot`: an accumulator that nothing but products may use before a wait."""

    def __init__(self, a: Array | Buffer, b: Buffer, c: Array | Product | None, element: Attribute, label: str) -> None:
        self.a, self.b, self.c, self.element, self.label = a, b, c, element, label
        self.value: Array | None = None

    @property
    def buffers(self) -> list[Buffer]:
        """The operands in shared memory."""
        return [operand for operand in (self.a, self.b) if isinstance(operand, Buffer)]

    def start(self, history: History) -> None:
        """Check the operands, which nobody may write from now on."""
        for buffer in self.buffers:
            buffer.read(history, asynchronous=True)
            buffer.hold(self.label)

    def finish(self, history: History) -> None:
        """Compute the value; the operands are free."""
        for buffer in self.buffers:
            buffer.finish_read(history)
            buffer.let_go(self.label)
        a, b = (x.get() if isinstance(x, Buffer) else x for x in (self.a, self.b))
        dtype = array_dtype(self.element)
        inner = np.dtype(np.float32) if dtype.kind == "f" else dtype
        total = np.matmul(a.astype(inner, copy=False), b.astype(inner, copy=False))
        if self.c is not None:
            accumulator = self.c.value if isinstance(self.c, Product) else self.c
            if accumulator is None:
                raise KernelError(f"{self.label} adds to a product that another partition started")
            total = total + accumulator
        self.value = total.astype(dtype, copy=False)
