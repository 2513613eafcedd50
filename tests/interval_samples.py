"""Small interval functions in normal form, one of each kind, with parameters and a dense predicate to compare with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from xdsl.parser import Parser

from compilemask.dialects import interval
from compilemask.dialects.registry import make_context


class Sample(NamedTuple):
    """An interval function, its parameters for a number of positions, and what it means: dense(q, kv, *parameters)."""

    text: str
    parameters: Callable[[int, int], tuple[Any, ...]]
    dense: Callable[..., Any]

    @property
    def func(self) -> interval.FuncOp:
        """The function."""
        module = Parser(make_context(), self.text).parse_module()
        (func,) = module.body.block.ops
        assert isinstance(func, interval.FuncOp)
        return func


CAUSAL = """
interval.func @causal(%q: i32, %queries: i32, %keys: i32) -> !interval.set<1> {
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %hi = arith.addi %q, %one : i32
  %s = interval.range %zero to %hi
  interval.return %s : !interval.set<1>
}
"""
WINDOW = """
interval.func @window(%q: i32, %queries: i32, %keys: i32, %left: i32, %right: i32) -> !interval.set<1> {
  %one = arith.constant 1 : i32
  %lo = arith.subi %q, %left : i32
  %end = arith.addi %q, %right : i32
  %hi = arith.addi %end, %one : i32
  %s = interval.range %lo to %hi
  interval.return %s : !interval.set<1>
}
"""
SHARED_PROMPT = """
interval.func @shared_prompt(
    %q: i32, %queries: i32, %keys: i32, %offsets: memref<?xi32>, %prompt: i32) -> !interval.set<2> {
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %q1 = arith.addi %q, %one : i32
  %b, %e = interval.segment_of %offsets at %q : memref<?xi32>
  %h0 = arith.minsi %q1, %prompt : i32
  %l1 = arith.maxsi %b, %prompt : i32
  %p = interval.range %zero to %h0
  %o = interval.range %l1 to %q1
  %s = interval.concat %p, %o : (!interval.set<1>, !interval.set<1>) -> !interval.set<2>
  interval.return %s : !interval.set<2>
}
"""
DILATED = """
interval.func @dilated(%q: i32, %queries: i32, %keys: i32, %step: i32, %reach: i32) -> !interval.set<?> {
  %one = arith.constant 1 : i32
  %first = arith.subi %reach, %reach : i32
  %begin = arith.subi %first, %reach : i32
  %last = arith.addi %reach, %one : i32
  %family = interval.family %begin to %last at %q pitch %step {
  ^bb0(%line: i32):
    %d = arith.muli %line, %step : i32
    %lo = arith.addi %q, %d : i32
    %hi = arith.addi %lo, %one : i32
    interval.member %lo to %hi
  } : !interval.set<?>
  interval.return %family : !interval.set<?>
}
"""
LABELS = """
interval.func @labels(%q: i32, %queries: i32, %keys: i32, %label: memref<?xi32>, %near: i32) -> !interval.set<?> {
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %q1 = arith.addi %q, %one : i32
  %lo = arith.subi %q, %near : i32
  %inner = interval.range %lo to %q1
  %outer = interval.range %zero to %q1
  %s = interval.between %inner, %outer {
  ^bb0(%row: i32, %kv: i32):
    %a = interval.read %label[%row] : memref<?xi32>
    %b = interval.read %label[%kv] : memref<?xi32>
    %same = arith.cmpi eq, %a, %b : i32
    interval.yield %same
  } : !interval.set<1>, !interval.set<1>
  interval.return %s : !interval.set<?>
}
"""
NOTHING = """
interval.func @nothing(%q: i32, %queries: i32, %keys: i32) -> !interval.set<1> {
  %zero = arith.constant 0 : i32
  %s = interval.range %zero to %zero
  interval.return %s : !interval.set<1>
}
"""


def _offsets(queries: int, keys: int) -> tuple[Any, ...]:
    cuts = np.sort(np.random.default_rng(queries * 7919 + keys).integers(0, queries + 1, 5))
    return np.array([0, *cuts, cuts[-1], queries], dtype=np.int32), queries // 8


def _shared_prompt(q: Any, kv: Any, offsets: Any, prompt: int) -> Any:
    def segment(x: Any) -> Any:
        return np.searchsorted(offsets, x, side="right")

    return (kv <= q) & ((kv < prompt) | (segment(q) == segment(kv)))


def _labels(queries: int, keys: int) -> tuple[Any, ...]:
    # Long stretches of one label, so that some tiles are decided to be full or empty.
    values = np.random.default_rng(queries + keys).integers(0, 3, 1 + max(queries, keys) // 150)
    return np.repeat(values, 150).astype(np.int32), 3


SAMPLES = {
    "causal": Sample(CAUSAL, lambda queries, keys: (), lambda q, kv: kv <= q),
    "window": Sample(
        WINDOW, lambda queries, keys: (200, 70), lambda q, kv, left, right: (kv >= q - left) & (kv <= q + right)
    ),
    "window ahead": Sample(
        WINDOW, lambda queries, keys: (-130, 300), lambda q, kv, left, right: (kv >= q - left) & (kv <= q + right)
    ),
    "shared prompt": Sample(SHARED_PROMPT, _offsets, _shared_prompt),
    "dilated": Sample(
        DILATED,
        lambda queries, keys: (3, 60),
        lambda q, kv, step, reach: ((kv - q) % step == 0) & (abs(kv - q) <= step * reach),
    ),
    "labels": Sample(
        LABELS,
        _labels,
        lambda q, kv, label, near: (kv <= q) & ((kv >= q - near) | (label[q] == label[np.minimum(kv, len(label) - 1)])),
    ),
    "nothing": Sample(NOTHING, lambda queries, keys: (), lambda q, kv: (q < 0) & (kv < 0)),
}
