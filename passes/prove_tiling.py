"""Claims about a tiling function: what its envelopes and its classification decide agrees with every pair.

That a tile inside a core is full and a tile outside all covers is empty follows from the claims about single keys
here; where envelopes do not decide, tiles are classified by counting, which is exact by definition. An envelope is
known by what defines it: its cover holds every non-empty interval of the tile's rows, its core lies in all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr
from xdsl.ir import SSAValue

from compilemask.dialects import interval, tiling
from compilemask.dialects.semantics import interval as interval_semantics
from compilemask.dialects.semantics import tiling as tiling_semantics
from compilemask.errors import LoweringError
from compilemask.passes.prove_reserve import reserve_claims
from compilemask.passes.smt import arith_terms
from compilemask.passes.smt.call import Call, Counterexample
from compilemask.passes.smt.claims import Claim
from compilemask.passes.smt.interval_terms import Row, parts_of
from compilemask.passes.smt.library import Term, z3
from compilemask.passes.smt.world import World

Rows = tuple[Term, Term]
"""First row and the one behind the last."""


@dataclass
class Tile:
    """A tiling function executed for the tile that holds the call's query."""

    func: tiling.FuncOp
    callee: interval.FuncOp
    world: World
    call: Call
    rows: dict[SSAValue, Rows] = field(default_factory=dict[SSAValue, Rows])
    covers: list[Rows] = field(default_factory=list[Rows])
    cores: list[Rows] = field(default_factory=list[Rows])
    described: list[Rows] = field(default_factory=list[Rows])
    asked: list[Row] = field(default_factory=list[Row])

    def __post_init__(self) -> None:
        height, world, call = self.func.shape.rows.data, self.world, self.call
        self.number, _ = world.quotient(call.q, z3().IntVal(height))
        # Counterexamples are sought in tiles of one row, where an envelope is the row's own interval.
        world.narrow.append(call.queries == self.number * height + 1)
        arguments = (self.number, call.queries, call.keys, *call.parameters)
        self.values: dict[SSAValue, Any] = dict(zip(self.func.body.block.args, arguments, strict=True))
        envelopes: dict[SSAValue, tuple[Rows, Rows]] = {}
        for op in self.func.body.block.ops:
            match op:
                case tiling.RowsOp():
                    self.rows[op.result] = self._rows(op, height)
                    self.described.append(self.rows[op.result])
                case tiling.EnvelopeOp():
                    envelopes[op.result] = self._envelope(self._row(op), op.part.value.data, self.rows[op.rows])
                    self.cores.append(envelopes[op.result][1])
                case tiling.ClassifyOp():
                    self.covers = [envelopes[value][0] for value in op.envelopes]
                    self.decided = bool(op.envelopes)
                    self.asked.append(self._row(op))
                case tiling.ReturnOp():
                    pass
                case _:
                    self.values[op.results[0]] = arith_terms.execute(world, op, [self.values[x] for x in op.operands])

    def seen(self) -> Term:
        """Whether the pair of the call is visible."""
        return Row.of_call(self.world, self.callee, self.call).visible(self.call.kv)

    def _rows(self, op: tiling.RowsOp, height: int) -> Rows:
        begin = self.values[op.tile] * height
        queries = self.values[op.queries]
        return begin, z3().If(begin + height < queries, begin + height, queries)

    def _row(self, op: tiling.EnvelopeOp | tiling.ClassifyOp) -> Row:
        """The call's row, as the callee sees it with the arguments given here."""
        queries, keys, *parameters = (self.values[value] for value in op.arguments)
        return Row(self.world, self.callee, self.call.q, queries, keys, parameters)

    def _envelope(self, row: Row, part: int, rows: Rows) -> tuple[Rows, Rows]:
        """Cover and core, of which is known what they owe to the call's row, if it is one of `rows`."""
        owner = row.returned.owner
        between = isinstance(owner, interval.BetweenOp)
        parts = parts_of(owner.outer) if isinstance(owner, interval.BetweenOp) else parts_of(row.returned)
        if part >= (1 if between else len(parts)):
            raise LoweringError(f"prove: tiling.envelope asks for part {part} of a set that has {len(parts)}")
        chosen = parts if between else [parts[part]]
        hulls = [row.hull(item) for item in chosen]
        within = z3().And(rows[0] <= self.call.q, self.call.q < rows[1])
        begin, end = self.world.integer("cover"), self.world.integer("cover_end")
        for lo, hi in hulls:
            self.world.know(z3().Implies(z3().And(within, lo < hi), z3().And(begin <= lo, hi <= end)))
        core, core_end = self.world.integer("core"), self.world.integer("core_end")
        if between or isinstance(chosen[0], interval.FamilyOp):
            self.world.know(core == 0, core_end == 0)
        else:
            lo, hi = hulls[0]
            some = z3().And(lo < hi, lo <= core, core_end <= hi)
            self.world.know(z3().Implies(z3().And(within, core < core_end), some))
            self.world.narrow += [z3().If(lo < hi, z3().And(core == lo, core_end == hi), core == core_end)]
        if len(hulls) == 1:
            lo, hi = hulls[0]
            self.world.narrow += [z3().If(lo < hi, z3().And(begin == lo, end == hi), z3().And(begin == 0, end == 0))]
        return (begin, end), (core, core_end)


def tiling_claims(func: tiling.FuncOp, module: ModuleOp) -> list[Claim]:
    """What must hold of a tiling function and the interval function, of the same module, that it asks."""
    name = func.sym_name.data
    callee = _callee(func, module)

    def claim(claim_name: str, meaning: str, holds: Callable[[Tile], Term]) -> Claim:
        def stated(world: World, call: Call) -> Term:
            return holds(Tile(func, callee, world, call))

        return Claim(name, claim_name, meaning, stated, _violated(func, callee, module))

    claims = [
        claim("rows", "the rows of the tile are those described", _once),
        claim("core", "all rows see all keys of a core", _core),
        claim("classes", "tiles are classified by the set itself", _classes),
    ]
    if any(isinstance(op, tiling.ClassifyOp) and op.envelopes for op in func.body.block.ops):
        claims.insert(2, claim("cover", "no row sees a key outside all covers", _cover))
    return claims if func.reserve.is_unknown else [*claims, *reserve_claims(callee, name, func.shape.rows.data)]


def _once(tile: Tile) -> Term:
    """The call's query lies in the described rows of its own tile, and these end where the tile ends."""
    height = tile.func.shape.rows.data
    begin = tile.number * height
    end = z3().If(begin + height < tile.call.queries, begin + height, tile.call.queries)
    return z3().And(*[z3().And(first == begin, last == end) for first, last in tile.described])


def _core(tile: Tile) -> Term:
    kv = tile.call.kv
    inside = [z3().And(begin <= kv, kv < end) for begin, end in tile.cores]
    return z3().Implies(z3().Or(*inside), tile.seen())


def _cover(tile: Tile) -> Term:
    kv = tile.call.kv
    covered = [z3().And(begin <= kv, kv < end) for begin, end in tile.covers]
    return z3().Implies(tile.seen(), z3().Or(*covered))


def _classes(tile: Tile) -> Term:
    seen = tile.seen()
    return z3().And(*[row.visible(tile.call.kv) == seen for row in tile.asked])


def _callee(func: tiling.FuncOp, module: ModuleOp) -> interval.FuncOp:
    calls = [op.callee for op in func.body.block.ops if isinstance(op, tiling.EnvelopeOp | tiling.ClassifyOp)]
    names = {_name(callee) for callee in calls}
    found = [op for op in module.walk() if isinstance(op, interval.FuncOp) and op.sym_name.data in names]
    if len(names) != 1 or len(found) != 1:
        raise LoweringError(f"prove: @{func.sym_name.data} must ask one interval.func of its module, asks {names}")
    return found[0]


def _name(symbol: SymbolRefAttr) -> str:
    return symbol.root_reference.data


def _violated(func: tiling.FuncOp, callee: interval.FuncOp, module: ModuleOp) -> Callable[[Counterexample], bool]:
    """Whether a call, executed, has an unsound envelope or another set of visible pairs."""

    def violated(found: Counterexample) -> bool:
        try:
            shape = (found.arguments(), found.queries, found.keys)
            tiled = tiling_semantics.visible(func, module, *shape)
            return bool((tiled != interval_semantics.visible(callee, *shape)).any())
        except (AssertionError, ValueError):  # an envelope that is not sound, or one of no rows
            return True
        except (OverflowError, IndexError):
            return False

    return violated


__all__ = ["tiling_claims"]
