"""The executable meaning of the mask, interval and tiling levels, against loops over single pairs and rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i32
from xdsl.ir import Block, Operation

from compilemask.dialects import arith, interval, mask, tiling
from compilemask.dialects.semantics import arith as arith_semantics
from compilemask.dialects.semantics import interval as interval_semantics
from compilemask.dialects.semantics import mask as mask_semantics
from compilemask.dialects.semantics import tiling as tiling_semantics
from compilemask.language.text import parse_module

OFFSETS = np.array([0, 3, 3, 10, 14, 14])


def interval_function(body: str, arity: str, arguments: str = "") -> interval.FuncOp:
    """The function with the given operations, which return `%s`."""
    text = f"""interval.func @f(%q: i32, %queries: i32, %keys: i32{arguments}) -> !interval.set<{arity}> {{
      %zero = arith.constant 0 : i32
      %one = arith.constant 1 : i32
      %three = arith.constant 3 : i32
      {body}
      interval.return %s : !interval.set<{arity}>
    }}"""
    func = parse_module(text).body.block.first_op
    assert isinstance(func, interval.FuncOp)
    return func


def mask_function(text: str) -> mask.FuncOp:
    func = parse_module(text).body.block.first_op
    assert isinstance(func, mask.FuncOp)
    return func


# ---- arith ----


def _operation(kind: type[Operation], *values: int) -> int:
    operands = Block(arg_types=[i32] * len(values)).args
    op = kind(*operands)  # pyright: ignore[reportCallIssue]
    return int(arith_semantics.execute(op, [np.asarray(value) for value in values]))


def signed(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


PYTHON: dict[type[Operation], Callable[[int, int], int]] = {
    xdsl_arith.AddiOp: lambda a, b: a + b,
    xdsl_arith.SubiOp: lambda a, b: a - b,
    xdsl_arith.MuliOp: lambda a, b: a * b,
    xdsl_arith.FloorDivSIOp: lambda a, b: a // b,
    xdsl_arith.CeilDivSIOp: lambda a, b: -(-a // b),
    xdsl_arith.DivSIOp: lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    xdsl_arith.RemSIOp: lambda a, b: a - abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) * b,
    xdsl_arith.DivUIOp: lambda a, b: signed(a % 2**32 // (b % 2**32)),
    xdsl_arith.RemUIOp: lambda a, b: signed(a % 2**32 % (b % 2**32)),
    xdsl_arith.MinSIOp: min,
    xdsl_arith.MaxSIOp: max,
    xdsl_arith.MinUIOp: lambda a, b: signed(min(a % 2**32, b % 2**32)),
    xdsl_arith.MaxUIOp: lambda a, b: signed(max(a % 2**32, b % 2**32)),
    xdsl_arith.AndIOp: lambda a, b: a & b,
    xdsl_arith.OrIOp: lambda a, b: a | b,
    xdsl_arith.XOrIOp: lambda a, b: a ^ b,
}


@pytest.mark.parametrize("kind", PYTHON, ids=lambda kind: kind.name)
@given(a=st.integers(-30000, 30000), b=st.integers(-30000, 30000).filter(bool))
def test_integers(kind: type[Operation], a: int, b: int) -> None:
    assert _operation(kind, a, b) == PYTHON[kind](a, b)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(0, 31))
def test_shifts(value: int, amount: int) -> None:
    assert _operation(xdsl_arith.ShRSIOp, value, amount) == value >> amount
    assert _operation(xdsl_arith.ShRUIOp, value, amount) == signed(value % 2**32 >> amount)
    if value << amount == signed(value << amount):
        assert _operation(xdsl_arith.ShLIOp, value, amount) == value << amount
    else:
        with pytest.raises(OverflowError, match="shli leaves 32 bits"):
            _operation(xdsl_arith.ShLIOp, value, amount)


@pytest.mark.parametrize("kind", [xdsl_arith.ShLIOp, xdsl_arith.ShRSIOp, xdsl_arith.ShRUIOp])
@pytest.mark.parametrize("amount", [-1, 32, 40])
def test_shifts_by_more_bits_than_there_are(kind: type[Operation], amount: int) -> None:
    with pytest.raises(OverflowError, match=f"a shift by {amount} to {amount} bits"):
        _operation(kind, 1, amount)


@pytest.mark.parametrize("predicate", arith.CMPI_PREDICATES)
@given(a=st.integers(-3, 3), b=st.integers(-3, 3))
def test_comparisons(predicate: str, a: int, b: int) -> None:
    lhs, rhs = Block(arg_types=[i32, i32]).args
    found = arith_semantics.execute(arith.CmpiOp(lhs, rhs, predicate), [np.asarray(a), np.asarray(b)])
    assert bool(found) == arith.compare_integers(predicate, IntegerAttr(a, i32), IntegerAttr(b, i32))


def test_leaving_32_bits_is_an_error() -> None:
    with pytest.raises(OverflowError, match=r"arith.addi leaves 32 bits"):
        _operation(xdsl_arith.AddiOp, 2**31 - 1, 1)


def test_arguments_are_checked() -> None:
    func = mask_function("mask.func @m(%n: i32, %t: memref<?xi32>) -> !mask.region {\n%r = mask.all\nmask.return %r\n}")
    with pytest.raises(TypeError, match="takes 2 arguments, got 1"):
        mask_semantics.visible(func, [3], 4, 4)
    with pytest.raises(TypeError, match=r"argument t of @m is memref.*rank 1, got rank 0"):
        mask_semantics.visible(func, [3, 3], 4, 4)
    with pytest.raises(TypeError, match="must hold integers, got float64"):
        mask_semantics.visible(func, [3.5, np.array([3])], 4, 4)  # pyright: ignore[reportArgumentType]


# ---- tables ----


@given(st.lists(st.integers(-2, 20), min_size=1, max_size=8).map(sorted), st.integers(-4, 24))
def test_segment_of(offsets: list[int], position: int) -> None:
    held = [(max(begin, 0), end) for begin, end in pairwise(offsets) if begin <= position < end]
    begin, end = arith_semantics.segment_of(np.array(offsets), np.asarray(position))
    assert [(int(begin), int(end))] == (held or [(position + 1, position + 1)])


def test_segment_ends_never_fall() -> None:
    begin, end = arith_semantics.segment_of(OFFSETS, np.arange(20))
    assert (np.diff(begin) >= 0).all()
    assert (np.diff(end) >= 0).all()


def test_read_takes_the_nearest_entry() -> None:
    assert arith_semantics.read(np.array([5, 7, 9]), np.array([-3, 0, 2, 8])).tolist() == [5, 5, 9, 9]


@given(st.integers(-5, 2**30))
def test_isqrt(value: int) -> None:
    root = int(interval_semantics.isqrt(np.asarray(value)))
    assert root == -1 if value < 0 else root**2 <= value < (root + 1) ** 2


# ---- masks ----


def test_rows_of_a_mask() -> None:
    text = """mask.func @m(%n: i32) -> !mask.region {
      %near = mask.band from %n
      %r = mask.complement %near
      mask.return %r
    }"""
    func = mask_function(text)
    whole = mask_semantics.visible(func, [-7], 300, 200)
    assert whole.shape == (300, 200)
    for part in (slice(0, 128), slice(128, 256), slice(256, 500), slice(5, 5)):
        assert (mask_semantics.visible(func, [-7], 300, 200, rows=part) == whole[part]).all()


# ---- intervals ----

FAMILY = """%s = interval.family %zero to %three at %one pitch %width {
  ^bb0(%line: i32):
    %base = arith.muli %line, %width : i32
    %lo = arith.subi %base, %one : i32
    %hi0 = arith.addi %base, %q : i32
    %hi = arith.subi %hi0, %one : i32
    interval.member %lo to %hi
  } : !interval.set<3>"""


def test_family_members_stay_in_their_cells() -> None:
    func = interval_function(FAMILY, "3", ", %width: i32")
    width, queries, keys = 5, 12, 20
    expected = np.zeros((queries, keys), dtype=bool)
    for q, line, kv in np.ndindex(queries, 3, keys):
        inside = 1 + line * width <= kv < 1 + (line + 1) * width
        expected[q, kv] |= inside and line * width - 1 <= kv < line * width + q - 1
    assert (interval_semantics.visible(func, [width], queries, keys) == expected).all()
    sets = interval_semantics.evaluate(func, [width], queries, keys)
    assert (interval_semantics.dense_of(sets, keys) == expected).all()
    interval_semantics.check_normal_form(func, [width], queries, keys)
    (family,) = sets.families
    lo, hi = family.members(np.array([[4], [11]]), np.array([[0, 1, 2]]))
    assert lo.tolist() == [[1, 6, 11]] * 2
    assert hi.tolist() == [[3, 8, 13], [6, 11, 16]]


ALGEBRA = """%past = interval.range %zero to %q
  %b, %e = interval.segment_of %t at %q : memref<?xi32>
  %own = interval.range %b to %e
  %both = interval.union %past, %own : (!interval.set<1>, !interval.set<1>) -> !interval.set<2>
  %future = interval.complement %past : (!interval.set<1>) -> !interval.set<2>
  %some = interval.intersect %both, %future : (!interval.set<2>, !interval.set<2>) -> !interval.set<4>
  %first = interval.read %t[%one] : memref<?xi32>
  %late = arith.cmpi sge, %q, %first : i32
  %s = interval.when %late, %some : !interval.set<4>"""


def test_algebra_of_intervals() -> None:
    func = interval_function(ALGEBRA, "4", ", %t: memref<?xi32>")
    q, kv = np.arange(20)[:, None], np.arange(16)[None, :]
    begin, end = arith_semantics.segment_of(OFFSETS, q)
    expected = (begin <= kv) & (kv < end) & (kv >= q) & (q >= OFFSETS[1])
    assert (interval_semantics.visible(func, [OFFSETS], 20, 16) == expected).all()
    assert (interval_semantics.visible(func, [OFFSETS], 20, 16, rows=slice(3, 9)) == expected[3:9]).all()
    with pytest.raises(AssertionError, match=r"not in normal form: interval.when in a concat"):
        interval_semantics.evaluate(func, [OFFSETS], 20, 16)


def test_a_set_of_no_parts() -> None:
    func = interval_function("%s = interval.concat : () -> !interval.set<0>", "0")
    sets = interval_semantics.evaluate(func, [], 5, 7)
    assert (sets.ranges, sets.families) == ((), ())
    assert interval_semantics.dense_of(sets, 7).shape == (5, 7)
    assert not interval_semantics.dense_of(sets, 7).any()


BETWEEN = """%q3 = arith.addi %q, %three : i32
  %inner = interval.range %zero to %{inner}
  %outer = interval.range %zero to %{outer}
  %s = interval.between %inner, %outer {{
  ^bb0(%row: i32, %kv: i32):
    %sum = arith.addi %kv, %q : i32
    %bit = arith.andi %sum, %one : i32
    %v = arith.cmpi eq, %bit, %zero : i32
    interval.yield %v
  }} : !interval.set<1>, !interval.set<1>"""


def test_between() -> None:
    func = interval_function(BETWEEN.format(inner="q", outer="q3"), "?")
    q, kv = np.arange(9)[:, None], np.arange(11)[None, :]
    expected = (kv < q) | ((kv < q + 3) & ((kv + q) % 2 == 0))
    assert (interval_semantics.visible(func, [], 9, 11) == expected).all()
    assert (interval_semantics.dense_of(interval_semantics.evaluate(func, [], 9, 11), 11) == expected).all()
    interval_semantics.check_normal_form(func, [], 9, 11)
    wrong = interval_function(BETWEEN.format(inner="q3", outer="q"), "?")
    with pytest.raises(AssertionError, match="inner set leaves the outer set"):
        interval_semantics.check_normal_form(wrong, [], 9, 11)


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        (("%one to %q", "%zero to %one"), "range 1 starts before an earlier one ends, first in row 2"),
        (("%zero to %q", "%three to %keys"), "first in row 4"),
    ],
)
def test_parts_out_of_order(ranges: tuple[str, str], message: str) -> None:
    body = f"""%a = interval.range {ranges[0]}
      %b = interval.range {ranges[1]}
      %s = interval.concat %a, %b : (!interval.set<1>, !interval.set<1>) -> !interval.set<2>"""
    with pytest.raises(AssertionError, match=message):
        interval_semantics.check_normal_form(interval_function(body, "2"), [], 9, 11)


def test_families_must_not_overlap_ranges() -> None:
    body = (
        FAMILY.replace("%s =", "%f =")
        + """
      %a = interval.range %zero to %three
      %s = interval.concat %a, %f : (!interval.set<1>, !interval.set<3>) -> !interval.set<4>"""
    )
    with pytest.raises(AssertionError, match="parts overlap"):
        interval_semantics.check_normal_form(interval_function(body, "4", ", %width: i32"), [5], 12, 20)
    with pytest.raises(AssertionError, match="pitch below 1"):
        interval_semantics.check_normal_form(interval_function(FAMILY, "3", ", %width: i32"), [0], 12, 20)
    short = FAMILY.replace("set<3>", "set<2>")
    with pytest.raises(AssertionError, match="more than 2 lines"):
        interval_semantics.check_normal_form(interval_function(short, "2", ", %width: i32"), [5], 12, 20)


# ---- tiles ----

TILING = """
interval.func @own(%q: i32, %queries: i32, %keys: i32, %t: memref<?xi32>) -> !interval.set<2> {{
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %end = interval.read %t[%one] : memref<?xi32>
  %prompt = interval.range %zero to %end
  %b, %e = interval.segment_of %t at %q : memref<?xi32>
  %lo = arith.maxsi %b, %end : i32
  %own = interval.range %lo to %e
  %s = interval.concat %prompt, %own : (!interval.set<1>, !interval.set<1>) -> !interval.set<2>
  interval.return %s : !interval.set<2>
}}
tiling.func @tiles(%tile: i32, %queries: i32, %keys: i32, %t: memref<?xi32>) -> !tiling.runs
    attributes {{shape = #tiling.shape<64 x 128>, patterns = #tiling.patterns stored,
                reserve = #tiling.reserve<unknown>}} {{
  %rows = tiling.rows %tile of %queries
  %a = tiling.envelope 0 of @own over %rows given %queries, %keys, %t : i32, i32, memref<?xi32>
  %b = tiling.envelope 1 of @own over %rows given %queries, %keys, %t : i32, i32, memref<?xi32>
  %runs = tiling.classify @own over %rows {within} given %queries, %keys, %t : i32, i32, memref<?xi32>
  tiling.return %runs
}}"""


def tiling_module(within: str) -> tuple[ModuleOp, interval.FuncOp, tiling.FuncOp]:
    module = parse_module(TILING.format(within=within))
    sets, tiles = module.body.block.ops
    assert isinstance(sets, interval.FuncOp)
    assert isinstance(tiles, tiling.FuncOp)
    return module, sets, tiles


@pytest.mark.parametrize("within", ["within %a, %b", ""])
@pytest.mark.parametrize(("queries", "keys"), [(512, 512), (300, 700), (700, 300), (1, 1)])
def test_runs_are_exact(within: str, queries: int, keys: int) -> None:
    module, sets, tiles = tiling_module(within)
    table = np.array([0, 130, 256, 256, 420, 700])
    dense = interval_semantics.visible(sets, [table], queries, keys)
    runs = tiling_semantics.runs(tiles, module, [table], queries, keys)
    expected = tiling_semantics.brute_force_classes(dense, rows=64)
    assert (tiling_semantics.classes(runs, -(-keys // 128)) == expected).all()
    assert (tiling_semantics.visible(tiles, module, [table], queries, keys) == dense).all()


def test_a_missing_cover_is_found() -> None:
    module, _, tiles = tiling_module("within %a")
    with pytest.raises(AssertionError, match="see keys outside all covers"):
        tiling_semantics.runs(tiles, module, [np.array([0, 130, 256, 420])], 400, 400)


def test_classes_by_definition() -> None:
    dense = np.zeros((200, 300), dtype=bool)
    dense[:128, :128] = True
    dense[5, 200] = True
    dense[128:, 128:] = True
    found = tiling_semantics.brute_force_classes(dense)
    empty, partial, full = tiling_semantics.EMPTY, tiling_semantics.PARTIAL, tiling_semantics.FULL
    assert found.tolist() == [[full, partial, empty], [empty, full, partial]], (
        "rows behind the end do not count, keys do"
    )


@given(st.data())
def test_classes_count_as_kinds_do(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    queries, keys = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 70))
    dense: NDArray[np.bool_] = rng.random((queries, keys)) < rng.choice([0.02, 0.5, 0.99, 1.0])
    whole = tiling_semantics.brute_force_classes(dense, rows=16, keys=16)
    for tile in range(-(-queries // 16)):
        part = dense[tile * 16 : (tile + 1) * 16]
        assert tiling_semantics.brute_force_kinds(part, 16) == whole[tile].tolist()
