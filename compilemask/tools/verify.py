"""`compilemask verify`: executes a mask at every level on random inputs and compares what is visible, pair by pair.

Levels are the mask, its intervals, its tiling, the descriptor as it is built on the CPU, and the descriptor as the
kernels in Triton IR build it, executed on numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import SSAValue

from compilemask.dialects import interval, mask, tiling
from compilemask.dialects.function import FunctionLike
from compilemask.dialects.semantics import interval as interval_semantics
from compilemask.dialects.semantics import mask as mask_semantics
from compilemask.dialects.semantics import tiling as tiling_semantics
from compilemask.errors import MaskError
from compilemask.lowering.interval_to_tiling import SUFFIX
from compilemask.lowering.pipeline import lower

if TYPE_CHECKING:
    from compilemask.runtime.descriptor import Descriptor

LENGTHS = (1, 2, 17, 64, 127, 128, 129, 200, 256, 300)
"""Numbers of queries and keys that are tried."""
KERNELS_EVERY = 8
"""The kernels, which are slow to execute, are tried on one input of so many."""
REDRAWS = 100

Argument = int | NDArray[np.int32]
Level = Callable[[], NDArray[np.bool_]]


@dataclass(frozen=True)
class Difference:
    """A pair about which two levels disagree, or what one of them raised."""

    levels: tuple[str, str]
    queries: int
    keys: int
    arguments: Mapping[str, Argument]
    what: str

    def __str__(self) -> str:
        values = ", ".join(
            f"{name}={value if isinstance(value, int) else value.tolist()}" for name, value in self.arguments.items()
        )
        where = f"{self.queries} queries, {self.keys} keys" + (f", {values}" if values else "")
        return f"{self.levels[0]} and {self.levels[1]} differ for {where}: {self.what}"


@dataclass(frozen=True)
class Verified:
    """What became of one function: how many inputs were tried, and the first difference."""

    function: str
    levels: tuple[str, ...]
    inputs: int
    difference: Difference | None


def verify_module(
    module: ModuleOp, trials: int, seed: int = 0, given: Mapping[str, Any] | None = None
) -> Iterator[Verified]:
    """Compare all levels of every mask of a module, and of interval functions that have no mask there.

    `given` fixes parameters by name.

    Raises:
        MaskError: the module holds nothing to compare, or no valid parameters could be drawn.
        LoweringError: a function cannot be lowered.
    """
    lowered = lower(module, "tiling")
    ranges = {op.sym_name.data: op for op in lowered.ops if isinstance(op, interval.FuncOp)}
    tiles = {op.sym_name.data: op for op in lowered.ops if isinstance(op, tiling.FuncOp)}
    sources = {op.sym_name.data: op for op in module.ops if isinstance(op, mask.FuncOp)}
    originals = {op.sym_name.data: op for op in module.ops if isinstance(op, interval.FuncOp)}
    if not ranges:
        raise MaskError("nothing to verify: the module holds no mask.func and no interval.func")
    for name, func in ranges.items():
        source = sources.get(name) or originals[name]
        yield _verify(source, func, tiles[name + SUFFIX], lowered, np.random.default_rng(seed), trials, given or {})


def _verify(
    source: mask.FuncOp | interval.FuncOp,
    func: interval.FuncOp,
    tiles: tiling.FuncOp,
    module: ModuleOp,
    random: np.random.Generator,
    trials: int,
    given: Mapping[str, Any],
) -> Verified:
    draw = _Draw(source, random, given)
    only = ModuleOp([func.clone(), tiles.clone()])
    name, levels = source.sym_name.data, ()
    for trial in range(trials):
        queries, keys = (int(random.choice(LENGTHS)) for _ in range(2))
        arguments = draw.arguments(max(queries, keys))
        found = _levels(source, func, tiles, only, list(arguments.values()), queries, keys, trial % KERNELS_EVERY == 0)
        levels = max(levels, tuple(found), key=len)
        if (difference := _compare(found, queries, keys, arguments)) is not None:
            return Verified(name, levels, trial + 1, difference)
    return Verified(name, levels, trials, None)


def _levels(
    source: mask.FuncOp | interval.FuncOp,
    func: interval.FuncOp,
    tiles: tiling.FuncOp,
    module: ModuleOp,
    arguments: Sequence[Argument],
    queries: int,
    keys: int,
    with_kernels: bool,
) -> dict[str, Level]:
    levels: dict[str, Level] = {}
    if isinstance(source, mask.FuncOp):
        levels["mask"] = lambda: mask_semantics.visible(source, arguments, queries, keys)
    else:
        levels["given interval"] = lambda: interval_semantics.visible(source, arguments, queries, keys)
    levels["interval"] = lambda: _normal_form(func, arguments, queries, keys)
    levels["tiling"] = lambda: tiling_semantics.visible(tiles, module, arguments, queries, keys)
    levels["descriptor"] = lambda: _shown(_built(module, arguments, queries, keys, kernels=False))
    if with_kernels:
        levels["kernels"] = lambda: _shown(_built(module, arguments, queries, keys, kernels=True))
    return levels


def _compare(
    levels: Mapping[str, Level], queries: int, keys: int, arguments: Mapping[str, Argument]
) -> Difference | None:
    (first, reference), *others = levels.items()
    try:
        expected = reference()
    except OverflowError:  # positions that leave 32 bits: the mask has no meaning there
        return None
    for name, level in others:
        try:
            found = level()
        except (AssertionError, OverflowError, MaskError) as error:
            return Difference((first, name), queries, keys, arguments, f"{name} fails: {error}")
        if (pair := first_difference(expected, found)) is not None:
            q, kv = pair
            sees, other = ("sees", "does not") if expected[q, kv] else ("does not see", "does")
            what = f"query {q} {sees} key {kv} at the level {first} and {other} at the level {name}"
            return Difference((first, name), queries, keys, arguments, what)
    return None


def first_difference(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> tuple[int, int] | None:
    """The first pair (q, kv), row by row, in which two dense masks of one shape differ."""
    different = one != other
    if not different.any():
        return None
    q, kv = np.unravel_index(int(different.argmax()), different.shape)
    return int(q), int(kv)


# ---- levels ----


def _normal_form(func: interval.FuncOp, arguments: Sequence[Argument], queries: int, keys: int) -> NDArray[np.bool_]:
    interval_semantics.check_normal_form(func, arguments, queries, keys)
    return interval_semantics.visible(func, arguments, queries, keys)


def _built(module: ModuleOp, arguments: Sequence[Argument], queries: int, keys: int, *, kernels: bool) -> Descriptor:
    """The descriptor, as the CPU builds it or as the kernels do."""
    import torch

    from compilemask.dialects.semantics.triton import run_kernel
    from compilemask.lowering.tiling_to_tt import descriptor as descriptor_kernels
    from compilemask.runtime.descriptor import Descriptor
    from compilemask.runtime.parameters import checked_parameter, on_device
    from compilemask.runtime.program import Program, build_grids, kernel_arguments

    program = Program("", module)
    parameters = [
        on_device(checked_parameter(f"#{position}", value, isinstance(value, np.ndarray)), torch.device("cpu"))
        for position, value in enumerate(arguments)
    ]
    layout = program.layout(parameters, queries, keys)
    if not kernels:
        return program.build_on_cpu(layout, parameters)
    buffer = torch.full((layout.words,), -1, dtype=torch.int32)
    tables: dict[object, NDArray[Any]] = {
        p.value.data_ptr(): p.value.numpy().ravel() for p in parameters if isinstance(p.value, torch.Tensor)
    }
    given = kernel_arguments(buffer.data_ptr(), layout, parameters)
    memory: list[Any] = [tables.get(value, value) for value in given]
    memory[0] = buffer.numpy()
    emitted = descriptor_kernels.emit(module)
    for name, grid in build_grids(layout).items():
        run_kernel(emitted[name], grid, memory)
    return Descriptor(buffer, layout)


def _shown(descriptor: Descriptor) -> NDArray[np.bool_]:
    """What an attention kernel sees that follows a descriptor, bool [queries, keys]."""
    from compilemask.runtime.cpu.bits import unpack

    layout = descriptor.check().layout
    seen = np.zeros((layout.queries, layout.keys), dtype=np.bool_)
    for visits in descriptor.tiles_of(0, 0):
        part = seen[visits.tile * layout.rows : (visits.tile + 1) * layout.rows]
        for begin, end in visits.full:
            part[:, begin * 128 : end * 128] = True
        for key_tile, pattern in visits.partial:
            columns = part[:, key_tile * 128 : (key_tile + 1) * 128]
            columns[:] = unpack(descriptor.patterns[pattern]).numpy()[: part.shape[0], : columns.shape[1]]
    return seen


# ---- inputs ----


class _Draw:
    """Draws parameters of a function, such that its operations take them."""

    def __init__(self, func: FunctionLike, random: np.random.Generator, given: Mapping[str, Any]) -> None:
        self.random, self.given, self.func = random, given, func
        leading = 0 if isinstance(func, mask.FuncOp) else 3
        self.parameters = list(func.body.block.args)[leading:]
        self.names = [p.name_hint or f"arg{p.index}" for p in self.parameters]
        self.ascends = any("ascending" in op.attributes for op in (func, *func.body.walk()))

    def arguments(self, size: int) -> dict[str, Argument]:
        """Values by name, for a sequence of `size` positions."""
        from compilemask.runtime.parameters import checked_parameter
        from compilemask.runtime.requirements import check_values, requirements

        wanted = requirements(self.func) if isinstance(self.func, mask.FuncOp) else ()
        for _ in range(REDRAWS):
            found = {
                name: self._given(name) if name in self.given else self._value(parameter, size)
                for name, parameter in zip(self.names, self.parameters, strict=True)
            }
            checked = [checked_parameter(name, value, not isinstance(value, int)) for name, value in found.items()]
            try:
                check_values(self.func.sym_name.data, wanted, checked)
            except MaskError:
                continue
            return found
        raise MaskError(f"no valid parameters found for @{self.func.sym_name.data}; give some with --param")

    def _given(self, name: str) -> Argument:
        value = self.given[name]
        return value if isinstance(value, int) else np.asarray(value, dtype=np.int32)

    def _value(self, parameter: SSAValue, size: int) -> Argument:
        if not isinstance(parameter.type, MemRefType):
            return int(self.random.choice([0, 1, int(self.random.integers(0, size + 1)), size]))
        entries = self.random.integers(0, size + 1, int(self.random.integers(1, 9))).astype(np.int32)
        free = all(use.operation.name.endswith(".read") for use in parameter.uses) and not self.ascends
        if free and self.random.random() < 0.5:
            return entries
        return np.sort(entries)


# ---- the command ----


def report(module: ModuleOp, trials: int, seed: int, given: Mapping[str, Any]) -> bool:
    """Verify a module and print one line per function; whether all levels agree."""
    agree = True
    for found in verify_module(module, trials, seed, given):
        if found.difference is None:
            print(f"@{found.function}: {', '.join(found.levels)} agree on {found.inputs} inputs")
        else:
            agree = False
            print(f"@{found.function}: {found.difference}")
    return agree


__all__ = ["Difference", "Verified", "first_difference", "report", "verify_module"]
