"""The numpy meaning of `ttg` and `ttng`: what copies, views and products give, and which mistakes are errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, bf16, f16, f32, i32, i64
from xdsl.ir import Attribute

from compilemask.dialects.semantics import triton_gpu_schedule
from compilemask.dialects.semantics.triton_gpu import DeadlockError, KernelError, MemoryFault, TensorMap, run_kernel
from compilemask.dialects.semantics.triton_gpu_shared import byte_offsets
from compilemask.dialects.semantics.triton_memory import bf16_to_bits, round_bf16
from compilemask.dialects.triton.layouts import BARRIER_LAYOUT, BlockedLayout, NvmmaSharedLayout, SwizzledSharedLayout
from compilemask.dialects.triton.ttg_types import MemDescType
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt.builder import ptr
from compilemask.lowering.tiling_to_ttg.builder import (
    Arg,
    Barriers,
    Buffer,
    GpuKernelBuilder,
    Value,
    slice_of,
    tensor_map,
    tma_layout,
)

TILE = 64
ROWS = BlockedLayout.of([1, 2], [1, 32], [4, 1], [1, 0])
"""A register layout of tiles."""


def run(kb: GpuKernelBuilder, args: Any = (), grid: int = 1, seeds: int = 5) -> None:
    """Run a kernel that has ended, in several orders."""
    module = kb.finish()
    for seed in range(seeds):
        run_kernel(module, grid, args, seed=seed)


def tile(kb: GpuKernelBuilder, value: float = 1.0, dtype: Attribute = bf16) -> Value:
    """A tile full of one value."""
    return kb.full((TILE, TILE), value, dtype, ROWS)


def filled(kb: GpuKernelBuilder, name: str, *, fence: bool = True) -> Buffer:
    """A buffer that ordinary stores have written."""
    buffer = kb.alloc((TILE, TILE), bf16).named(name)
    buffer.store(tile(kb))
    if fence:
        kb.fence_async_shared()
    return buffer


# ---------------------------------------------------------------- TMA


def copy_kernel(box: tuple[int, ...], dtype: Attribute, kind: str | None = None) -> ModuleOp:
    """Copy, or combine, the box at the coordinates in `at` to the same place of another tensor."""
    kb = GpuKernelBuilder("copy", [tensor_map("x"), tensor_map("y"), *(Arg(f"at{i}", i32) for i in range(len(box)))])
    x, y = (kb.descriptor(name, box, dtype) for name in "xy")
    at = [kb.arg(f"at{i}") for i in range(len(box))]
    buffer, full = kb.alloc(box, dtype), kb.barriers(1)[0]
    kb.fence_async_shared()
    full.expect(x.bytes)
    x.load(at, buffer, full)
    full.wait(0)
    if kind is None:
        y.store(at, buffer)
    else:
        y.reduce(kind, at, buffer)
    kb.store_wait()
    return kb.finish()


@pytest.mark.parametrize(("dtype", "numpy_type"), [(f32, np.float32), (f16, np.float16), (i32, np.int32)])
def test_boxes_are_clipped(dtype: Attribute, numpy_type: type) -> None:
    x = np.arange(50 * 48).reshape(50, 48).astype(numpy_type)
    for at in ((0, 0), (-3, 20), (30, -5), (48, 44), (50, 0), (-40, 0)):
        y, expected = np.zeros_like(x), np.zeros_like(x)
        place = tuple(slice(max(start, 0), max(start + 32, 0)) for start in at)
        expected[place] = x[place]
        run_kernel(copy_kernel((32, 32), dtype), 1, [TensorMap(x), TensorMap(y, (32, 32)), *at])
        np.testing.assert_array_equal(y, expected)


def test_what_lies_outside_reads_as_zero() -> None:
    kb = GpuKernelBuilder("sum", [tensor_map("x"), Arg("out", ptr(f32))])
    x, buffer, full = kb.descriptor("x", (32, 32), f32), kb.alloc((32, 32), f32), kb.barriers(1)[0]
    kb.fence_async_shared()
    full.expect(x.bytes)
    x.load([-1, 30], buffer, full)
    full.wait(0)
    kb.store(kb.arg("out"), kb.reduce(kb.reduce(buffer.load(ROWS), 1, "sum"), 0, "sum"))
    out = np.zeros(1, np.float32)
    run(kb, [TensorMap(np.ones((40, 36), np.float32)), out])
    assert out == 31 * 6


def test_tensors_may_have_strides_and_bf16_is_patterns_or_values() -> None:
    rng = np.random.default_rng(0)
    values = round_bf16(rng.standard_normal((2, 24, 3, 64)).astype(np.float32))
    heads = values.transpose(0, 2, 1, 3)
    patterns = bf16_to_bits(values).transpose(0, 2, 1, 3)
    kernel, at = copy_kernel((1, 1, 16, 64), bf16), (1, 2, 8, 0)
    for x, y in ((heads, np.zeros_like(patterns)), (patterns, np.zeros(heads.shape, np.float32))):
        run_kernel(kernel, 1, [TensorMap(x, (1, 1, 16, 64)), TensorMap(y), *at])
        expected = (patterns if y.dtype == np.uint16 else heads)[1, 2, 8:24]
        np.testing.assert_array_equal(y[1, 2, 8:24], expected)
        assert not y[0].any()


def test_reductions_of_boxes() -> None:
    rng = np.random.default_rng(0)
    x, start = (rng.integers(-9, 9, (32, 32)).astype(np.int32) for _ in range(2))
    for kind, function in (("add", np.add), ("max", np.maximum), ("xor", np.bitwise_xor)):
        y = start.copy()
        run_kernel(copy_kernel((32, 32), i32, kind), 1, [TensorMap(x), TensorMap(y), 0, 0])
        np.testing.assert_array_equal(y, function(start, x))


@pytest.mark.parametrize(
    ("array", "box", "error", "message"),
    [
        (np.zeros((64, 64), np.float64), None, TypeError, "float64 does not hold f32"),
        (np.zeros((64, 64, 1), np.float32), None, ValueError, "3 dimensions, the descriptor has 2"),
        (np.zeros((64, 64), np.float32).T, None, ValueError, "not contiguous"),
        (np.zeros((64, 63), np.float32), None, ValueError, "a stride of 252 bytes"),
        (np.zeros((64, 64), np.float32), (32, 16), ValueError, "boxes of"),
        (None, None, TypeError, "argument x: NoneType is no TensorMap"),
    ],
)
def test_tensor_maps_are_checked(array: Any, box: Any, error: type[Exception], message: str) -> None:
    x = array if array is None else TensorMap(array, box)
    y = TensorMap(np.zeros((64, 64), np.float32))
    with pytest.raises((error, KernelError), match=message):
        run_kernel(copy_kernel((32, 32), f32), 1, [x, y, 0, 0])


# ---------------------------------------------------------------- views


def test_swizzled_rows_lie_where_tma_puts_them() -> None:
    offsets = byte_offsets((16, 128), tma_layout((16, 128), bf16), 2)
    assert offsets[0, :16].tolist() == list(range(0, 32, 2))
    assert offsets[1, :8].tolist() == list(range(128 + 16, 128 + 32, 2))
    assert offsets[0, 64] == 16 * 128
    assert sorted(offsets.reshape(-1)) == list(range(0, 16 * 128 * 2, 2))
    transposed = byte_offsets((128, 16), NvmmaSharedLayout.of(16, transposed=True), 2)
    np.testing.assert_array_equal(transposed, offsets.T)
    columns = byte_offsets((2, 4, 8), SwizzledSharedLayout.of([0, 1]), 4)
    assert (columns[1, 1, 2] - columns[0, 0, 0]) // 4 == 32 + 1 + 4 * 2


@pytest.mark.parametrize(
    ("width", "swizzle", "transposed", "shape"),
    [
        (16, 128, False, (64, 128)),
        (16, 64, False, (64, 32)),
        (16, 32, False, (64, 16)),
        (32, 128, False, (64, 64)),
        (16, 128, True, (128, 64)),
        (16, 128, False, (1, 2, 32, 128)),
    ],
)
def test_elements_lie_where_triton_puts_them(
    width: int, swizzle: int, transposed: bool, shape: tuple[int, ...]
) -> None:
    triton = pytest.importorskip("triton")
    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7):
        pytest.skip("Triton 3.6 gives no linear form of shared layouts")
    layout = NvmmaSharedLayout.of(width, swizzle=swizzle, transposed=transposed, rank=len(shape))
    offsets = byte_offsets(shape, layout, width // 8) // (width // 8)
    place = np.zeros((offsets.size, len(shape)), dtype=np.int64)
    for bit, base in enumerate(_offset_bases(width, swizzle, transposed, shape)):
        place ^= (np.arange(offsets.size)[:, None] >> bit & 1) * np.array(base)
    np.testing.assert_array_equal(offsets[tuple(place.T)], np.arange(offsets.size))


def _offset_bases(width: int, swizzle: int, transposed: bool, shape: tuple[int, ...]) -> list[list[int]]:
    """Triton's linear form: where each bit of an element's offset leads."""
    from triton._C.libtriton import gluon_ir, ir
    from triton.experimental.gluon.language import NVMMASharedLayout

    context = ir.context()
    ir.load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)
    layout = NVMMASharedLayout(swizzle, width, len(shape), transposed=transposed)
    return builder.to_linear_layout(layout._to_ir(builder), list(shape)).offset_bases


def test_views_share_memory() -> None:
    kb = GpuKernelBuilder("views", [Arg("x", ptr(i32)), Arg("out", ptr(i32))])
    row = kb.arange(0, TILE, slice_of(ROWS, 1))[:, None]
    index = row * TILE + kb.arange(0, TILE, slice_of(ROWS, 0))[None, :]
    pair = kb.alloc((TILE, TILE), i32, count=2)
    pair[0].store(kb.load(kb.arg("x") + index))
    pair[1].part((32, 0), (32, TILE)).store(pair[0].part((0, 0), (32, TILE)).load(ROWS))
    pair[1].part((0, 0), (32, TILE)).store(pair[0].part((32, 0), (32, TILE)).load(ROWS))
    kb.store(kb.arg("out") + index, pair[1].reshape(1, TILE, TILE).reshape(TILE, TILE).transpose().load(ROWS))
    x, out = np.arange(TILE * TILE, dtype=np.int32), np.zeros(TILE * TILE, np.int32)
    run(kb, [x, out])
    np.testing.assert_array_equal(out.reshape(TILE, TILE).T, np.roll(x.reshape(TILE, TILE), 32, axis=0))


def test_panels_of_a_buffer_are_buffers() -> None:
    kb = GpuKernelBuilder("panels", [tensor_map("left"), tensor_map("right"), Arg("x", ptr(f32))])
    layout = BlockedLayout.of([1, 4], [1, 32], [4, 1], [1, 0])
    row, column = kb.arange(0, TILE, slice_of(layout, 1)), kb.arange(0, 128, slice_of(layout, 0))
    wide = kb.alloc((TILE, 128), bf16)
    wide.store(kb.cast(kb.load(kb.arg("x") + (row[:, None] * 128 + column[None, :])), bf16))
    kb.fence_async_shared()
    panels = wide.reinterpret(MemDescType.of((2, TILE, TILE), bf16, tma_layout((TILE, TILE), bf16)))
    for index, name in enumerate(("left", "right")):
        kb.descriptor(name, (TILE, TILE), bf16).store([0, 0], panels[index])
    kb.store_wait()
    x = round_bf16(np.random.default_rng(0).standard_normal((TILE, 128)).astype(np.float32))
    left, right = np.zeros((2, TILE, TILE), np.float32)
    run(kb, [TensorMap(left), TensorMap(right), x])
    np.testing.assert_array_equal(np.hstack([left, right]), x)


# ---------------------------------------------------------------- products


def test_products_are_added_in_flight() -> None:
    kb = GpuKernelBuilder("twice", [Arg("out", ptr(f32))])
    buffer = filled(kb, "ones")
    first = kb.warp_group_dot(buffer, buffer.transpose())
    second = kb.warp_group_dot(buffer, buffer.transpose(), first)
    other = kb.warp_group_dot(buffer, buffer.transpose())
    total = kb.warp_group_dot_wait(second, pending=1)
    kb.store(kb.arg("out"), kb.reduce(kb.reduce(total, 1, "max"), 0, "max"))
    kb.store(kb.arg("out") + 1, kb.reduce(kb.reduce(kb.warp_group_dot_wait(other), 1, "max"), 0, "max"))
    out = np.zeros(2, np.float32)
    run(kb, [out])
    assert out.tolist() == [128.0, 64.0]


def _overwrite(kb: GpuKernelBuilder) -> None:
    buffer = filled(kb, "ones")
    product = kb.warp_group_dot(buffer, buffer.transpose())
    buffer.store(tile(kb, 2.0))
    kb.warp_group_dot_wait(product)


def _use_too_early(kb: GpuKernelBuilder) -> None:
    buffer = filled(kb, "ones")
    first, second = (kb.warp_group_dot(buffer, buffer.transpose()) for _ in range(2))
    kb.warp_group_dot_wait(first, pending=1)
    _ = kb.warp_group_dot_wait(second, pending=1) + 1.0


def _use_beside_the_wait(kb: GpuKernelBuilder) -> None:
    buffer = filled(kb, "ones")
    product = kb.warp_group_dot(buffer, buffer.transpose())
    kb.warp_group_dot_wait(product)
    _ = Value(kb, product.ssa.type, ssa=product.ssa) + 1.0


def _no_wait(kb: GpuKernelBuilder) -> None:
    buffer = filled(kb, "ones")
    kb.warp_group_dot(buffer, buffer.transpose())


def _no_fence(kb: GpuKernelBuilder) -> None:
    buffer = filled(kb, "ones", fence=False)
    kb.warp_group_dot_wait(kb.warp_group_dot(buffer, buffer.transpose()))


# ---------------------------------------------------------------- other mistakes


def _nothing_written(kb: GpuKernelBuilder) -> None:
    kb.alloc((TILE, TILE), bf16).named("empty").load(ROWS)


def _after_the_end(kb: GpuKernelBuilder) -> None:
    buffer = filled(kb, "ones")
    buffer.dealloc()
    buffer.load(ROWS)


def _bad_index(kb: GpuKernelBuilder) -> None:
    _ = kb.alloc((TILE, TILE), bf16, count=2).named("pair")[kb.program_id(0) + 2]


def _no_init(kb: GpuKernelBuilder) -> None:
    barriers = kb.alloc((1,), i64, BARRIER_LAYOUT, count=1).named("bars")
    Barriers(kb, barriers)[0].arrive()


def _arrivals(kb: GpuKernelBuilder) -> None:
    barriers = kb.barriers(1)
    barriers.array.named("bars")
    barriers[0].arrive(count=2)


def _bad_phase(kb: GpuKernelBuilder) -> None:
    kb.barriers(1)[0].wait(kb.program_id(0) + 2)


def _bytes_left(kb: GpuKernelBuilder) -> None:
    barriers = kb.barriers(1)
    barriers.array.named("bars")
    barriers[0].expect(128)


def _invalidated(kb: GpuKernelBuilder) -> None:
    barriers = kb.barriers(1)
    barriers.array.named("bars")
    barriers[0].invalidate()
    barriers[0].arrive()


def _store_left(kb: GpuKernelBuilder) -> None:
    kb.descriptor("map", (TILE, TILE), bf16).store([0, 0], filled(kb, "ones"))


def _store_overwritten(kb: GpuKernelBuilder) -> None:
    buffer = filled(kb, "ones")
    kb.descriptor("map", (TILE, TILE), bf16).store([0, 0], buffer)
    buffer.store(tile(kb, 2.0))


def _load_left(kb: GpuKernelBuilder) -> None:
    descriptor, full = kb.descriptor("map", (TILE, TILE), bf16), kb.barriers(1)
    full.array.named("bars")
    kb.fence_async_shared()
    full[0].expect(descriptor.bytes)
    descriptor.load([0, 0], kb.alloc((TILE, TILE), bf16), full[0])


def _unfenced_barrier(kb: GpuKernelBuilder) -> None:
    descriptor, full = kb.descriptor("map", (TILE, TILE), bf16), kb.barriers(1)
    full.array.named("bars")
    full[0].expect(descriptor.bytes)
    descriptor.load([0, 0], kb.alloc((TILE, TILE), bf16), full[0])
    full[0].wait(0)


def _load_over_unfenced_stores(kb: GpuKernelBuilder) -> None:
    descriptor, full = kb.descriptor("map", (TILE, TILE), bf16), kb.barriers(1)
    kb.fence_async_shared()
    buffer = filled(kb, "ones", fence=False)
    full[0].expect(descriptor.bytes)
    descriptor.load([0, 0], buffer, full[0])


def _threads(kb: GpuKernelBuilder) -> None:
    kb.bar_sync(4, 64)


def _unknown_asm(kb: GpuKernelBuilder) -> None:
    kb.inline_asm("brkpt; mov.b32 $0, $1;", "=r,r", [kb.constant(0, i32)])


def _race(kb: GpuKernelBuilder) -> None:
    buffer = kb.alloc((8,), i32, BARRIER_LAYOUT).named("number")
    with kb.warp_specialize() as roles:
        with roles.default():
            buffer.store(kb.full((8,), 1, i32, BlockedLayout.of([8], [32], [4], [0])))
        with roles.partition(num_warps=4):
            buffer.store(kb.full((8,), 2, i32, BlockedLayout.of([8], [32], [4], [0])))


def _memory_fault(kb: GpuKernelBuilder) -> None:
    with kb.warp_specialize() as roles:
        with roles.default():
            pass
        with roles.partition(num_warps=1):
            kb.load(kb.arg("out") + 8)


MISTAKES: dict[str, tuple[Callable[[GpuKernelBuilder], None], type[Exception], str]] = {
    "overwrite": (_overwrite, KernelError, r"ttg.local_store in default of program \(0, 0, 0\): ones is written while"),
    "too early": (_use_too_early, KernelError, "arith.addf in default.*it is in flight"),
    "beside": (_use_beside_the_wait, KernelError, "its value is the result of the wait"),
    "no wait": (_no_wait, KernelError, "warp_group_dot of default is under way at the end"),
    "no fence": (_no_fence, KernelError, "ordinary stores wrote ones, and no ttng.fence_async_shared"),
    "nothing": (_nothing_written, KernelError, "empty is read and was never written"),
    "dealloc": (_after_the_end, KernelError, "ones is used after its local_dealloc"),
    "index": (_bad_index, KernelError, "no buffer 2 among the 2 of pair"),
    "no init": (_no_init, KernelError, r"bars\[0\] holds no mbarrier"),
    "arrivals": (_arrivals, KernelError, r"2 arrivals at bars\[0\], 1 of 1 are pending"),
    "phase": (_bad_phase, KernelError, "phase 2 of"),
    "bytes": (_bytes_left, KernelError, r"program \(0, 0, 0\): bars\[0\] expects 128 bytes that never come"),
    "inval": (_invalidated, KernelError, r"bars\[0\] holds no mbarrier"),
    "store": (_store_left, KernelError, "async_tma_copy_local_to_global of default is under way at the end"),
    "stored": (_store_overwritten, KernelError, "ones is written while ttng.async_tma_copy_local_to_global"),
    "load": (_load_left, KernelError, r"nobody wait"),
    "barrier fence": (_unfenced_barrier, KernelError, r"ordinary stores wrote bars\[0\]"),
    "load fence": (_load_over_unfenced_stores, KernelError, "ordinary stores wrote ones"),
    "threads": (_threads, KernelError, "128 threads came to named barrier 4 of 64"),
    "asm": (_unknown_asm, LoweringError, "PTX 'brkpt"),
    "race": (_race, KernelError, r"in (default|partition 0) .*without having waited for (default|partition 0), which"),
    "fault": (_memory_fault, MemoryFault, r"tt.load in partition 0 of program \(0, 0, 0\): element 8 of out"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found_in_any_order(mistake: str) -> None:
    make, error, message = MISTAKES[mistake]
    kb = GpuKernelBuilder("mistake", [tensor_map("map"), Arg("out", ptr(f32))])
    make(kb)
    module = kb.finish()
    for seed in range(10):
        args = [TensorMap(np.zeros((TILE, TILE), np.float32)), np.zeros(8, np.float32)]
        with pytest.raises(error, match=message):
            run_kernel(module, 1, args, seed=seed)


# ---------------------------------------------------------------- orders


def test_a_deadlock_says_who_waits_for_what() -> None:
    kb = GpuKernelBuilder("stuck", [])
    full, empty = kb.barriers(2, arrivals=2), kb.barriers(1)
    full.array.named("full")
    empty.array.named("empty")
    with kb.warp_specialize() as roles:
        with roles.default():
            full[1].arrive()
            full[1].wait(0)
            empty[0].arrive()
        with roles.partition(num_warps=4):
            empty[0].wait(0)
            full[1].arrive()
        with roles.partition(num_warps=4):
            kb.bar_sync(8, 256)
    with pytest.raises(DeadlockError) as error:
        run(kb)
    assert str(error.value).split("\n") == [
        "program (0, 0, 0): no partition can go on",
        "  default waits for the end of phase 0 of full[1]: phase 0, 1 of 2 arrivals missing",
        "  partition 0 waits for the end of phase 0 of empty[0]: phase 0, 1 of 1 arrivals missing",
        "  partition 1 waits for named barrier 8: 128 of 256 threads have come (partition 1)",
    ]


def test_a_program_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_gpu_schedule, "_MOST_TURNS", 100)
    kb = GpuKernelBuilder("endless", [Arg("flag", ptr(i32))])
    with kb.while_loop([kb.program_id(0)]) as loop:
        with loop.condition() as (i,):
            loop.continue_if(kb.load(kb.arg("flag")) == 0, i)
        with loop.body() as (i,):
            loop.yield_(i)
    with pytest.raises(KernelError, match=r"program \(0, 0, 0\): no end after 100 turns"):
        run(kb, [np.zeros(1, np.int32)])


@pytest.mark.parametrize("in_register", [False, True])
def test_named_barriers_order_memory(in_register: bool) -> None:
    kb = GpuKernelBuilder("named", [Arg("out", ptr(i32))])
    layout = BlockedLayout.of([8], [32], [4], [0])
    number = kb.alloc((8,), i32, BARRIER_LAYOUT)
    barrier = kb.program_id(0) + 5 if in_register else 5
    with kb.warp_specialize() as roles:
        with roles.default():
            number.store(kb.full((8,), 7, i32, layout))
            kb.bar_arrive(barrier, 256)
        with roles.partition(num_warps=4):
            kb.bar_sync(barrier, 256)
            kb.store(kb.arg("out"), kb.reduce(number.load(layout), 0, "max"))
    out = np.zeros(1, np.int32)
    run(kb, [out], seeds=20)
    assert out == 7


def test_programs_share_memory_and_a_seed_decides_their_order() -> None:
    kb = GpuKernelBuilder("order", [Arg("counter", ptr(i32)), Arg("out", ptr(i32))])
    kb.store(kb.arg("out") + kb.program_id(0), kb.atomic_add(kb.arg("counter"), kb.program_id(1) + 1))
    module = kb.finish()
    orders = []
    for seed in (0, 1, 0):
        counter, out = np.zeros(1, np.int32), np.zeros(6, np.int32)
        run_kernel(module, 6, [counter, out], seed=seed)
        assert counter == 6
        assert sorted(out) == list(range(6))
        orders.append(out.tolist())
    assert orders[0] == orders[2] != orders[1]


def test_each_of_two_fences_is_enough() -> None:
    """Both partitions fence what a third one has stored: neither makes the other's worthless."""
    shape, plain = (8, 32), NvmmaSharedLayout.of(32, swizzle=0, rank=2)
    kb = GpuKernelBuilder("fences", [tensor_map("x"), tensor_map("y")])
    layout, buffer = BlockedLayout.of([1, 4], [4, 8], [4, 1], [1, 0]), kb.alloc(shape, i32, plain)
    with kb.warp_specialize() as roles:
        with roles.default():
            buffer.store(kb.full(shape, 7, i32, layout))
            kb.bar_sync(5, 384)
        for name in "xy":
            with roles.partition(num_warps=4):
                kb.bar_sync(5, 384)
                kb.fence_async_shared()
                kb.descriptor(name, shape, i32, plain).store([0, 0], buffer)
                kb.store_wait()
    outs = [np.zeros(shape, np.int32) for _ in "xy"]
    run(kb, [TensorMap(out) for out in outs], seeds=20)
    for out in outs:
        assert (out == 7).all()
