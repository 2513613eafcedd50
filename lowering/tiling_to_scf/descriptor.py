"""The descriptor of one mask, as a function of upstream dialects for the CPU.

    text = descriptor(Source(func, rows=128, shared=True))     # a module with func.func @descriptor

A call writes what belongs to one mask, and continues where that of the mask before ended: `State` says where. It writes
word for word what the device's kernels write (docs/descriptor.md), except for the header, and tells in the state if
there is too little room or a number leaves 32 bits.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import SSAValue

from compilemask.dialects import interval
from compilemask.lowering.descriptor_layout import (
    COLUMN_ROWS,
    KEYS,
    ORDER_WORDS,
    PATTERN_ROW_WORDS,
    TILE_WORDS,
    ceil_div,
    diagonal_steps,
    diagonal_unit,
    tile_cost,
)
from compilemask.lowering.interval_to_tiling import moving_bounds
from compilemask.lowering.tiling_to_scf.builder import I32, I64, FunctionBuilder, Value, memref
from compilemask.lowering.tiling_to_scf.interval_values import Scope
from compilemask.lowering.tiling_to_scf.row_sets import MaskRow, keys_below
from compilemask.lowering.tiling_to_tt.shared_patterns import FAR_END, FAR_ROW

NAME = "descriptor"
SIZES = (
    *("queries", "keys", "query_tiles", "key_tiles", "mask", "pair_capacity", "pattern_capacity"),
    *("tiles", "order", "visits", "sources", "patterns", "columns"),
)
"""Integers that a call gets: shapes, the number of the mask, and what `Layout` calls by these names."""
STATE = ("pairs", "patterns", "fault")
"""Integers that calls change: pairs and patterns that are used, and whether the descriptor cannot be built so."""
GROUP_BITS = COLUMN_ROWS.bit_length() - 1
EMPTY, PARTIAL, FULL, OPEN = range(4)
"""Classes of tiles; a predicate decides about open ones."""


@dataclass(frozen=True)
class Source:
    """What a function is made from: a mask in normal form, rows of a query tile, and whether patterns are shared."""

    func: interval.FuncOp
    rows: int
    shared: bool

    @property
    def arguments(self) -> dict[str, str]:
        """Names and types of the function's arguments, in order: the descriptor, which is 0 before; `SIZES` and
        `STATE`; memory for each key tile, [4, NK + 1], and each query tile, [NQ]; the mask's integers; its tables."""
        given = {"descriptor": memref(I32), "sizes": memref(I64, len(SIZES)), "state": memref(I64, len(STATE))}
        given |= {"of_key_tiles": memref(I64), "costs": memref(I64), "integers": memref(I64)}
        tables = sum(isinstance(x.type, MemRefType) for x in self._parameters)
        return given | {f"table{number}": memref(I32) for number in range(tables)}

    @property
    def _parameters(self) -> Sequence[SSAValue]:
        return self.func.body.block.args[3:]

    def bind(self, fb: FunctionBuilder) -> dict[SSAValue, Value]:
        """The values of the mask's parameters."""
        found: dict[SSAValue, Value] = {}
        tables = integers = 0
        for parameter in self._parameters:
            if isinstance(parameter.type, MemRefType):
                found[parameter] = fb.arg(f"table{tables}")
                tables += 1
            else:
                found[parameter] = fb.load(fb.arg("integers"), fb.constant(integers))
                integers += 1
        return found


def descriptor(source: Source) -> str:
    """The module. Raises LoweringError for arithmetic that has no form here."""
    build = _Build(source)
    fb = build.fb
    diagonals = build.shared_patterns() if source.shared else []
    with fb.for_loop(fb.constant(0), fb.index(build.sizes["query_tiles"]), 1, [fb.constant(0, I64)]) as loop:
        tile = build.tile(fb.integer(loop.index, I64))
        own = build.cover(tile)
        build.classify(tile)
        partial = build.write_partial(tile, diagonals)
        build.write_record(tile, partial, own)
        loop.yield_(loop.carried[0] + own)
    build.write_order(loop.results[0])
    return fb.finish()


class _Tile(NamedTuple):
    """A query tile: its number, its first row, how many rows it has, and pairs when all of them are seen."""

    number: Value
    first_row: Value
    rows: Value

    @property
    def every(self) -> Value:
        return self.rows * KEYS


class _Build:
    """The function being written."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.fb = fb = FunctionBuilder(NAME, source.arguments)
        self.sizes = {n: fb.load(fb.arg("sizes"), fb.constant(i)) for i, n in enumerate(SIZES)}
        self._parameters = source.bind(fb)
        self._fault = fb.scratch(1, I64)
        fb.store(self.number(0), self._fault, fb.constant(0))
        self._has_predicate = any(isinstance(op, interval.BetweenOp) for op in source.func.body.block.ops)

    # ---- memory ----

    def number(self, number: int) -> Value:
        return self.fb.constant(number, I64)

    def _state(self, name: str) -> Value:
        return self.fb.load(self.fb.arg("state"), self.fb.constant(STATE.index(name)))

    def _set_state(self, name: str, value: Value) -> None:
        self.fb.store(value, self.fb.arg("state"), self.fb.constant(STATE.index(name)))

    def _store_words(self, place: Value, words: Sequence[Value]) -> None:
        """Store integers into the descriptor."""
        fb = self.fb
        for number, word in enumerate(words):
            word = word if word.type == I32 else fb.convert("trunci", word, I32)
            fb.store(word, fb.arg("descriptor"), fb.index(place + number))

    def _word(self, place: Value) -> Value:
        return self.fb.extend(self.fb.load(self.fb.arg("descriptor"), self.fb.index(place)))

    def _of_key_tile(self, what: int, key_tile: Value) -> Value:
        """The place of one of the numbers of a key tile."""
        return self.fb.index((self.sizes["key_tiles"] + 1) * what + key_tile)

    def _add(self, what: int, key_tile: Value, value: Value) -> None:
        fb, place = self.fb, self._of_key_tile(what, key_tile)
        fb.store(fb.load(fb.arg("of_key_tiles"), place) + value, fb.arg("of_key_tiles"), place)

    @contextmanager
    def _room(self, used: Value, capacity: Value) -> Generator[None, None, None]:
        """What is written if there is room for number `used`; a fault if not."""
        fb = self.fb
        fits = fb.compare("slt", used, capacity)
        missing = fb.integer(fb.compare("sge", used, capacity), I64)
        fb.store(fb.load(self._fault, fb.constant(0)) | missing, self._fault, fb.constant(0))
        with fb.when(fits):
            yield

    def _row(self, q: Value, queries: Value, keys: Value) -> MaskRow:
        """What a row sees."""
        fb, block = self.fb, self.source.func.body.block
        values = dict(zip(block.args[:3], (q, queries, keys), strict=True)) | self._parameters
        return MaskRow(Scope(fb, values, self._fault), self.source.func, keys)

    def tile(self, number: Value) -> _Tile:
        """A query tile."""
        first = number * self.source.rows
        rest = self.sizes["queries"] - first
        return _Tile(number, first, self.fb.minimum(rest, self.number(self.source.rows)))

    @contextmanager
    def _rows_of(
        self, tile: _Tile, initial: Sequence[Value]
    ) -> Generator[tuple[MaskRow, Value, list[Value]], None, None]:
        """A loop over the rows of a tile: what each sees, its position, and what is carried, to be changed in place."""
        fb = self.fb
        with fb.for_loop(fb.constant(0), fb.index(tile.rows), 1, initial) as loop:
            q, carried = tile.first_row + fb.integer(loop.index, I64), list(loop.carried)
            yield self._row(q, self.sizes["queries"], self.sizes["keys"]), q, carried
            loop.yield_(*carried)
        carried[:] = loop.results

    # ---- classes ----

    def cover(self, tile: _Tile) -> Value:
        """Sum up what bounds say about key tiles; how many rows surely see the key at their own position."""
        fb = self.fb
        with fb.for_loop(fb.constant(0), fb.size(fb.arg("of_key_tiles"))) as loop:
            fb.store(self.number(0), fb.arg("of_key_tiles"), loop.index)
        with self._rows_of(tile, [self.number(0)]) as (row, q, carried):
            row.inner.every([], lambda lo, hi, _: self._add_interval(0, lo, hi))
            if self._has_predicate:
                row.outer.every([], lambda lo, hi, _: self._add_interval(2, lo, hi))
            carried[0] = carried[0] + row.inner.holds(q)
        return carried[0]

    def _add_interval(self, what: int, lo: Value, hi: Value) -> list[Value]:
        """Keys below the bounds within their own key tile, and how many bounds lie there."""
        one = self.number(1)
        for bound, sign in ((hi, one), (lo, self.number(-1))):
            self._add(what, bound >> 7, (bound & (KEYS - 1)) * sign)
            self._add(what + 1, bound >> 7, sign)
        return []

    def classify(self, tile: _Tile) -> None:
        """Replace the first sum of each key tile by its class."""
        fb, tiles = self.fb, self.sizes["key_tiles"]
        sets = 2 if self._has_predicate else 1
        with fb.for_loop(fb.constant(0), fb.index(tiles), 1, [self.number(0)] * sets) as loop:
            key_tile = tiles - 1 - fb.integer(loop.index, I64)
            behind, pairs = list[Value](), list[Value]()
            # The tile behind this one holds bounds that this tile lies wholly below.
            for number, carried in enumerate(loop.carried):
                memory = fb.arg("of_key_tiles")
                passed = carried + fb.load(memory, self._of_key_tile(2 * number + 1, key_tile + 1))
                pairs.append(fb.load(memory, self._of_key_tile(2 * number, key_tile)) + passed * KEYS)
                behind.append(passed)
            kind = fb.select(fb.compare("sgt", pairs[0], 0), self.number(PARTIAL), self.number(EMPTY))
            if self._has_predicate:
                kind = fb.select(fb.compare("sgt", pairs[1], 0), self.number(OPEN), kind)
            kind = fb.select(fb.compare("eq", pairs[0], tile.every), self.number(FULL), kind)
            fb.store(kind, fb.arg("of_key_tiles"), self._of_key_tile(0, key_tile))
            loop.yield_(*behind)

    # ---- what a tile visits ----

    def write_partial(self, tile: _Tile, diagonals: Sequence[Value]) -> Value:
        """Write pairs and patterns of partial tiles; how many there are."""
        fb, memory = self.fb, self.fb.arg("of_key_tiles")
        with fb.for_loop(fb.constant(0), fb.index(self.sizes["key_tiles"]), 1, [self.number(0)]) as loop:
            key_tile = fb.integer(loop.index, I64)
            place = self._of_key_tile(0, key_tile)
            pattern = self._state("patterns") + loop.carried[0]
            kind = fb.load(memory, place)
            undecided = fb.compare("eq", kind, PARTIAL) | fb.compare("eq", kind, OPEN)
            if not self.source.shared:
                with fb.when(undecided):
                    self._write_pattern(tile, key_tile, pattern, place)
            is_partial = fb.compare("eq", fb.load(memory, place), PARTIAL)
            with fb.when(is_partial):
                if self.source.shared:
                    pattern = self._shared_pattern(tile, key_tile, diagonals)
                pair = self._state("pairs") + loop.carried[0]
                with self._room(pair, self.sizes["pair_capacity"]):
                    self._store_words(self.sizes["visits"] + pair * 2, (key_tile, pattern))
            loop.yield_(loop.carried[0] + fb.integer(is_partial, I64))
        return loop.results[0]

    def _write_pattern(self, tile: _Tile, key_tile: Value, pattern: Value, place: Value) -> None:
        """Write the pattern of a tile, and its class if that was open."""
        fb = self.fb
        with self._room(pattern, self.sizes["pattern_capacity"]):
            groups = fb.constant(ceil_div(self.source.rows, COLUMN_ROWS))
            with fb.for_loop(fb.constant(0), groups, 1, [self.number(0)]) as each_group:
                group = fb.integer(each_group.index, I64)
                pairs, columns = self._write_rows(tile, group, key_tile, pattern)
                self._store_words(self._columns(pattern, group), columns)
                each_group.yield_(each_group.carried[0] + pairs)
            pairs = each_group.results[0]
            t = self.sizes["mask"] * self.sizes["query_tiles"] + tile.number
            self._store_words(self.sizes["sources"] + pattern * 2, (t, key_tile))
            kind = fb.select(fb.compare("eq", pairs, tile.every), self.number(FULL), self.number(PARTIAL))
            kind = fb.select(fb.compare("eq", pairs, 0), self.number(EMPTY), kind)
            fb.store(kind, fb.arg("of_key_tiles"), place)

    def _write_rows(self, tile: _Tile, group: Value, key_tile: Value, pattern: Value) -> tuple[Value, Sequence[Value]]:
        """Write a group of rows of a pattern; how many of their pairs are visible, and their columns."""
        fb = self.fb
        first = group * COLUMN_ROWS
        rows = fb.minimum(tile.rows - first, self.number(COLUMN_ROWS))
        part = tile._replace(first_row=tile.first_row + first, rows=rows)
        nothing = [self.number(0), *[fb.constant(0, I32)] * PATTERN_ROW_WORDS]
        with self._rows_of(part, nothing) as (row, q, carried):
            words = row.words(key_tile * KEYS)
            number = pattern * self.source.rows + (q - tile.first_row)
            self._store_words(self.sizes["patterns"] + number * PATTERN_ROW_WORDS, words)
            for word in words:
                carried[0] = carried[0] + fb.extend(fb.ones(word))
            carried[1:] = [seen | word for seen, word in zip(carried[1:], words, strict=True)]
        return carried[0], carried[1:]

    def _columns(self, pattern: Value, group: Value) -> Value:
        """Where the columns of a group of a pattern's rows lie."""
        return self.sizes["columns"] + (pattern * ceil_div(self.source.rows, COLUMN_ROWS) + group) * PATTERN_ROW_WORDS

    def write_record(self, tile: _Tile, partial: Value, own: Value) -> None:
        """Write the runs of full tiles, and the tile's record."""
        fb, sizes = self.fb, self.sizes
        first = self._state("pairs") + partial
        with fb.for_loop(fb.constant(0), fb.index(sizes["key_tiles"] + 1), 1, [self.number(0)] * 3) as loop:
            inside, runs, full = loop.carried
            key_tile = fb.integer(loop.index, I64)
            kind = fb.load(fb.arg("of_key_tiles"), self._of_key_tile(0, key_tile))
            # Behind the last tile stands a sum that no class was written over.
            exists = fb.compare("slt", key_tile, sizes["key_tiles"])
            is_full = fb.integer(fb.compare("eq", kind, FULL) & exists, I64)
            ends = fb.compare("sgt", inside, is_full)
            turns = fb.compare("ne", is_full, inside)
            with fb.when(turns), self._room(first + runs, sizes["pair_capacity"]):
                self._store_words(sizes["visits"] + (first + runs) * 2 + inside, [key_tile])
            loop.yield_(is_full, runs + fb.integer(ends, I64), full + is_full)
        _, runs, full = loop.results
        record = sizes["tiles"] + (sizes["mask"] * sizes["query_tiles"] + tile.number) * TILE_WORDS
        self._store_words(record, (self._state("pairs"), partial, runs, full, partial, runs, full, own))
        fb.store(tile_cost(partial, full), fb.arg("costs"), fb.index(tile.number))
        self._set_state("pairs", first + runs)
        self._set_state("patterns", self._state("patterns") + partial)

    # ---- launch order ----

    def write_order(self, own: Value) -> None:
        """Write the records in launch order, and the fault."""
        fb, sizes, costs = self.fb, self.sizes, self.fb.arg("costs")
        unseen = fb.integer(fb.compare("slt", own, sizes["keys"]), I64)
        tiles = fb.index(sizes["query_tiles"])
        with fb.for_loop(fb.constant(0), tiles) as loop:
            tile, cost = fb.integer(loop.index, I64), fb.load(costs, loop.index)
            with fb.for_loop(fb.constant(0), tiles, 1, [self.number(0)]) as ranks:
                other = fb.load(costs, ranks.index)
                later = fb.compare("eq", other, cost) & fb.compare("ugt", ranks.index, loop.index)
                before = fb.compare("sgt", other, cost) | later
                ranks.yield_(ranks.carried[0] + fb.integer(before, I64))
            of_mask = sizes["mask"] * sizes["query_tiles"]
            record = sizes["tiles"] + (of_mask + tile) * TILE_WORDS
            pair, partial, runs, full = (self._word(record + number) for number in range(4))
            key_tile, pattern = self._first_visit(pair, partial, runs)
            place = sizes["order"] + (of_mask + ranks.results[0]) * ORDER_WORDS
            self._store_words(place, (tile, pair, partial, runs, full, key_tile, pattern, unseen))
        self._set_state("fault", self._state("fault") | fb.load(self._fault, fb.constant(0)))

    def _first_visit(self, pair: Value, partial: Value, runs: Value) -> tuple[Value, Value]:
        """The first key tile that is visited, and its pattern."""
        fb, sizes = self.fb, self.sizes
        some = fb.compare("sgt", partial + runs, 0)
        place = sizes["visits"] + fb.select(some, pair, self.number(0)) * 2
        key_tile = fb.select(some, self._word(place), sizes["key_tiles"])
        return key_tile, fb.select(fb.compare("sgt", partial, 0), self._word(place + 1), self.number(0))

    # ---- shared patterns ----

    def shared_patterns(self) -> list[Value]:
        """Write the patterns that all tiles of a diagonal share; their diagonals."""
        fb, rows = self.fb, self.source.rows
        far = self.number(FAR_ROW)
        queries, keys = (self.sizes[name] + FAR_END for name in ("queries", "keys"))
        first = self._row(far, queries, keys).scope
        unit = diagonal_unit(rows)
        offsets = [first[bound] - far for bound in moving_bounds(self.source.func)]
        divide = first.floor_quotient
        diagonals = [divide(c + step, self.number(unit)) for c in offsets for step in diagonal_steps(rows)]
        cut, rest = len(diagonals), self.sizes["keys"] & (KEYS - 1)
        slot = self.sizes["mask"] * (2 * cut + 1)
        is_cut = fb.compare("ne", rest, 0)
        below = [fb.convert("trunci", word, I32) for word in keys_below(fb, rest)]
        with fb.for_loop(fb.constant(0), fb.constant(rows)) as loop:
            number = fb.integer(loop.index, I64)
            row = self._row(far + number, queries, keys)
            found = [row.words(far + diagonal * unit) for diagonal in diagonals]
            self._store_rows(slot, number, found)
            with fb.when(is_cut):
                both = [[word & low for word, low in zip(words, below, strict=True)] for words in found]
                self._store_rows(slot + cut, number, [below, *both])
        return diagonals

    def _store_rows(self, slot: Value, row: Value, patterns: Sequence[Sequence[Value]]) -> None:
        """Store a row of patterns from a slot on, and add it to their columns."""
        fb = self.fb
        for position, words in enumerate(patterns):
            number = slot + position
            place = self.sizes["patterns"] + (number * self.source.rows + row) * PATTERN_ROW_WORDS
            self._store_words(place, words)
            column = self._columns(number, row >> GROUP_BITS)
            seen = [fb.convert("trunci", self._word(column + word), I32) for word in range(PATTERN_ROW_WORDS)]
            self._store_words(column, [a | b for a, b in zip(seen, words, strict=True)])

    def _shared_pattern(self, tile: _Tile, key_tile: Value, diagonals: Sequence[Value]) -> Value:
        """The number of the pattern that a partial tile uses."""
        fb, sizes, cut = self.fb, self.sizes, len(diagonals)
        unit = diagonal_unit(self.source.rows)
        on = key_tile * (KEYS // unit) - tile.number * (self.source.rows // unit)
        slot = self.number(-1)
        for number, diagonal in reversed(list(enumerate(diagonals))):
            slot = fb.select(fb.compare("eq", on, diagonal), self.number(number), slot)
        is_last = fb.compare("eq", key_tile, sizes["key_tiles"] - 1)
        is_cut = fb.compare("ne", sizes["keys"] & (KEYS - 1), 0) & is_last
        return sizes["mask"] * (2 * cut + 1) + fb.select(is_cut, slot + (cut + 1), slot)
