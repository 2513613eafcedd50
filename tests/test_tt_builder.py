"""The kernel builder: what operators mean, literals, regions, errors for misuse. Kernels run by the numpy semantics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdsl.ir import Attribute

from compilemask.dialects.semantics.triton import run_kernel
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt.builder import Arg, KernelBuilder, Value, bf16, f16, f32, i1, i8, i32, i64, ptr

LANES = 16
INT32 = st.integers(-(2**31), 2**31 - 1)
Body = Callable[..., Value]


def elementwise(body: Body, result: Attribute, *inputs: tuple[Attribute, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Run `body(kb, *tensors)` on one tile and give what it computes."""
    args = [Arg(f"x{index}", ptr(dtype)) for index, (dtype, _) in enumerate(inputs)]
    kb = KernelBuilder("elementwise", [*args, Arg("out", ptr(result))])
    lane = kb.arange(0, LANES)
    kb.store(kb.arg("out") + lane, body(kb, *(kb.load(pointer + lane) for pointer in kb.args[:-1])))
    dtypes: dict[Attribute, Any] = {
        i8: np.int8,
        i32: np.int32,
        i64: np.int64,
        f32: np.float32,
        f16: np.float16,
        bf16: np.float32,
    }
    out = np.zeros(LANES, dtypes[result])
    run_kernel(kb.finish(), 1, [*(np.ascontiguousarray(array) for _, array in inputs), out])
    return out


def ops_of(kb: KernelBuilder) -> list[str]:
    return [op.name for op in kb.func.body.block.ops]


@given(st.lists(INT32, min_size=LANES, max_size=LANES), st.lists(INT32.filter(bool), min_size=LANES, max_size=LANES))
def test_division_follows_python(dividends: list[int], divisors: list[int]) -> None:
    a, b = np.array(dividends, np.int32), np.array(divisors, np.int32)
    b = np.where((a == -(2**31)) & (b == -1), 2, b).astype(np.int32)
    assert (elementwise(lambda _, x, y: x // y, i32, (i32, a), (i32, b)) == a // b).all()
    assert (elementwise(lambda _, x, y: x % y, i32, (i32, a), (i32, b)) == a % b).all()
    assert (elementwise(lambda kb, x, y: kb.trunc_rem(x, y), i32, (i32, a), (i32, b)) == np.fmod(a, b)).all()


@given(st.lists(INT32, min_size=LANES, max_size=LANES), st.integers(1, 2**31 - 1))
def test_division_by_a_literal_follows_python(a: list[int], divisor: int) -> None:
    array = np.array(a, np.int32)
    for number in (divisor, 1 << (divisor.bit_length() - 1)):
        assert (elementwise(lambda _, x, n=number: x // n, i32, (i32, array)) == array // number).all()
        assert (elementwise(lambda _, x, n=number: x % n, i32, (i32, array)) == array % number).all()


@given(st.integers(0, 2**20), st.integers(1, 2**10))
def test_ceil_div(a: int, b: int) -> None:
    array = np.full(LANES, a, np.int32)
    assert (elementwise(lambda kb, x: kb.ceil_div(x, b), i32, (i32, array)) == -(-a // b)).all()


BINARY: dict[str, tuple[Body, Callable[..., Any]]] = {
    "add": (lambda _, x, y: x + y, np.add),
    "sub": (lambda _, x, y: x - y, np.subtract),
    "mul": (lambda _, x, y: x * y, np.multiply),
    "and": (lambda _, x, y: x & y, np.bitwise_and),
    "or": (lambda _, x, y: x | y, np.bitwise_or),
    "xor": (lambda _, x, y: x ^ y, np.bitwise_xor),
    "shl": (lambda _, x, y: x << (y & 31), lambda x, y: x << (y & 31)),
    "shr": (lambda _, x, y: x >> (y & 31), lambda x, y: x >> (y & 31)),
    "shru": (
        lambda kb, x, y: kb.shift_right_unsigned(x, y & 31),
        lambda x, y: (x.view(np.uint32) >> (y & 31).astype(np.uint32)).view(np.int32),
    ),
    "min": (lambda kb, x, y: kb.minimum(x, y), np.minimum),
    "max": (lambda kb, x, y: kb.maximum(x, y), np.maximum),
    "umax": (
        lambda kb, x, y: kb.umax(x, y),
        lambda x, y: np.maximum(x.view(np.uint32), y.view(np.uint32)).view(np.int32),
    ),
    "select": (lambda kb, x, y: kb.where(x < y, x, 7), lambda x, y: np.where(x < y, x, 7)),
    "ult": (
        lambda kb, x, y: kb.cast(kb.ult(x, y), i32),
        lambda x, y: (x.view(np.uint32) < y.view(np.uint32)).astype(np.int32),
    ),
    "not": (lambda _, x, y: ~(x - y), lambda x, y: ~(x - y)),
    "neg": (lambda _, x, y: -(x * y), lambda x, y: -(x * y)),
}


@pytest.mark.parametrize("name", BINARY)
def test_integer_operators_agree_with_numpy(name: str) -> None:
    rng = np.random.default_rng(len(name))
    x, y = (rng.integers(-(2**31), 2**31, LANES).astype(np.int32) for _ in range(2))
    body, expected = BINARY[name]
    with np.errstate(over="ignore"):
        assert (elementwise(body, i32, (i32, x), (i32, y)) == expected(x, y)).all()


@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
def test_floats_round_to_their_type(dtype: Attribute) -> None:
    torch = pytest.importorskip("torch")
    kinds: dict[Attribute, Any] = {f32: torch.float32, f16: torch.float16, bf16: torch.bfloat16}
    kind = kinds[dtype]
    x = torch.randn(LANES, generator=torch.Generator().manual_seed(0)).to(kind)
    y = torch.randn(LANES, generator=torch.Generator().manual_seed(1)).to(kind)
    holds = (lambda t: t.float().numpy()) if dtype == bf16 else (lambda t: t.numpy())
    for body in (lambda _, a, b: a * b + 0.3, lambda _, a, b: a - b / 3.0, lambda kb, a, b: kb.maximum(a, b)):
        expected = body(torch, x, y)
        assert (elementwise(body, dtype, (dtype, holds(x)), (dtype, holds(y))) == holds(expected)).all()
    widened = elementwise(lambda kb, a: kb.cast(a, f32), f32, (dtype, holds(x)))
    assert (widened == x.float().numpy()).all()


def test_casts() -> None:
    x = np.array([-129, -1, 0, 1, 127, 128, 255, 256] * 2, np.int32)
    assert (elementwise(lambda kb, a: kb.cast(a, i8), i8, (i32, x)) == x.astype(np.int8)).all()
    assert (elementwise(lambda kb, a: kb.cast(a, i64), i64, (i32, x)) == x).all()
    assert (elementwise(lambda kb, a: kb.cast(a, i64, unsigned=True), i64, (i32, x)) == x.view(np.uint32)).all()
    assert (elementwise(lambda kb, a: kb.cast(a, f32), f32, (i32, x)) == x).all()
    assert (elementwise(lambda kb, a: kb.cast(a > 0, f32), f32, (i32, x)) == (x > 0)).all()
    assert (elementwise(lambda kb, a: kb.cast(a > 0, i32), i32, (i32, x)) == (x > 0)).all()
    assert (elementwise(lambda kb, a: kb.cast(kb.cast(a, i1), i32), i32, (i32, x)) == (x != 0)).all()
    y = np.array([-1.5, -0.5, 0.5, 1.5, 2.5, 1e6, -1e6, 0.0] * 2, np.float32)
    assert (elementwise(lambda kb, a: kb.cast(a, i32), i32, (f32, y)) == np.trunc(y)).all()
    assert (elementwise(lambda kb, a: kb.bitcast(a, i32), i32, (f32, y)) == y.view(np.int32)).all()


def test_math_functions() -> None:
    x = np.linspace(0.1, 4, LANES).astype(np.float32)
    got = elementwise(lambda kb, a: kb.exp2(a) + kb.log2(a) * kb.sqrt(a) - kb.absolute(-a), f32, (f32, x))
    np.testing.assert_allclose(got, np.exp2(x) + np.log2(x) * np.sqrt(x) - x, rtol=1e-5)


def test_literals_leave_no_trace() -> None:
    kb = KernelBuilder("k", [Arg("n", i32), Arg("x", f32), Arg("p", ptr(f32))])
    n, x, p = kb.args
    assert (n + 0) is n
    assert (1 * n) is n
    assert (x * 1.0) is x
    assert (p + 0) is p
    assert (n * 0).literal == 0
    assert (kb.constant(3) * 4 - 5).literal == 7
    assert (kb.constant(7) // -2).literal == -4
    assert (kb.constant(7) % -2).literal == -1
    assert ((n < 3) & True).type == i1
    assert kb.full((4, 8), 2, i32).literal == 2
    assert (kb.constant(2**31 - 1) + 1).literal == -(2**31)
    assert kb.where(kb.constant(True), n, 5) is n
    assert ops_of(kb) == ["arith.constant", "arith.cmpi"]


def test_constants_are_shared_and_come_first() -> None:
    kb = KernelBuilder("k", [Arg("p", ptr(f32)), Arg("n", i32)])
    p, n = kb.args
    lane = kb.arange(0, 8)
    with kb.for_loop(0, n, 1) as loop:
        kb.store(p + (lane + loop.index * 8), 0.0, mask=lane < 8)
    with kb.for_loop(0, n, 1) as loop:
        kb.store(p + (lane + loop.index * 8), 0.0, mask=lane < 8)
    names = ops_of(kb)
    assert names.count("arith.constant") == 4
    assert names.index("tt.make_range") == names.count("arith.constant") + names.count("tt.splat")
    kb.finish()


def test_argument_attributes_survive() -> None:
    kb = KernelBuilder("k", [Arg("p", ptr(f32), divisibility=16), Arg("n", i32)])
    text = str(kb.finish())
    assert "tt.func public @k(%p: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %n: i32)" in text


def test_control_flow() -> None:
    """Collatz steps of program_id + 1, in a while loop with a branch inside, plus a for loop."""
    kb = KernelBuilder("collatz", [Arg("out", ptr(i32))])
    pid = kb.program_id(0)
    with kb.while_loop([pid + 1, kb.constant(0)]) as loop:
        with loop.condition() as (x, count):
            loop.continue_if(x > 1, x, count)
        with loop.body() as (x, count):
            with kb.if_else(x % 2 == 0) as branch:
                with branch.then():
                    branch.yield_(x // 2)
                with branch.otherwise():
                    branch.yield_(x * 3 + 1)
            loop.yield_(branch.results[0], count + 1)
    count = loop.results[1]
    with kb.for_loop(0, 10, 3, [count]) as counted:
        counted.yield_(counted.carried[0] + counted.index)
    with kb.if_else(pid >= 0) as branch, branch.then():
        kb.store(kb.arg("out") + pid, counted.results[0])
    out = np.zeros(30, np.int32)
    run_kernel(kb.finish(), 30, {"out": out}, seed=3)

    def steps(x: int) -> int:
        return 0 if x == 1 else 1 + steps(x // 2 if x % 2 == 0 else 3 * x + 1)

    assert out.tolist() == [steps(pid + 1) + 18 for pid in range(30)]


KINDS = {
    "max": np.max,
    "min": np.min,
    "sum": np.sum,
    "or": np.bitwise_or.reduce,
    "and": np.bitwise_and.reduce,
    "xor": np.bitwise_xor.reduce,
    "umax": lambda x, axis: np.max(x.view(np.uint32), axis=axis).view(np.int32),
    "umin": lambda x, axis: np.min(x.view(np.uint32), axis=axis).view(np.int32),
    "prod": np.prod,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axis", [0, 1])
def test_reductions(kind: str, axis: int) -> None:
    kb = KernelBuilder("reduce", [Arg("x", ptr(i32)), Arg("out", ptr(i32))])
    x, out = kb.args
    rows, cols = kb.arange(0, 8), kb.arange(0, 16)
    tile = kb.load(x + rows[:, None] * 16 + cols[None, :])
    kb.store(out + (cols if axis == 0 else rows), kb.reduce(tile, axis, kind))
    data = np.random.default_rng(0).integers(-(2**31), 2**31, (8, 16)).astype(np.int32)
    result = np.zeros(16 if axis == 0 else 8, np.int32)
    run_kernel(kb.finish(), 1, [data, result])
    assert (result == KINDS[kind](data, axis=axis).astype(np.int32)).all()


def test_scans_and_reductions_of_several_values() -> None:
    kb = KernelBuilder("scan", [Arg("x", ptr(i32)), Arg("out", ptr(i32))])
    x, out = kb.args
    lane = kb.arange(0, 16)
    data = kb.load(x + lane)
    kb.store(out + lane, kb.cumsum(data))
    kb.store(out + 16 + lane, kb.cumsum(data, reverse=True))

    def first_largest(a: tuple[Value, ...], b: tuple[Value, ...]) -> tuple[Value, Value]:
        left = a[0] >= b[0]
        return kb.where(left, a[0], b[0]), kb.where(left, a[1], b[1])

    for index, value in enumerate(kb.reduce_many([data, lane], 0, first_largest)):
        kb.store(out + 32 + index, value)
    values = np.random.default_rng(1).integers(-9, 9, 16).astype(np.int32)
    result = np.zeros(34, np.int32)
    run_kernel(kb.finish(), 1, [values, result])
    assert (result[:16] == np.cumsum(values)).all()
    assert (result[16:32] == np.cumsum(values[::-1])[::-1]).all()
    assert result[32:].tolist() == [values.max(), values.argmax()]


def test_shapes() -> None:
    kb = KernelBuilder("shapes", [Arg("x", ptr(i32)), Arg("out", ptr(i32))])
    x, out = kb.args
    i, j = kb.arange(0, 4), kb.arange(0, 8)
    tile = kb.load(x + i[:, None] * 8 + j[None, :])
    turned = kb.reshape(kb.trans(tile), (32,))
    left, right = kb.split(kb.reshape(tile, (16, 2)))
    joined = kb.reshape(kb.join(right, left), (32,))
    cube = kb.reshape(kb.broadcast_to(tile[:, None, :], (4, 2, 8)), (64,))
    for index, value in enumerate((turned, joined)):
        kb.store(out + index * 32 + kb.arange(0, 32), value)
    kb.store(out + 64 + kb.arange(0, 64), cube)
    data = np.arange(32, dtype=np.int32)
    result = np.zeros(128, np.int32)
    run_kernel(kb.finish(), 1, [data, result])
    assert (result[:32] == data.reshape(4, 8).T.reshape(-1)).all()
    assert (result[32:64] == data.reshape(16, 2)[:, ::-1].reshape(-1)).all()
    assert (result[64:] == np.repeat(data.reshape(4, 1, 8), 2, axis=1).reshape(-1)).all()


def _outside(kb: KernelBuilder, n: Value) -> None:
    with kb.for_loop(0, n, 1) as loop:
        inner = loop.index + 1
    _ = inner + n


def _wrong_yield(kb: KernelBuilder, n: Value) -> None:
    with kb.for_loop(0, n, 1, [n]) as loop:
        loop.yield_(kb.cast(n, f32))


def _one_sided(kb: KernelBuilder, n: Value) -> None:
    with kb.if_else(n > 0) as branch, branch.then():
        branch.yield_(n)


MISUSES: dict[str, tuple[Callable[[KernelBuilder, Value], object], str]] = {
    "mixed types": (lambda kb, n: n + kb.cast(n, i64), "element types differ"),
    "mixed ranks": (lambda kb, n: kb.arange(0, 8) + kb.arange(0, 8)[:, None], "ranks"),
    "mixed shapes": (lambda kb, n: kb.arange(0, 8) + kb.arange(0, 4), "do not broadcast"),
    "float literal": (lambda kb, n: n + 0.5, "float literal"),
    "large literal": (lambda kb, n: n + 2**40, "does not fit"),
    "integer /": (lambda kb, n: n / 2, "no 'div'"),
    "truth": (lambda kb, n: 1 if n > 0 else 2, "no truth"),
    "odd range": (lambda kb, n: kb.arange(0, 48), "power of two"),
    "load from a number": (lambda kb, n: kb.load(n), "pointer is needed"),
    "store of another type": (lambda kb, n: kb.store(kb.arg("p"), n), "f32 is needed"),
    "other without mask": (lambda kb, n: kb.load(kb.arg("p"), other=0.0), "without a mask"),
    "unknown argument": (lambda kb, n: kb.arg("q"), "no argument 'q'"),
    "unknown reduction": (lambda kb, n: kb.reduce(kb.arange(0, 8), 0, "mean"), "mean"),
    "bad axis": (lambda kb, n: kb.reduce(kb.arange(0, 8), 1, "sum"), "outside the shape"),
    "bad dot": (lambda kb, n: kb.dot(kb.zeros((16, 32), f32), kb.zeros((16, 32), f32)), "does not give"),
    "division by zero": (lambda kb, n: n // 0, "by zero"),
    "index": (lambda kb, n: kb.arange(0, 8)[cast("Any", 0)], "index a kernel value"),
    "use outside": (_outside, "outside the loop"),
    "yield of another type": (_wrong_yield, "loop yield"),
    "one-sided yield": (_one_sided, "different types"),
    "capture": (
        lambda kb, n: kb.reduce_many([kb.arange(0, 8)], 0, lambda a, b: (a[0] + b[0] * n,)),
        "outside the loop",
    ),
    "early results": (lambda kb, n: kb.for_loop(0, n, 1).results, "after the `with`"),
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_raises_at_once(name: str) -> None:
    kb = KernelBuilder("k", [Arg("p", ptr(f32)), Arg("n", i32)])
    misuse, message = MISUSES[name]
    with pytest.raises(LoweringError, match=message):
        misuse(kb, kb.arg("n"))
