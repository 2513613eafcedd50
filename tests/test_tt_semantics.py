"""The numpy meaning of `tt`: memory safety, undefined values, atomics, arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.parser import Parser

from compilemask.dialects.registry import make_context
from compilemask.dialects.semantics.triton import MemoryFault, run_kernel
from compilemask.lowering.tiling_to_tt.builder import Arg, KernelBuilder, Value, bf16, f16, f32, i32, i64, ptr


def copy_kernel(offset: int = 0, *, masked: bool = True, other: float | None = None) -> Any:
    """Each program copies 16 elements of x (moved by offset) to y, of n elements."""
    kb = KernelBuilder("copy", [Arg("x", ptr(f32)), Arg("y", ptr(f32)), Arg("n", i32, divisibility=4)])
    x, y, n = kb.args
    at = kb.program_id(0) * 16 + kb.arange(0, 16)
    value = kb.load(x + (at + offset), mask=at < n if masked else None, other=other)
    kb.store(y + at, value)
    return kb.finish()


def test_masked_lanes_are_not_touched() -> None:
    x, y = np.arange(20, dtype=np.float32), np.full(32, 7, np.float32)
    run_kernel(copy_kernel(other=-1.0), 2, [x, y, 20])
    assert (y[:20] == x).all()
    assert (y[20:] == -1).all()


def test_undefined_values_show() -> None:
    x, y = np.arange(20, dtype=np.float32), np.zeros(32, np.float32)
    run_kernel(copy_kernel(), 2, [x, y, 20])
    assert np.isnan(y[20:]).all()


@pytest.mark.parametrize(
    ("kernel", "sizes", "message"),
    [
        (
            copy_kernel(masked=False),
            (20, 32),
            r"tt.load in program \(1, 0, 0\): element 31 of x, which has 20 elements",
        ),
        (copy_kernel(-1, masked=False), (32, 32), r"tt.load in program \(0, 0, 0\): element -1 of x"),
        (copy_kernel(), (20, 20), r"tt.store in program \(1, 0, 0\): element 31 of y, which has 20 elements"),
    ],
)
def test_accesses_outside_are_found(kernel: Any, sizes: tuple[int, int], message: str) -> None:
    x, y = (np.zeros(size, np.float32) for size in sizes)
    with pytest.raises(MemoryFault, match=message):
        run_kernel(kernel, 2, [x, y, 20])


def test_arguments_are_checked() -> None:
    x, y = np.zeros(32, np.float32), np.zeros(32, np.float32)
    with pytest.raises(ValueError, match="not a multiple of 4"):
        run_kernel(copy_kernel(), 2, [x, y, 21])
    with pytest.raises(TypeError, match="float64 does not hold f32"):
        run_kernel(copy_kernel(), 2, [x.astype(np.float64), y, 20])
    with pytest.raises(ValueError, match="C-contiguous"):
        run_kernel(copy_kernel(), 2, [np.zeros(64, np.float32)[::2], y, 20])
    with pytest.raises(ValueError, match="takes x, y, n"):
        run_kernel(copy_kernel(), 2, [x, y])
    with pytest.raises(TypeError, match="is no i32"):
        run_kernel(copy_kernel(), 2, [x, y, 2**32])


def test_division_by_zero_is_found() -> None:
    kb = KernelBuilder("k", [Arg("n", i32), Arg("out", ptr(i32))])
    kb.store(kb.arg("out"), kb.trunc_div(kb.arg("n"), kb.arg("n")))
    with pytest.raises(ZeroDivisionError, match="by zero"):
        run_kernel(kb.finish(), 1, [0, np.zeros(1, np.int32)])


def test_atomics_add_colliding_lanes() -> None:
    kb = KernelBuilder("histogram", [Arg("x", ptr(i32)), Arg("count", ptr(i32)), Arg("total", ptr(f32))])
    x, count, total = kb.args
    lane = kb.program_id(0) * 16 + kb.arange(0, 16)
    values = kb.load(x + lane)
    kb.atomic_add(count + values, 1, mask=values != 3)
    kb.atomic_add(total, kb.cast(kb.reduce(values, 0, "sum"), f32))
    data = np.random.default_rng(0).integers(0, 5, 64).astype(np.int32)
    counts, sums = np.zeros(5, np.int32), np.zeros(1, np.float32)
    run_kernel(kb.finish(), 4, [data, counts, sums], seed=0)
    expected = np.bincount(data, minlength=5)
    expected[3] = 0
    assert counts.tolist() == expected.tolist()
    assert sums[0] == data.sum()


@pytest.mark.parametrize("kind", ["bits", "values"])
def test_bf16_arrays(kind: str) -> None:
    torch = pytest.importorskip("torch")
    kb = KernelBuilder("double", [Arg("x", ptr(bf16)), Arg("y", ptr(bf16))])
    x, y = kb.args
    lane = kb.arange(0, 64)
    kb.store(y + lane, kb.cast(kb.cast(kb.load(x + lane), f32) * 1.7, bf16))
    source = torch.randn(64, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    expected = (source.float() * 1.7).to(torch.bfloat16)
    if kind == "bits":
        out = np.zeros(64, np.uint16)
        run_kernel(kb.finish(), 1, [source.view(torch.uint16).numpy(), out])
        assert (out == expected.view(torch.uint16).numpy()).all()
    else:
        out = np.zeros(64, np.float32)
        run_kernel(kb.finish(), 1, [source.float().numpy(), out])
        assert (out == expected.float().numpy()).all()


def test_programs_see_the_grid_in_any_order() -> None:
    kb = KernelBuilder("grid", [Arg("out", ptr(i32))])
    x, y, z = (kb.program_id(axis) for axis in range(3))
    index = x + kb.num_programs(0) * (y + kb.num_programs(1) * z)
    kb.store(kb.arg("out") + index, index)
    for seed in (None, 1, 2):
        out = np.full(24, -1, np.int32)
        run_kernel(kb.finish() if seed is None else kb.func, (2, 3, 4), [out], seed=seed)
        assert out.tolist() == list(range(24))


def test_pointers_through_selects_and_integers() -> None:
    text = """
    tt.func public @k(%a: !tt.ptr<i32>, %b: !tt.ptr<i32>, %out: !tt.ptr<i32>) {
      %pid = tt.get_program_id x : i32
      %zero = arith.constant 0 : i32
      %first = arith.cmpi eq, %pid, %zero : i32
      %p = arith.select %first, %a, %b : !tt.ptr<i32>
      %q = tt.ptr_to_int %p : !tt.ptr<i32> -> i64
      %four = arith.constant 4 : i64
      %next = arith.addi %q, %four : i64
      %r = tt.int_to_ptr %next : i64 -> !tt.ptr<i32>
      %v = tt.load %r : !tt.ptr<i32>
      %at = tt.addptr %out, %pid : !tt.ptr<i32>, i32
      tt.store %at, %v : !tt.ptr<i32>
      tt.return
    }"""
    module = Parser(make_context(), text).parse_module()
    out = np.zeros(2, np.int32)
    run_kernel(module, 2, [np.array([1, 2], np.int32), np.array([3, 4], np.int32), out])
    assert out.tolist() == [2, 4]


@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
def test_dot_accumulates_in_float32(dtype: Any) -> None:
    kb = KernelBuilder("dot", [Arg("a", ptr(dtype)), Arg("b", ptr(dtype)), Arg("c", ptr(f32))])
    a, b, c = kb.args
    row, col = kb.arange(0, 32)[:, None], kb.arange(0, 32)[None, :]

    def tile(pointer: Value) -> Value:
        return pointer + row * 32 + col

    kb.store(tile(c), kb.dot(kb.load(tile(a)), kb.trans(kb.load(tile(b))), kb.full((32, 32), 1.0, f32)))
    rng = np.random.default_rng(0)
    kind = np.float16 if dtype == f16 else np.float32
    x, y = (rng.integers(-8, 8, (32, 32)).astype(kind) for _ in range(2))
    out = np.zeros((32, 32), np.float32)
    run_kernel(kb.finish(), 1, [x, y, out])
    assert (out == x.astype(np.float32) @ y.astype(np.float32).T + 1).all()


def test_integers_wrap_and_wide_offsets_work() -> None:
    kb = KernelBuilder("wrap", [Arg("n", i32), Arg("out", ptr(i64))])
    n, out = kb.args
    kb.store(out, kb.cast(n + 1, i64))
    kb.store(out + kb.cast(n, i64) * 0 + 1, kb.cast(n, i64) + 1)
    result = np.zeros(2, np.int64)
    run_kernel(kb.finish(), 1, [2**31 - 1, result])
    assert result.tolist() == [-(2**31), 2**31]
