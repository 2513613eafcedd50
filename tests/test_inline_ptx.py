"""Inline PTX of several instructions, executed for each thread of a warpgroup, against its meaning."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import f32

from compilemask.dialects.semantics.triton_memory import Memory
from compilemask.dialects.semantics.triton_ptx import add_in_memory, ptx
from compilemask.dialects.triton.inline_ptx import (
    ADD_IN_MEMORY,
    KEEP_WHERE_SET,
    LOGARITHM,
    MULTIPLY_UNLESS_ONE,
    RECIPROCAL,
)

ROWS = 64
FLOATS = {"0fFF800000": -math.inf, "0f00000000": 0.0}


def places(columns: int) -> np.ndarray:
    """Row and column of each register of each thread of an accumulator: [128, columns / 2, 2] (PTX ISA, wgmma)."""
    thread, register = np.arange(128)[:, None], np.arange(columns // 2)[None]
    warp, lane = thread // 32, thread % 32
    row = 16 * warp + lane // 4 + 8 * (register // 2 % 2)
    column = 8 * (register // 4) + 2 * (lane % 4) + register % 2
    return np.stack(np.broadcast_arrays(row, column), axis=-1)


def run(text: str, floats: list[float], words: list[int]) -> list[float]:
    """`and`, `setp.ne` and `selp` on a thread's registers: results, the floats that they begin as, and words."""
    registers: dict[str, Any] = {f"${i}": x for i, x in enumerate([*floats, *floats, *words])} | FLOATS
    for name, target, first, second, last in re.findall(r"(\S+) (\S+), (\S+), ([^,;]+)(?:, (\S+))?;", text):
        if name == "and.b32":
            registers[target] = registers[first] & int(second)
        elif name == "setp.ne.b32":
            registers[target] = registers[first] != int(second)
        else:
            assert name == "selp.f32"
            registers[target] = registers[first] if registers[last] else registers[second]
    return [float(registers[f"${i}"]) for i in range(len(floats))]


@pytest.mark.parametrize("columns", [64, 128])
@pytest.mark.parametrize("key", KEEP_WHERE_SET)
def test_keep_where_set(key: tuple[float, int], columns: int) -> None:
    found = KEEP_WHERE_SET[key]
    random = np.random.default_rng(columns)
    x = random.standard_normal((ROWS, columns), dtype=np.float32)
    by_lane = random.integers(0, 2**32, (ROWS, columns // 64, 4), dtype=np.uint32)
    half, lane = np.arange(columns) // 64, np.arange(columns) // 2 % 4
    words = by_lane[:, half, lane].view(np.int32)
    expected = ptx(found.text, (x, words))
    for thread in places(columns):
        for start in range(0, len(thread), found.packed):
            row, column = thread[start : start + found.packed].T
            got = run(found.text, x[row, column].tolist(), words[row, column].tolist())
            assert np.array_equal(np.array(got, dtype=np.float32), expected[row, column])


@pytest.mark.parametrize("key", KEEP_WHERE_SET)
def test_bits_of_columns(key: tuple[float, int]) -> None:
    """Bit 2 * (c >> 3) + (c & 1) of sixteen is that of column c."""
    x = np.ones((1, 64), dtype=np.float32)
    for column in range(64):
        word = np.full((1, 64), 1 << (2 * (column >> 3) + (column & 1)), dtype=np.int32)
        found = ptx(KEEP_WHERE_SET[key].text, (x, word))
        octet, pair = np.arange(64) >> 3, np.arange(64) & 1
        shown = (octet == column >> 3) & (pair == (column & 1))
        assert np.array_equal(found[0], np.where(shown, 1.0, np.float32(key[0])))


def run_warp(text: str, floats: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """What the threads of a warp, which votes, make of their registers: floats and factors [32, n]."""
    registers = np.concatenate([floats, floats, factors], axis=1)
    predicate = np.zeros(len(floats), dtype=np.bool_)
    multiplies = True
    for line in text.splitlines():
        name, numbers = line.split()[0], [int(number) for number in re.findall(r"\$(\d+)", line)]
        if name in ("setp.neu.f32", "setp.neu.or.f32"):
            assert "0f3F800000" in line
            differs = registers[:, numbers[0]] != 1
            predicate = predicate | differs if line.endswith(", p;") else differs
        elif name == "vote.sync.any.pred":
            predicate[:] = predicate.any()
        elif name == "@!p":
            assert len(set(predicate.tolist())) == 1, "the branch is taken by some threads alone"
            multiplies = bool(predicate[0])
        elif name == "mul.f32" and multiplies:
            target, first, second = numbers
            registers[:, target] = registers[:, first] * registers[:, second]
        else:
            assert name in ("{", ".reg", "mul.f32", "DONE:", "}")
    return registers[:, : floats.shape[1]]


@pytest.mark.parametrize("factor", [0.5, math.nan, math.inf])
@pytest.mark.parametrize("place", [*np.ndindex(2, 2), None])
def test_multiply_unless_one(place: tuple[int, int] | None, factor: float) -> None:
    """A single factor that is not 1, of the first or the last thread, of its first or its second row."""
    count = MULTIPLY_UNLESS_ONE.packed
    x = np.random.default_rng(0).standard_normal((32, count), dtype=np.float32)
    by_row = np.ones((32, 2), dtype=np.float32)
    if place is not None:
        by_row[31 * place[0], place[1]] = factor
    factors = by_row[:, np.arange(count) // 2 % 2]
    expected = ptx(MULTIPLY_UNLESS_ONE.text, (x, factors))
    assert np.array_equal(run_warp(MULTIPLY_UNLESS_ONE.text, x, factors), expected, equal_nan=True)


def test_approximations() -> None:
    """One instruction each; what they are off by is the hardware's."""
    x = np.float32(2.0) ** np.arange(-30, 101, dtype=np.float32) * np.float32(1.3)
    assert np.allclose(ptx(LOGARITHM, (x,)), np.log2(x.astype(np.float64)), atol=1e-5)
    assert np.allclose(ptx(RECIPROCAL, (x,)) * x, 1.0)
    assert ptx(LOGARITHM, (np.zeros(1, np.float32),)) == -math.inf
    for text in (LOGARITHM, RECIPROCAL):
        assert len(re.findall(";", text)) == 1


def test_add_in_memory() -> None:
    """Four neighbours from the first of four addresses, some twice, if the third operand is not negative."""
    text, count = ADD_IN_MEMORY.text, ADD_IN_MEMORY.packed
    assert "setp.ge.s32 p, $12, 0;\n@p red.global.add.v4.f32 [$4], {$8, $9, $10, $11};" in text
    random, columns = np.random.default_rng(0), 64
    x = random.integers(-9, 9, (ROWS, columns)).astype(np.float32)
    fours, where = random.integers(0, 100, (ROWS, columns)), np.ones((ROWS, columns), np.int32)
    where[16:32] = -1
    found, expected = np.zeros(400, np.float32), np.zeros(400, np.float32)
    memory = Memory()
    base = memory.add("sums", found, f32)
    results = add_in_memory(memory, base + 16 * fours, x, where)
    for thread in places(columns):
        for start in range(0, len(thread), count):
            row, column = thread[start : start + count].T
            if where[row[0], column[0]] >= 0:
                expected[4 * fours[row[0], column[0]] + np.arange(count)] += x[row, column]
    assert np.array_equal(found, expected)
    assert not results.any()
    add_in_memory(memory, base + 16 * fours, x, np.full_like(where, -1))
    assert np.array_equal(found, expected)
