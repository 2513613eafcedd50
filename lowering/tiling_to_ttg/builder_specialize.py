"""Warp specialization of a kernel under construction; values used inside partitions are captured as they are met."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Protocol

from xdsl.ir import Block, BlockArgument, Region, SSAValue

from compilemask.dialects.narrowing import is_tensor
from compilemask.dialects.triton import ttg
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt.control_flow import RegionEmitter


class SpecializingEmitter(RegionEmitter, Protocol):
    """What a warp specialization needs of the kernel that it belongs to."""

    def insert_into(self, block: Block, *, isolated: bool = False) -> AbstractContextManager[None]:
        """Emit into `block` inside the `with`; an isolated block sees nothing around it."""
        ...

    def open_partition(self, block: Block, owner: WarpSpecialize) -> AbstractContextManager[None]:
        """Values from around `block` are captured by its owner inside the `with`."""
        ...


class WarpSpecialize:
    """`ttg.warp_specialize`: a `default()` region on the kernel's own warps, and `partition(...)` regions beside it."""

    def __init__(self, kernel: SpecializingEmitter) -> None:
        self.kernel = kernel
        self.captures: list[SSAValue] = []
        self._default: Block | None = None
        self._partitions: list[tuple[Block, int, int | None]] = []

    def __enter__(self) -> WarpSpecialize:
        return self

    @contextmanager
    def default(self) -> Generator[None, None, None]:
        """What the kernel's own warps do; sees the values around it as any region does."""
        if self._default is not None:
            raise LoweringError("the default region is already filled")
        self._default = Block()
        with self.kernel.insert_into(self._default):
            yield
            self.kernel.emit_op(ttg.WarpYieldOp())

    @contextmanager
    def partition(self, num_warps: int, registers: int | None = None) -> Generator[None, None, None]:
        """What `num_warps` further warps do, with so many registers a thread.

        Scalars, buffers, barriers and descriptors from outside may be used; tensors may not.
        """
        block = Block(arg_types=[value.type for value in self.captures])
        for argument, value in zip(block.args, self.captures, strict=True):
            argument.name_hint = value.name_hint
        self._partitions.append((block, num_warps, registers))
        with self.kernel.open_partition(block, self), self.kernel.insert_into(block, isolated=True):
            yield
            self.kernel.emit_op(ttg.WarpReturnOp())

    def capture(self, value: SSAValue, block: Block) -> BlockArgument:
        """The argument of a partition's block that stands for a value from outside."""
        if is_tensor(value.type):
            raise LoweringError(f"a partition cannot use {value.type} from outside; pass it through shared memory")
        for index, known in enumerate(self.captures):
            if known is value:
                return block.args[index]
        self.captures.append(value)
        for partition, *_ in self._partitions:
            partition.insert_arg(value.type, len(partition.args)).name_hint = value.name_hint
        return block.args[-1]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            return
        if self._default is None or not self._partitions:
            raise LoweringError("a warp specialization needs a default() and at least one partition()")
        self.kernel.emit_op(
            ttg.WarpSpecializeOp(
                Region(self._default),
                [Region(block) for block, *_ in self._partitions],
                [warps for _, warps, _ in self._partitions],
                registers=self._registers(),
                captures=self.captures,
            )
        )

    def _registers(self) -> Sequence[int] | None:
        given = [registers for *_, registers in self._partitions if registers is not None]
        if given and len(given) != len(self._partitions):
            raise LoweringError("either all partitions say how many registers they want or none does")
        return given or None
