"""`compilemask diff A B`: whether two masks, or two versions of IR, show the same pairs, and a pair that differs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from compilemask.dialects import interval, mask, tiling
from compilemask.dialects.semantics import interval as interval_semantics
from compilemask.dialects.semantics import tiling as tiling_semantics
from compilemask.errors import MaskError, ShapeError
from compilemask.language.text import loads, parse_module
from compilemask.tools.arguments import mask_of, text_of
from compilemask.tools.draw import CHUNK, Rows, mask_rows
from compilemask.tools.examples import Parameter

MOST_POSITIONS = 1 << 16
"""Most queries and keys: every pair is looked at."""
LEADING = 3
"""Arguments of interval and tiling functions before the mask's parameters."""


@dataclass(frozen=True)
class Difference:
    """The first pair, row by row, that only one of two masks shows, and how many there are."""

    q: int
    kv: int
    first_shows: bool
    pairs: int


def difference(one: Rows, other: Rows, queries: int, keys: int) -> Difference | None:
    """What differs between two masks of `queries` x `keys` pairs, which are evaluated a few rows at a time."""
    first: tuple[int, int, bool] | None = None
    pairs = 0
    step = max(1, CHUNK // max(1, keys))
    for begin in range(0, queries, step):
        a, b = (rows(begin, min(begin + step, queries)) for rows in (one, other))
        different = a != b
        pairs += int(different.sum())
        if first is None and different.any():
            q, kv = np.unravel_index(int(different.argmax()), different.shape)
            first = (begin + int(q), int(kv), bool(a[q, kv]))
    return None if first is None else Difference(*first, pairs)


def rows_of(argument: str, options: argparse.Namespace, queries: int, keys: int) -> Rows:
    """The visible pairs of a mask by name, or of the function in a file: the mask, else the tiling, else the interval.

    Raises:
        MaskError: a file holds no such function, or a parameter is missing.
    """
    found = text_of(argument)
    if found is None:
        return mask_rows(mask_of(options, argument), queries, keys)
    parameters: dict[str, Parameter] = dict(options.param)
    module = parse_module(*found)
    if any(isinstance(op, mask.FuncOp) for op in module.walk()):
        return mask_rows(loads(*found, **parameters), queries, keys)
    return _function_rows(module, found[1], parameters, queries, keys)


def _function_rows(module: ModuleOp, file: str, parameters: Mapping[str, Parameter], queries: int, keys: int) -> Rows:
    tiles = [op for op in module.walk() if isinstance(op, tiling.FuncOp)]
    ranges = [op for op in module.walk() if isinstance(op, interval.FuncOp)]
    if len(tiles) == 1:
        values = _values(tiles[0], file, parameters)
        dense = tiling_semantics.visible(tiles[0], module, values, queries, keys)
        return lambda first, last: dense[first:last]
    if len(ranges) == 1:
        func, values = ranges[0], _values(ranges[0], file, parameters)
        return lambda first, last: interval_semantics.visible(func, values, queries, keys, rows=slice(first, last))
    raise MaskError(f"{file}: expected one mask.func, tiling.func or interval.func")


def _values(
    func: interval.FuncOp | tiling.FuncOp, file: str, parameters: Mapping[str, Parameter]
) -> list[int | NDArray[np.int32]]:
    values: list[int | NDArray[np.int32]] = []
    for argument in func.body.block.args[LEADING:]:
        name = argument.name_hint or f"arg{argument.index}"
        if name not in parameters:
            raise MaskError(f"{file}: @{func.sym_name.data} needs the parameter {name!r}; give it with --param")
        value = parameters[name]
        values.append(value if isinstance(value, int) else np.asarray(value, dtype=np.int32))
    return values


def report(options: argparse.Namespace) -> bool:
    """Compare the two masks of the command line and print what was found; whether they are equal."""
    queries, keys = options.seq, options.keys or options.seq
    for name, length in (("queries", queries), ("keys", keys)):
        if length > MOST_POSITIONS:
            raise ShapeError(f"{name} is {length}, at most {MOST_POSITIONS} are compared")
    one, other = (rows_of(argument, options, queries, keys) for argument in (options.a, options.b))
    found = difference(one, other, queries, keys)
    if found is None:
        print(f"{options.a} and {options.b} show the same of {queries:,} x {keys:,} pairs")
        return True
    shows, hides = (options.a, options.b) if found.first_shows else (options.b, options.a)
    print(
        f"{options.a} and {options.b} differ in {found.pairs:,} of {queries:,} x {keys:,} pairs, "
        f"first in (q, kv) = ({found.q}, {found.kv}): {shows} shows it, {hides} does not"
    )
    return False


__all__ = ["Difference", "difference", "report", "rows_of"]
