"""Kernels with producers and consumers compute the right thing in any order, and every mistake in one is found.

A mutant is a kernel in which one operation is left out or changed: an arrival, wait, fence, expectation, copy, phase,
number of bytes or arrivals, or the index of a buffer. Each must fail for one of a few seeds: an error, a deadlock, or
a wrong result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, bf16, f32, i32
from xdsl.ir import Operation, SSAValue

from compilemask.dialects.semantics.triton_gpu import KernelError, MemoryFault, TensorMap, run_kernel
from compilemask.dialects.semantics.triton_memory import round_bf16
from compilemask.dialects.triton import ttg, ttng
from compilemask.dialects.triton.layouts import BARRIER_LAYOUT, BlockedLayout
from compilemask.lowering.tiling_to_tt.builder import ptr
from compilemask.lowering.tiling_to_ttg.builder import Arg, GpuKernelBuilder, Value, tensor_map, wgmma
from compilemask.lowering.tiling_to_ttg.builder_memory import Barriers, Buffer, Descriptor

TILE = 64
GROUPS = 2
STOP = -1
MUTANT_SEEDS = 50


def ring(count: Value, stages: int) -> tuple[Value, Value]:
    """The buffer and the phase of the count-th tile that goes through a ring of buffers."""
    return count % stages, (count // stages) % 2


def finish(kb: GpuKernelBuilder, out: Buffer, d: Descriptor, row: Value, column: Value, total: Value) -> None:
    """Store a tile of the result, through shared memory and TMA."""
    out.store(kb.cast(total, bf16))
    kb.fence_async_shared()
    d.store([row, column], out)
    kb.store_wait()


def name_barriers(**barriers: Barriers) -> None:
    """Names for errors."""
    for name, array in barriers.items():
        array.array.named(name)


# ---------------------------------------------------------------- a pipeline of 1 to 3 stages


def pipeline(stages: int) -> ModuleOp:
    """D = A @ B^T, one tile of 64 x 64 a program, blocks of K through `stages` pairs of buffers."""
    kb = GpuKernelBuilder("pipeline", [*map(tensor_map, "abd"), Arg("steps", i32)])
    a, b, d = (kb.descriptor(name, (TILE, TILE), bf16) for name in "abd")
    steps, row, column = kb.arg("steps"), kb.program_id(0) * TILE, kb.program_id(1) * TILE
    left = kb.alloc((TILE, TILE), bf16, count=stages).named("left")
    right = kb.alloc((TILE, TILE), bf16, count=stages).named("right")
    out = kb.alloc((TILE, TILE), bf16).named("out")
    full, empty = kb.barriers(stages), kb.barriers(stages)
    name_barriers(full=full, empty=empty)
    kb.fence_async_shared()
    with kb.warp_specialize() as roles:
        with roles.partition(num_warps=1), kb.for_loop(0, steps, 1) as loop:
            place, phase = ring(loop.index, stages)
            empty[place].wait(phase ^ 1)
            full[place].expect(a.bytes + b.bytes)
            a.load([row, loop.index * TILE], left[place], full[place])
            b.load([column, loop.index * TILE], right[place], full[place])
        with roles.default():
            with kb.for_loop(0, steps, 1, [kb.zeros((TILE, TILE), f32, wgmma(TILE))]) as loop:
                place, phase = ring(loop.index, stages)
                full[place].wait(phase)
                product = kb.warp_group_dot(left[place], right[place].transpose(), loop.carried[0])
                total = kb.warp_group_dot_wait(product)
                empty[place].arrive()
                loop.yield_(total)
            finish(kb, out, d, row, column, loop.results[0])
    return kb.finish()


# ---------------------------------------------------------------- two consumers that take turns


@dataclass(frozen=True)
class Turns:
    """Two consumers take turns with a buffer, by mbarriers or by named barriers."""

    kb: GpuKernelBuilder
    order: Barriers | None

    def wait(self, group: int, step: Value) -> None:
        """Until it is the group's turn."""
        if self.order is None:
            self.kb.bar_sync(8 + group, GROUPS * 128)
        else:
            self.order[group].wait((step % 2) ^ 1 if group == 0 else step % 2)

    def pass_on(self, group: int) -> None:
        """The turn of the other group."""
        other = (group + 1) % GROUPS
        if self.order is None:
            self.kb.bar_arrive(8 + other, GROUPS * 128)
        else:
            self.order[other].arrive()

    def begin(self, group: int) -> None:
        """Group 0 has the first turn."""
        if self.order is None and group == GROUPS - 1:
            self.kb.bar_arrive(8, GROUPS * 128)


def ping_pong(stages: int, *, named: bool) -> ModuleOp:
    """D = A @ B^T, 128 x 64 a program; each of two groups doubles its tile of A in one buffer that they share."""
    kb = GpuKernelBuilder("ping_pong", [*map(tensor_map, "abd"), Arg("steps", i32)])
    a, b, d = (kb.descriptor(name, (TILE, TILE), bf16) for name in "abd")
    steps, row = kb.arg("steps"), kb.program_id(0) * (GROUPS * TILE)
    left = [kb.alloc((TILE, TILE), bf16, count=stages).named(f"left.{group}") for group in range(GROUPS)]
    right = kb.alloc((TILE, TILE), bf16, count=stages).named("right")
    shared = kb.alloc((TILE, TILE), bf16).named("shared")
    out = kb.alloc((TILE, TILE), bf16, count=GROUPS).named("out")
    full, empty = kb.barriers(stages), kb.barriers(stages, arrivals=GROUPS)
    order = None if named else kb.barriers(GROUPS)
    turns = Turns(kb, order)
    name_barriers(full=full, empty=empty, **({} if order is None else {"order": order}))
    kb.fence_async_shared()

    def consume(group: int) -> None:
        turns.begin(group)
        with kb.for_loop(0, steps, 1, [kb.zeros((TILE, TILE), f32, wgmma(TILE))]) as loop:
            place, phase = ring(loop.index, stages)
            full[place].wait(phase)
            tile = left[group][place].load(wgmma(TILE))
            turns.wait(group, loop.index)
            shared.store(tile + tile)
            kb.fence_async_shared()
            product = kb.warp_group_dot(shared, right[place].transpose(), loop.carried[0])
            total = kb.warp_group_dot_wait(product)
            turns.pass_on(group)
            empty[place].arrive()
            loop.yield_(total)
        finish(kb, out[group], d, row + group * TILE, kb.constant(0, i32) + 0, loop.results[0] * 0.5)

    with kb.warp_specialize() as roles:
        with roles.default():
            consume(0)
        with roles.partition(num_warps=4):
            consume(1)
        with roles.partition(num_warps=1), kb.for_loop(0, steps, 1) as loop:
            place, phase = ring(loop.index, stages)
            empty[place].wait(phase ^ 1)
            full[place].expect((GROUPS * TILE + TILE) * TILE * 2)
            for group in range(GROUPS):
                a.load([row + group * TILE, loop.index * TILE], left[group][place], full[place])
            b.load([0, loop.index * TILE], right[place], full[place])
    return kb.finish()


# ---------------------------------------------------------------- programs that fetch their tiles


def persistent() -> ModuleOp:
    """D = A @ B^T with K = 64, tiles of rows taken from a counter; the producer passes their numbers on."""
    args = [*map(tensor_map, "abd"), Arg("counter", ptr(i32), 16), Arg("tiles", i32)]
    kb = GpuKernelBuilder("persistent", args)
    a, b, d = (kb.descriptor(name, (TILE, TILE), bf16) for name in "abd")
    counter, tiles = kb.arg("counter"), kb.arg("tiles")
    left, right = kb.alloc((TILE, TILE), bf16).named("left"), kb.alloc((TILE, TILE), bf16).named("right")
    out = kb.alloc((TILE, TILE), bf16).named("out")
    number = kb.alloc((8,), i32, BARRIER_LAYOUT).named("number")
    full, empty, known, read = (kb.barriers(1) for _ in range(4))
    name_barriers(full=full, empty=empty, known=known, read=read)
    kb.fence_async_shared()

    def tell(tile: Value, count: Value) -> None:
        read[0].wait((count % 2) ^ 1)
        number.store(kb.full((8,), tile, i32, BlockedLayout.of([8], [32], [1], [0])))
        known[0].arrive()

    def hear(count: Value) -> Value:
        known[0].wait(count % 2)
        tile = kb.reduce(number.load(BlockedLayout.of([8], [32], [4], [0])), 0, "max")
        read[0].arrive()
        return tile

    zero, one = kb.program_id(2), kb.program_id(2) + 1
    with kb.warp_specialize() as roles:
        with roles.partition(num_warps=1):
            with kb.while_loop([kb.atomic_add(counter, one), zero]) as loop:
                with loop.condition() as (tile, count):
                    loop.continue_if(tile < tiles, tile, count)
                with loop.body() as (tile, count):
                    tell(tile, count)
                    empty[0].wait((count % 2) ^ 1)
                    full[0].expect(a.bytes + b.bytes)
                    a.load([tile * TILE, 0], left, full[0])
                    b.load([0, 0], right, full[0])
                    loop.yield_(kb.atomic_add(counter, one), count + 1)
            tell(zero + STOP, loop.results[1])
        with roles.default(), kb.while_loop([hear(zero), zero]) as loop:
            with loop.condition() as (tile, count):
                loop.continue_if(tile >= 0, tile, count)
            with loop.body() as (tile, count):
                full[0].wait(count % 2)
                total = kb.warp_group_dot_wait(kb.warp_group_dot(left, right.transpose()))
                empty[0].arrive()
                finish(kb, out, d, tile * TILE, kb.constant(0, i32) + 0, total)
                loop.yield_(hear(count + 1), count + 1)
    return kb.finish()


# ---------------------------------------------------------------- running them


@dataclass(frozen=True)
class Case:
    """A kernel and how to run it."""

    make: Callable[[], ModuleOp]
    grid: tuple[int, int]
    rows: int
    columns: int
    steps: int
    tiles: int | None = None

    def is_right(self, module: ModuleOp, seed: int) -> bool:
        """Whether a run gives A @ B^T."""
        rng = np.random.default_rng(0)
        shapes = ((self.rows, TILE * self.steps), (self.columns, TILE * self.steps))
        a, b = (round_bf16(rng.standard_normal(shape).astype(np.float32)) for shape in shapes)
        d = np.full((self.rows, self.columns), np.nan, dtype=np.float32)
        args: list[Any] = [TensorMap(a), TensorMap(b), TensorMap(d)]
        args += [self.steps] if self.tiles is None else [np.zeros(1, dtype=np.int32), self.tiles]
        run_kernel(module, self.grid, args, seed=seed)
        return np.allclose(d, a @ b.T, rtol=1e-2, atol=1e-2)


CASES = {
    **{f"pipeline of {n}": Case(lambda n=n: pipeline(n), (1, 2), 40, 128, 7) for n in (1, 2, 3)},
    "ping-pong": Case(lambda: ping_pong(3, named=False), (1, 1), 128, 64, 7),
    "ping-pong by name": Case(lambda: ping_pong(3, named=True), (1, 1), 128, 64, 7),
    "persistent": Case(persistent, (2, 1), 192, 64, 1, tiles=3),
}


@cache
def module_of(case: str) -> ModuleOp:
    """The kernel of a case, made once."""
    return CASES[case].make()


@pytest.mark.parametrize("case", CASES)
def test_right_in_any_order(case: str) -> None:
    wrong = [seed for seed in range(50) if not CASES[case].is_right(module_of(case), seed)]
    assert not wrong


# ---------------------------------------------------------------- mutants

Mutation = Callable[[Any], None]


def remove(op: Operation) -> None:
    """Leave the operation out; its results are what it would pass on."""
    for result, operand in zip(op.results, op.operands, strict=False):
        result.replace_all_uses_with(operand)
    op.detach()
    op.erase()


def other_phase(op: ttng.WaitBarrierOp) -> None:
    """Wait for the other phase."""
    op.operands[1] = _before(op, op.phase, arith.XOrIOp, 1)


def next_buffer(op: ttg.MemDescIndexOp) -> None:
    """Take the next of the buffers, or the first after the last."""
    source = op.src.type
    assert isinstance(source, ttg.MemDescType)
    op.operands[1] = _before(op, _before(op, op.index, arith.AddiOp, 1), arith.RemSIOp, source.shape[0])


def _before(op: Operation, value: SSAValue, kind: type[Operation], constant: int) -> SSAValue:
    block = op.parent
    assert block is not None
    number = arith.ConstantOp(IntegerAttr(constant, i32))
    result = kind.create(operands=[value, number.result], result_types=[i32])
    block.insert_ops_before([number, result], op)
    return result.results[0]


def scaled(name: str, change: Callable[[int], int]) -> Mutation:
    """Change a number that is a property."""

    def mutate(op: Operation) -> None:
        attribute = op.properties[name]
        assert isinstance(attribute, IntegerAttr)
        op.properties[name] = IntegerAttr(change(attribute.value.data), i32)

    return mutate


more = {name: scaled(name, lambda n: n + 1) for name in ("count", "pendings")}
MUTATIONS: list[tuple[type[Operation], str, Mutation]] = [
    (ttng.ArriveBarrierOp, "left out", remove),
    (ttng.ArriveBarrierOp, "once more", more["count"]),
    (ttng.WaitBarrierOp, "left out", remove),
    (ttng.WaitBarrierOp, "in the other phase", other_phase),
    (ttng.BarrierExpectOp, "left out", remove),
    (ttng.BarrierExpectOp, "of half the bytes", scaled("size", lambda n: n // 2)),
    (ttng.BarrierExpectOp, "of 16 bytes more", scaled("size", lambda n: n + 16)),
    (ttng.BarrierExpectOp, "of 16 bytes less", scaled("size", lambda n: n - 16)),
    (ttng.InitBarrierOp, "left out", remove),
    (ttng.InitBarrierOp, "for one arrival more", more["count"]),
    (ttng.InitBarrierOp, "for one arrival less", scaled("count", lambda n: n - 1)),
    (ttng.FenceAsyncSharedOp, "left out", remove),
    (ttng.AsyncTMACopyGlobalToLocalOp, "left out", remove),
    (ttng.AsyncTMACopyLocalToGlobalOp, "left out", remove),
    (ttng.AsyncTMAStoreWaitOp, "left out", remove),
    (ttng.AsyncTMAStoreWaitOp, "for one less", more["pendings"]),
    (ttng.WarpGroupDotWaitOp, "left out", remove),
    (ttng.WarpGroupDotWaitOp, "for one less", more["pendings"]),
    (ttg.ElementwiseInlineAsmOp, "left out", remove),
    (ttg.MemDescIndexOp, "the next buffer", next_buffer),
]


EQUIVALENT = {
    f"ping-pong{kind}": [
        f"ttg.memdesc_index of empty for ttng.arrive_barrier in {where}: the next buffer"
        for where in ("default", "partition 0")
    ]
    for kind in ("", " by name")
}
"""Mutants that are right, only slower: one of two groups says that buffer i + 1 is empty when it has used buffer i.

The producer waits for the buffers in turn. Where it overwrites buffer 0, it has seen the group use the last one, and so
all of the round; the others wait for no more. No phase ends too early, as it needs the other group's arrival too.
"""


def mutants(module: ModuleOp) -> Iterator[tuple[str, ModuleOp]]:
    """Every mutant of a kernel, with its name."""
    ops = list(module.walk())
    for kind, change, mutate in MUTATIONS:
        for position, op in enumerate(ops):
            if not isinstance(op, kind) or not _has_next(op):
                continue
            mutant = module.clone()
            mutate(list(mutant.walk())[position])
            yield f"{_label(op)}: {change}", mutant


def _has_next(op: Operation) -> bool:
    """Whether there is another buffer, if the operation takes one of several."""
    if not isinstance(op, ttg.MemDescIndexOp):
        return True
    source = op.src.type
    assert isinstance(source, ttg.MemDescType)
    return source.shape[0] > 1


def _label(op: Operation) -> str:
    array = op.operands[0] if op.operands else None
    if array is not None and isinstance(array.owner, ttg.MemDescIndexOp):
        array = array.owner.src
    about = f" of {array.name_hint}" if array is not None and array.name_hint else ""
    user = "".join(f" for {use.operation.name}" for result in op.results for use in result.uses)
    return f"{op.name}{about}{user} in {_partition(op)}"


def _partition(op: Operation) -> str:
    region = op.parent_region()
    while region is not None and (owner := region.parent_op()) is not None:
        if isinstance(owner, ttg.WarpSpecializePartitionsOp):
            return f"partition {owner.partitions.index(region)}"
        region = owner.parent_region()
    return "default"


def survives(case: Case, mutant: ModuleOp) -> bool:
    """Whether a mutant does the right thing for all seeds."""
    for seed in range(MUTANT_SEEDS):
        try:
            if not case.is_right(mutant, seed):
                return False
        except (KernelError, MemoryFault):
            return False
    return True


@pytest.mark.parametrize("case", CASES)
def test_every_mistake_is_found(case: str) -> None:
    made = list(mutants(module_of(case)))
    assert len(made) >= 25
    survivors = [name for name, mutant in made if survives(CASES[case], mutant)]
    assert survivors == EQUIVALENT.get(case, [])
