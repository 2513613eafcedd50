"""One unknown call of a mask: a pair of positions, the lengths and the parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import SSAValue

from compilemask.dialects.function import ascending_tables
from compilemask.passes.smt.library import Term, z3
from compilemask.passes.smt.world import Table, World

LONGEST = 2**28
"""Most queries and keys of a call."""
LARGEST = 300
"""Counterexamples are first sought among lengths and parameters up to this one."""
MOST_ENTRIES = 8
"""... and among tables of at most so many entries."""
_UNREADABLE = 1 << 22


@dataclass(frozen=True)
class Call:
    """0 <= q < queries, 0 <= kv < keys; `parameters` are integers and tables."""

    q: Term
    kv: Term
    queries: Term
    keys: Term
    names: tuple[str, ...]
    parameters: tuple[Term | Table, ...]

    @classmethod
    def unknown(cls, world: World, parameters: Sequence[SSAValue]) -> Call:
        """Any pair of any call of a function with such parameters, up to the largest lengths that kernels take."""
        q, kv, queries, keys = (z3().Int(name) for name in ("q", "kv", "queries", "keys"))
        world.know(q >= 0, q < queries, kv >= 0, kv < keys, queries <= LONGEST, keys <= LONGEST)
        names = tuple(value.name_hint or f"parameter{index}" for index, value in enumerate(parameters))
        values = tuple(
            Table(world, name) if isinstance(value.type, MemRefType) else z3().Int(f"%{name}")
            for name, value in zip(names, parameters, strict=True)
        )
        return cls(q, kv, queries, keys, names, values)

    def assume_ascending(self, numbers: Iterable[int]) -> None:
        """That the entries of some tables, by their numbers among the parameters, ascend."""
        for number in numbers:
            table = self.parameters[number]
            assert isinstance(table, Table)
            table.ascending = True

    def small(self) -> list[Term]:
        """That lengths, parameters and tables are small."""
        limits = [self.queries <= LARGEST, self.keys <= LARGEST]
        for value in self.parameters:
            if isinstance(value, Table):
                limits.append(value.length <= MOST_ENTRIES)
                # Entries as positions, so that models stay readable.
                limits += [z3().And(value.entries(i) >= -LARGEST, value.entries(i) <= LARGEST) for i in value.indices]
            else:
                limits += [value >= -LARGEST, value <= LARGEST]
        return limits


@dataclass(frozen=True)
class Counterexample:
    """Numbers for which a claim does not hold."""

    q: int
    kv: int
    queries: int
    keys: int
    parameters: dict[str, int | tuple[int, ...]]

    def __str__(self) -> str:
        numbers = {"q": self.q, "kv": self.kv, "queries": self.queries, "keys": self.keys, **self.parameters}
        return ", ".join(
            f"{name} = {value if isinstance(value, int) else list(value)}" for name, value in numbers.items()
        )

    def arguments(self) -> list[Any]:
        """The parameters as the executable semantics take them."""
        import numpy as np

        values = self.parameters.values()
        return [value if isinstance(value, int) else np.array(value, dtype=np.int64) for value in values]


def counterexample(call: Call, model: Any) -> Counterexample | None:
    """The numbers of a model; None if they are too large to be looked at."""

    def number(term: Term) -> int:
        return model.eval(term, model_completion=True).as_long()

    q, kv, queries, keys = (number(term) for term in (call.q, call.kv, call.queries, call.keys))
    if max(queries, keys) > _UNREADABLE:
        return None
    parameters: dict[str, int | tuple[int, ...]] = {}
    for name, value in zip(call.names, call.parameters, strict=True):
        if not isinstance(value, Table):
            parameters[name] = number(value)
            continue
        length = number(value.length)
        if length > _UNREADABLE:
            return None
        known = {index: number(value.entries(index)) for index in {number(index) for index in value.indices}}
        parameters[name] = _filled(known, length)
    return Counterexample(q, kv, queries, keys, parameters)


def _filled(known: dict[int, int], length: int) -> tuple[int, ...]:
    """A table with the entries that are known; others are as the one before, so that ascending entries ascend."""
    inside = sorted(index for index in known if 0 <= index < length)
    value = known[inside[0]] if inside else 0
    entries: list[int] = []
    for index in range(length):
        value = known.get(index, value)
        entries.append(value)
    return tuple(entries)


__all__ = ["Call", "Counterexample", "ascending_tables", "counterexample"]
