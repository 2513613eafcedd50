"""What a mask's structure alone decides: its IR at every level, its descriptor's room and the kernels that build it."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from operator import attrgetter, methodcaller
from threading import Lock
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from xdsl.dialects.arith import AddiOp, ConstantOp
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.parser import Parser
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from compilemask.dialects import interval, mask, tiling
from compilemask.dialects.registry import make_context
from compilemask.dialects.semantics import interval as interval_semantics
from compilemask.dialects.triton.printing import print_generic
from compilemask.errors import MaskError, ShapeError
from compilemask.lowering import pipeline
from compilemask.lowering.descriptor_layout import Layout, Room
from compilemask.lowering.interval_to_tiling import IntervalToTilingPass, moving_bounds, normal_form
from compilemask.lowering.patch_choice import most_visited
from compilemask.lowering.patch_grid import Patches
from compilemask.lowering.registry import parse_pipeline
from compilemask.lowering.tiling_to_tt import descriptor as descriptor_kernels
from compilemask.lowering.visited_tiles import most_partial_tiles
from compilemask.passes.interval_patch import IntervalPatchPass, extra_arguments
from compilemask.passes.mask_transpose import transposed
from compilemask.passes.observers import printed
from compilemask.runtime.cpu import build_cpu, build_cpu_jit
from compilemask.runtime.cpu.host_code import HostFunction
from compilemask.runtime.cpu.row_intervals import IntervalSet
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.gpu.compile_kernel import Options, Source, kernels_for
from compilemask.runtime.gpu.driver import Argument, Grid, Kernel
from compilemask.runtime.gpu.launch import empty, launch_in_order
from compilemask.runtime.parameters import Parameter, batch_shape, on_device
from compilemask.runtime.requirements import Check, check_values, requirements
from compilemask.runtime.validate import MAX_GRID, check_lengths

PatchShapes: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
OPTIONS = {
    "count": Options(passes="few"),
    "fill": Options(passes="few"),
    "patterns": Options(passes="few and coalesce"),
}
"""How the kernels that build descriptors are compiled: they run for microseconds, and each new mask waits for them."""
LEADING = 3
"""Arguments of interval and tiling functions before the mask's parameters."""
PATTERN_PROGRAMS = 2048
"""Programs that write patterns; each writes every 2048th."""
WORTH_COMPILING = 0.2
"""Seconds that builds on the CPU take together before a function is compiled for them: about as long as that takes."""
KEPT_BUILDS = 64
"""Builds of a mask that are kept for the next one with the same lengths and values."""


class Program:
    """A mask's IR and kernels. Holds no parameter values: masks that differ in values alone share it."""

    def __init__(
        self,
        key: str,
        module: ModuleOp,
        passes: str | None = None,
        rows: int | None = None,
        patches: PatchShapes | None = None,
        inside: bool = False,
    ) -> None:
        self.key = key
        self.mask_module = module
        self.passes = passes
        """The pipeline that leads to the tiling level; None for that of every mask."""
        self.rows = IntervalToTilingPass.rows if rows is None and passes is None else rows
        """Rows of a query tile; None for those that a pipeline of its own says."""
        self.patches = patches
        """Shapes of patches of queries and keys, if the tiles of an image are patches. Parameters that say the image
        and the length of the sequence stand behind those of the mask then, and lengths are those of patched order.
        """
        self.inside = inside
        """Whether no line of the mask lies before or behind the image (passes/interval_patch.py)."""
        self._seconds_of_builds = 0.0
        self._origin: tuple[Callable[[Program], Program], Program] | None = None
        """What makes this program of the one that it is a variant of."""
        self._variants: dict[int | tuple[PatchShapes, bool], Program] = {}

    def __reduce__(self) -> tuple[Callable[..., Program], tuple[object, ...]]:
        """Copied and pickled as text, without kernels: a copy is the program of this structure where it arrives."""
        if self._origin is not None:
            make, origin = self._origin
            return make, (origin,)
        return _program_of_text, (self.key, printed(self.mask_module), self.passes)

    @cached_property
    def name(self) -> str:
        """The name of the mask's functions."""
        return next(op.sym_name.data for op in self.mask_module.ops if isinstance(op, mask.FuncOp))

    @cached_property
    def requirements(self) -> tuple[tuple[int, Check], ...]:
        """What the parameters' values must be like."""
        return requirements(next(op for op in self.mask_module.ops if isinstance(op, mask.FuncOp)))

    @cached_property
    def transposed(self) -> Program:
        """The program of the transposed mask, whose rows are keys."""
        program = Program(f"transposed {self.key}", transposed(self.mask_module), self.passes)
        program._origin = attrgetter("transposed"), self
        return program

    def in_tiles_of(self, rows: int) -> Program:
        """The program whose query tiles have so many rows."""
        if rows == self.rows:
            return self
        if rows not in self._variants:
            key = f"{self.key} in tiles of {rows} rows"
            variant = self._variants[rows] = Program(key, self.mask_module, self.passes, rows)
            variant._origin = methodcaller("in_tiles_of", rows), self
        return self._variants[rows]

    def in_patches(self, patches: PatchShapes, inside: bool = False) -> Program:
        """The program whose tiles of an image are patches of these shapes."""
        key = patches, inside
        if key not in self._variants:
            name = f"{self.key} in patches of {patches}{' that hold all its lines' if inside else ''}"
            variant = Program(name, self.mask_module, self.passes, patches=patches, inside=inside)
            variant._origin = methodcaller("in_patches", *key), self
            self._variants[key] = variant
        return self._variants[key]

    # ---- levels ----

    @cached_property
    def interval_module(self) -> ModuleOp:
        """Level 2, in normal form."""
        if self.passes is None and self.patches is None:
            return pipeline.lower(self.mask_module, to="interval")
        module = self.tiling_module.clone()
        for op in [op for op in module.ops if isinstance(op, tiling.FuncOp)]:
            Rewriter.erase_op(op)
        return module

    @cached_property
    def tiling_module(self) -> ModuleOp:
        """Levels 2 and 3."""
        return pipeline.apply(self.mask_module, self._to_tiling())

    def _to_tiling(self) -> list[ModulePass]:
        passes = pipeline.passes_to("tiling") if self.passes is None else [*parse_pipeline(self.passes)]
        if self.patches is not None:
            queries, keys = self.patches
            return pipeline.with_patches(passes, IntervalPatchPass(keys, queries, self.inside))
        if self.rows is None:
            return passes
        return [replace(item, rows=self.rows) if isinstance(item, IntervalToTilingPass) else item for item in passes]

    @cached_property
    def room(self) -> Room:
        """What a descriptor may need."""
        return pipeline.room(self.tiling_module)

    @cached_property
    def intervals(self) -> interval.FuncOp:
        """The mask as an interval function in normal form."""
        return pipeline.interval_of(self.tiling_module)

    @cached_property
    def sees_lines(self) -> bool:
        """Whether rows see lines of a raster."""
        return any(isinstance(op, interval.FamilyOp) for op in self.intervals.body.block.walk())

    @cached_property
    def tiles(self) -> tiling.FuncOp:
        """The mask as a tiling function."""
        return pipeline.tiling_of(self.tiling_module)

    @property
    def kernels(self) -> dict[str, str]:
        """Triton IR of the kernels that build descriptors: count, fill and patterns."""
        return {name: self.kernel_text(name) for name in descriptor_kernels.KERNELS}

    def kernel_text(self, name: str) -> str:
        """Triton IR of one of them."""
        if name not in self._texts:
            self._texts[name] = print_generic(descriptor_kernels.emit_kernel(self.tiling_module, name))
        return self._texts[name]

    @cached_property
    def _texts(self) -> dict[str, str]:
        return {}

    @cached_property
    def _loaded(self) -> dict[torch.device, dict[str, Kernel]]:
        return {}

    def loaded(self, device: torch.device) -> dict[str, Kernel]:
        """The kernels on a CUDA device, in launch order."""
        load_kernels([self], device)
        return self._loaded[device]

    def _source(self, name: str) -> Source:
        return Source(f"{name} {self.passes} {self.key}", partial(self.kernel_text, name), OPTIONS[name])

    # ---- descriptors ----

    def layout(self, parameters: Sequence[Parameter], queries: int, keys: int) -> Layout:
        """The layout of a descriptor: from shapes and host integers alone."""
        check_lengths(queries, keys)
        batch, heads = batch_shape(parameters)
        touched, pitch, patches = None, self._pitch(parameters), self._patches(parameters)
        if self.room.reserve.is_unknown:
            known = tuple(p.value if isinstance(p.value, int) else None for p in parameters)
            touched = self._most_partial(known, queries, keys, self._rows)
            integers = tuple(value for value in known if value is not None)
            if self._origin is not None and patches is not None and len(integers) == len(known):
                touched = min(touched, self._origin[1].most_visited(integers, patches))
        return self._layout(batch, heads, queries, keys, self._rows, pitch, touched, patches)

    def _patches(self, parameters: Sequence[Parameter]) -> Patches | None:
        """The image that the last parameters say."""
        if self.patches is None:
            return None
        count = len(extra_arguments(len(self.patches[1])))
        origin, *sizes, length = [int(parameter.value) for parameter in parameters[-count:]]
        return Patches(origin, tuple(sizes), length, *self.patches)

    def most_visited(self, known: Sequence[int], patches: Patches) -> int:
        """Upper bound on the tiles that query tiles of one mask visit in patches; `known` are the parameters of its
        variant in patches.
        """
        return self._most_visited(tuple(known[: len(known) - len(extra_arguments(len(patches.sizes)))]), patches)

    @cached_property
    def _most_visited(self) -> Callable[..., int]:
        return lru_cache(maxsize=64)(partial(most_visited, self.intervals))

    @cached_property
    def _most_partial(self) -> Callable[..., int]:
        return lru_cache(maxsize=64)(partial(most_partial_tiles, self.intervals))

    @cached_property
    def _layout(self) -> Callable[..., Layout]:
        return lru_cache(maxsize=64)(self.room.layout)

    @cached_property
    def _rows(self) -> int:
        return self.tiles.shape.rows.data

    def _pitch(self, parameters: Sequence[Parameter]) -> int | None:
        reserve = self.room.reserve
        if reserve.is_unknown or not reserve.lines.data:
            return None
        value = parameters[reserve.pitch_argument.data - LEADING].value
        return value if isinstance(value, int) else None

    def build(self, parameters: Sequence[Parameter], queries: int, keys: int, device: torch.device) -> Descriptor:
        """The descriptor on a device; on a GPU it is built there, without waiting."""
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):  # it may serve a gradient later
                return self.build(parameters, queries, keys, device)
        check_values(self.name, self.requirements, parameters)
        if device.type == "cuda":
            parameters = [on_device(parameter, device) for parameter in parameters]
            build = self._build_for(parameters, queries, keys, device)
            if build is not None:
                return build(parameters)
        layout = self.layout(parameters, queries, keys)
        descriptor = self.build_on_cpu(layout, parameters)
        return descriptor if device.type == "cpu" else Descriptor(descriptor.buffer.to(device), layout)

    def _build_for(
        self, parameters: Sequence[Parameter], queries: int, keys: int, device: torch.device
    ) -> _Build | None:
        """The build on a GPU; None for a descriptor without tiles. Equal lengths, integers and forms of tables use one
        again.
        """
        key = (queries, keys, device, *[parameter.form for parameter in parameters])
        found = self._builds.get(key)
        if found is None:
            layout = self.layout(parameters, queries, keys)
            if not (layout.query_tiles and layout.key_tiles):
                return None
            if len(self._builds) >= KEPT_BUILDS:
                self._builds.clear()
            found = self._builds[key] = _Build.of(self.loaded(device), layout, parameters, device)
        return found

    @cached_property
    def _builds(self) -> dict[tuple[object, ...], _Build]:
        return {}

    def build_on_cpu(self, layout: Layout, parameters: Sequence[Parameter]) -> Descriptor:
        """The descriptor of a layout, by a compiled function once builds have taken as long as to compile one."""
        parameters = [on_device(parameter, torch.device("cpu")) for parameter in parameters]
        arguments = [
            [parameter.of_mask(*divmod(g, layout.heads)) for parameter in parameters] for g in range(layout.masks)
        ]
        if self._seconds_of_builds > WORTH_COMPILING and self._host_function is not None:
            found = build_cpu_jit.build(self._host_function, layout, arguments)
            if found is not None:
                return found
        start = time.perf_counter()
        descriptor = self._build_in_numpy(layout, arguments)
        self._seconds_of_builds += time.perf_counter() - start
        return descriptor

    @cached_property
    def _host_function(self) -> HostFunction | None:
        return build_cpu_jit.function_for(self.intervals, self._rows, self.room.shared)

    def _build_in_numpy(self, layout: Layout, arguments_of: Sequence[Sequence[Any]]) -> Descriptor:
        """The descriptor of a layout, from the interval functions executed in numpy."""
        masks: list[Any] = []
        shared: list[Any] = []
        try:
            for arguments in arguments_of:
                masks.append(rows_of_mask(self.intervals, arguments, layout))
                if layout.shared:
                    shared.append(_diagonals(self.intervals, arguments, layout))
            return build_cpu.build(layout, masks, shared if layout.shared else None)
        except OverflowError as error:
            raise MaskError(
                f"@{self.name} cannot be computed for {layout.queries} x {layout.keys} pairs: {error}"
            ) from None


def load_kernels(programs: Sequence[Program], device: torch.device) -> None:
    """Compile the kernels of programs for a CUDA device and load them, all at the same time."""
    missing = [program for program in programs if device not in program._loaded]
    if missing:
        # `fill` takes longest to compile: those come first.
        names = sorted(descriptor_kernels.KERNELS, key=lambda name: name != "fill")
        kernels = iter(kernels_for([program._source(name) for name in names for program in missing], device))
        found = {name: [next(kernels) for _ in missing] for name in names}
        for index, program in enumerate(missing):
            program._loaded[device] = {name: found[name][index] for name in descriptor_kernels.KERNELS}


class _Build(NamedTuple):
    """The launches of a build, with all that addresses do not decide; calling it starts them."""

    launches: tuple[tuple[Kernel, Grid], ...]
    layout: Layout
    device: torch.device
    arguments: list[Argument]
    """With 0 for the address of the buffer, and those of tables that are others each time."""
    tables: tuple[tuple[int, int], ...]
    """Numbers of an argument and of the parameter whose table stands there."""

    @classmethod
    def of(
        cls, kernels: Mapping[str, Kernel], layout: Layout, parameters: Sequence[Parameter], device: torch.device
    ) -> _Build:
        """The build with parameters on the device. Raises ShapeError if there are too many masks for a grid."""
        if layout.masks > MAX_GRID:
            raise ShapeError(f"{layout.batch} x {layout.heads} masks, at most {MAX_GRID} on a GPU")
        launches = tuple((kernels[name], grid) for name, grid in build_grids(layout).items())
        arguments = kernel_arguments(0, layout, parameters)
        tables: list[tuple[int, int]] = []
        end = len(arguments)
        for number in reversed(range(len(parameters))):
            end -= len(parameters[number].kernel_arguments())
            if parameters[number].is_table:
                tables.append((end, number))
        return cls(launches, layout, device, arguments, tuple(tables))

    def __call__(self, parameters: Sequence[Parameter]) -> Descriptor:
        """The descriptor for parameters of the forms that it was made for."""
        buffer = empty((self.layout.words,), (1,), torch.int32, self.device)
        arguments = self.arguments.copy()
        arguments[0] = buffer.data_ptr()
        for place, number in self.tables:
            arguments[place] = cast("torch.Tensor", parameters[number].value).data_ptr()
        launch_in_order(self.launches, self.device, arguments)
        return Descriptor(buffer, self.layout)


def build_grids(layout: Layout) -> dict[str, Grid]:
    """The kernels that build a descriptor, in order, and their grids."""
    tiles = (layout.query_tiles, layout.masks, 1)
    return {"count": tiles, "fill": tiles, "patterns": (min(layout.pattern_capacity, PATTERN_PROGRAMS), 1, 1)}


def kernel_arguments(address: int, layout: Layout, parameters: Sequence[Parameter]) -> list[Argument]:
    """Arguments of the descriptor kernels, in order, for a descriptor at an address."""
    shape = [layout.batch, layout.heads, layout.queries, layout.keys]
    sections = [layout.tiles, layout.order, layout.visits, layout.sources, layout.patterns, layout.columns]
    capacities = [layout.pair_capacity, layout.pattern_capacity]
    masks = [value for parameter in parameters for value in parameter.kernel_arguments()]
    return [address, *shape, *sections, *capacities, *masks]


# ---- rows on the CPU ----


def rows_of_mask(func: interval.FuncOp, arguments: Sequence[Any], layout: Layout) -> build_cpu.RowsOfMask:
    """One mask over its rows; `arguments` are its parameters, tables as numpy arrays."""
    sets = interval_semantics.evaluate(func, arguments, layout.queries, layout.keys)
    if (between := sets.between) is not None:
        inner, outer = (interval_set(part, layout.queries, layout.keys) for part in (between.inner, between.outer))
        return build_cpu.RowsOfMask(inner, outer, between.predicate)
    exact = interval_set(sets, layout.queries, layout.keys)
    return build_cpu.RowsOfMask(exact, exact)


def interval_set(sets: interval_semantics.RowSets, rows: int, keys: int) -> IntervalSet:
    """A set in normal form (without a predicate), clipped to [0, keys)."""
    return IntervalSet(rows, keys, list(sets.ranges), list(sets.families))


FAR_ROW = 2**28
"""A row in whose reach neither end of any sequence lies."""
FAR_END = 2**29


def _diagonals(func: interval.FuncOp, arguments: Sequence[Any], layout: Layout) -> build_cpu.Diagonals:
    """The shared patterns of a mask of kv - q alone: its rows from `FAR_ROW` on, in a far longer sequence."""
    queries, keys = layout.queries + FAR_END, layout.keys + FAR_END
    moved = _moved(func, FAR_ROW, queries)
    sets = interval_semantics.evaluate(moved, arguments, layout.rows, keys)
    first: dict[SSAValue, int] = {}
    for item, (lo, hi) in zip(normal_form(moved).ranges, sets.ranges, strict=True):
        first |= {item.lo: int(lo[0]), item.hi: int(hi[0])}
    offsets = [first[bound] - FAR_ROW for bound in moving_bounds(moved)]
    return build_cpu.diagonals(layout, offsets, interval_set(sets, layout.rows, keys), FAR_ROW)


def _moved(func: interval.FuncOp, first_row: int, queries: int) -> interval.FuncOp:
    """The function whose row 0 is row `first_row` of this one, among `queries` queries."""
    moved = func.clone()
    row, count = moved.body.block.args[:2]
    offset, total = ConstantOp.from_int_and_width(first_row, 32), ConstantOp.from_int_and_width(queries, 32)
    sum_of = AddiOp(row, offset)
    row.replace_uses_with_if(sum_of.result, lambda use: use.operation is not sum_of)
    count.replace_all_uses_with(total.result)
    Rewriter.insert_op([offset, total, sum_of], InsertPoint.at_start(moved.body.block))
    return moved


# ---- programs by structure ----

MAX_PROGRAMS = 256
_programs: OrderedDict[tuple[str, str | None], Program] = OrderedDict()
_lock = Lock()


def program_for(key: str, module: Callable[[], ModuleOp], passes: str | None = None) -> Program:
    """The program of a mask with this structural key; made once for each pipeline, from the module with its mask.func.

    Raises PipelineError if the pipeline names no known passes.
    """
    if passes is not None:
        parse_pipeline(passes)
    known = (key, passes)
    with _lock:
        program = _programs.get(known)
        if program is None:
            program = _programs[known] = Program(key, module(), passes)
            if len(_programs) > MAX_PROGRAMS:
                _programs.popitem(last=False)
        _programs.move_to_end(known)
        return program


def _program_of_text(key: str, text: str, passes: str | None) -> Program:
    return program_for(key, lambda: Parser(make_context(), text).parse_module(), passes)


def forget_programs() -> None:
    """Drop all programs: masks that are compiled from now on are compiled anew."""
    with _lock:
        _programs.clear()
