"""What a `tiling.func` means: the runs of key tiles that each query tile visits, executed from the IR."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr
from xdsl.ir import SSAValue

from compilemask.dialects import interval, tiling
from compilemask.dialects.semantics import arith
from compilemask.dialects.semantics import interval as interval_semantics
from compilemask.dialects.semantics.interval import Argument, RowSets

EMPTY, PARTIAL, FULL = 0, 1, 2
"""Classes of a tile, as `brute_force_classes` and `classes` number them."""


class Run(NamedTuple):
    """Key tiles begin <= tile < end of one kind."""

    kind: Literal["full", "partial"]
    begin: int
    end: int


class Envelope(NamedTuple):
    """Key positions: what some row sees of a part lies in the cover, every row sees all of the core. Half-open."""

    cover: tuple[int, int]
    core: tuple[int, int]


def runs(
    func: tiling.FuncOp, module: ModuleOp, arguments: Sequence[Argument], queries: int, keys: int
) -> list[list[Run]]:
    """The runs of every query tile, executed from the IR. Raises `AssertionError` if an envelope is not sound."""
    machine = _Machine(func, module, arguments, queries, keys)
    return [machine.tile(tile) for tile in range(-(-queries // func.shape.rows.data))]


def visible(
    func: tiling.FuncOp, module: ModuleOp, arguments: Sequence[Argument], queries: int, keys: int
) -> NDArray[np.bool_]:
    """What a kernel sees that follows the runs: all pairs of full tiles, and the visible pairs of partial ones."""
    rows, width = func.shape.rows.data, func.shape.keys.data
    machine = _Machine(func, module, arguments, queries, keys)
    seen = np.zeros((queries, keys), dtype=np.bool_)
    for tile in range(-(-queries // rows)):
        part = slice(tile * rows, min((tile + 1) * rows, queries))
        for kind, begin, end in machine.tile(tile):
            columns = slice(begin * width, min(end * width, keys))
            seen[part, columns] = True if kind == "full" else machine.dense(machine.callee(), part)[:, columns]
    return seen


def brute_force_classes(dense: NDArray[np.bool_], rows: int = 128, keys: int = 128) -> NDArray[np.int8]:
    """The class of every tile of a dense mask, by its definition alone: int8 [query tiles, key tiles]."""
    queries, total = dense.shape
    result = np.zeros((-(-queries // rows), -(-total // keys)), dtype=np.int8)
    for m, n in np.ndindex(*result.shape):
        tile = dense[m * rows : (m + 1) * rows, n * keys : (n + 1) * keys]
        if tile.any():
            result[m, n] = FULL if tile.all() and tile.shape[1] == keys else PARTIAL
    return result


def classes(tile_runs: Sequence[Sequence[Run]], key_tiles: int) -> NDArray[np.int8]:
    """Runs as the class of every tile: int8 [query tiles, key tiles]. Raises if runs are not ascending and disjoint."""
    result = np.zeros((len(tile_runs), key_tiles), dtype=np.int8)
    for row, found in enumerate(tile_runs):
        last = 0
        for kind, begin, end in found:
            assert last <= begin < end <= key_tiles, f"run {begin} to {end} of query tile {row} is out of order"
            result[row, begin:end] = FULL if kind == "full" else PARTIAL
            last = end
    return result


@dataclass
class _Machine:
    """Executes a tiling function, one query tile at a time."""

    func: tiling.FuncOp
    module: ModuleOp
    arguments: Sequence[Argument]
    queries: int
    keys: int
    sets: dict[str, RowSets] = field(default_factory=dict[str, RowSets])

    def tile(self, tile: int) -> list[Run]:
        """The runs of one query tile."""
        block = self.func.body.block
        scalars = (tile, self.queries, self.keys, *self.arguments)
        assert len(scalars) == len(block.args), (
            f"@{self.func.sym_name.data} takes {len(block.args) - 3} mask parameters"
        )
        values: dict[SSAValue, arith.Value] = {
            argument: arith.as_argument(value, argument.type, f"argument {argument.index}")
            for argument, value in zip(block.args, scalars, strict=True)
        }
        rows: dict[SSAValue, slice] = {}
        envelopes: dict[SSAValue, Envelope] = {}
        found: dict[SSAValue, list[Run]] = {}
        for op in block.ops:
            match op:
                case tiling.RowsOp():
                    begin = int(values[op.tile]) * self.func.shape.rows.data
                    rows[op.result] = slice(begin, min(begin + self.func.shape.rows.data, int(values[op.queries])))
                case tiling.EnvelopeOp():
                    self._check_call(op.arguments, values)
                    envelopes[op.result] = self._envelope(op.callee, op.part.value.data, rows[op.rows])
                case tiling.ClassifyOp():
                    self._check_call(op.arguments, values)
                    bounds = [envelopes[value] for value in op.envelopes]
                    found[op.result] = list(self._classify(op.callee, rows[op.rows], bounds))
                case tiling.ReturnOp():
                    return found[op.value]
                case _:
                    operands = [values[operand] for operand in op.operands]
                    values[op.results[0]] = arith.execute(op, operands)
        raise ValueError("a tiling.func without a terminator")

    def callee(self) -> SymbolRefAttr:
        """The interval function whose set the runs cover."""
        return next(op.callee for op in self.func.body.block.ops if isinstance(op, tiling.ClassifyOp))

    def dense(self, callee: SymbolRefAttr, rows: slice) -> NDArray[np.bool_]:
        """The pairs that some rows see."""
        func = self._lookup(callee)
        return interval_semantics.visible(func, self.arguments, self.queries, self.keys, rows=rows)

    def _lookup(self, callee: SymbolRefAttr) -> interval.FuncOp:
        for op in self.module.walk():
            if isinstance(op, interval.FuncOp) and op.sym_name == callee.root_reference:
                return op
        raise KeyError(f"no interval.func @{callee.string_value()} in the module")

    def _check_call(self, arguments: Sequence[SSAValue], values: dict[SSAValue, arith.Value]) -> None:
        """Envelopes and classes must be asked of the call that is running: (queries, keys, parameters...)."""
        expected = (self.queries, self.keys, *self.arguments)
        same = len(arguments) == len(expected) and all(
            np.array_equal(values[value], np.asarray(argument))
            for value, argument in zip(arguments, expected, strict=True)
        )
        assert same, "an interval function is called with other arguments than (queries, keys, parameters...)"

    def _envelope(self, callee: SymbolRefAttr, part: int, rows: slice) -> Envelope:
        name = callee.string_value()
        if name not in self.sets:
            func = self._lookup(callee)
            self.sets[name] = interval_semantics.evaluate(func, self.arguments, self.queries, self.keys)
        sets = self.sets[name]
        if sets.between is not None:
            assert part == 0, f"@{name} is a between, whose one part is 0, not {part}"
            return Envelope(_hull(_bounds(sets.between.outer, rows)), (0, 0))
        if part < len(sets.ranges):
            lo, hi = (bound[rows] for bound in sets.ranges[part])
            core = (int(lo.max()), int(hi.min())) if (lo < hi).all() else (0, 0)
            return Envelope(_hull([(lo, hi)]), core)
        number = part - len(sets.ranges)
        assert number < len(sets.families), f"tiling.envelope asks for part {part} of @{name}, which has fewer"
        family = sets.families[number]
        return Envelope(_hull([_cells(family, rows)]), (0, 0))

    def _classify(self, callee: SymbolRefAttr, rows: slice, envelopes: list[Envelope]) -> Iterator[Run]:
        dense = self.dense(callee, rows)
        self._check_envelopes(dense, envelopes, rows)
        width = self.func.shape.keys.data
        kinds = brute_force_kinds(dense, width)
        begin = 0
        for tile in range(1, len(kinds) + 1):
            if tile == len(kinds) or kinds[tile] != kinds[begin]:
                if kinds[begin] != EMPTY:
                    yield Run("full" if kinds[begin] == FULL else "partial", begin, tile)
                begin = tile

    def _check_envelopes(self, dense: NDArray[np.bool_], envelopes: list[Envelope], rows: slice) -> None:
        if not envelopes:
            return
        outside = np.ones(self.keys, dtype=np.bool_)
        for (begin, end), (core_begin, core_end) in envelopes:
            outside[max(begin, 0) : max(end, 0)] = False
            core = dense[:, max(core_begin, 0) : max(core_end, 0)]
            assert core.all(), f"rows {rows.start} to {rows.stop} do not see all of the core {core_begin} to {core_end}"
        assert not dense[:, outside].any(), f"rows {rows.start} to {rows.stop} see keys outside all covers"


def brute_force_kinds(dense: NDArray[np.bool_], width: int) -> list[int]:
    """The class of every key tile of some rows, by counting the visible pairs."""
    keys: int = dense.shape[1]
    if not dense.size:
        return [EMPTY] * -(-keys // width)
    counts = np.add.reduceat(dense.sum(axis=0, dtype=np.int64), np.arange(0, keys, width))
    return [EMPTY if count == 0 else FULL if count == dense.shape[0] * width else PARTIAL for count in counts.tolist()]


def _bounds(sets: RowSets, rows: slice) -> list[tuple[arith.Value, arith.Value]]:
    ranges = [(lo[rows], hi[rows]) for lo, hi in sets.ranges]
    return ranges + [_cells(family, rows) for family in sets.families]


def _cells(family: interval_semantics.Family, rows: slice) -> tuple[arith.Value, arith.Value]:
    """From the first line's cell to the last line's, per row; (0, 0) in rows without lines."""
    first, last, base, pitch = (x[rows] for x in (family.first, family.last, family.base, family.pitch))
    some = first < last
    return np.where(some, base + first * pitch, 0), np.where(some, base + last * pitch, 0)


def _hull(bounds: list[tuple[arith.Value, arith.Value]]) -> tuple[int, int]:
    """From the least lo to the greatest hi over the rows whose interval is not empty."""
    los = [lo[lo < hi].min() for lo, hi in bounds if (lo < hi).any()]
    his = [hi[lo < hi].max() for lo, hi in bounds if (lo < hi).any()]
    return (int(min(los)), int(max(his))) if los else (0, 0)


__all__ = ["EMPTY", "FULL", "PARTIAL", "Envelope", "Run", "brute_force_classes", "classes", "runs", "visible"]
