"""The kernels that build descriptors, run on numpy: equal to the CPU build word by word, and safe in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from descriptor_checks import check_against_dense
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sample_masks import MASKS, random_offsets
from strategies import Case, cases
from xdsl.dialects.builtin import ModuleOp

import compilemask
from compilemask.dialects.semantics.triton import run_kernel
from compilemask.language.mask import Mask
from compilemask.lowering.descriptor_layout import Layout, ceil_div
from compilemask.lowering.interval_to_tiling import tiling_function
from compilemask.lowering.tiling_to_tt import descriptor as descriptor_kernels
from compilemask.runtime import Descriptor, compile
from compilemask.runtime.compiled import Compiled
from compilemask.runtime.cpu import build_cpu
from compilemask.runtime.parameters import Parameter, on_device
from compilemask.runtime.program import Program, rows_of_mask

UNWRITTEN = 0x5A5A5A5A
LENGTHS = [(17, 17), (128, 128), (137, 300), (300, 200), (640, 640)]
_kernels: dict[str, dict[str, Any]] = {}


def kernels_of(program: Program) -> dict[str, Any]:
    """The kernels of a program, emitted once."""
    if program.key not in _kernels:
        _kernels[program.key] = descriptor_kernels.emit(program.tiling_module)
    return _kernels[program.key]


def arguments(buffer: NDArray[np.int32], layout: Layout, parameters: Sequence[Parameter]) -> list[Any]:
    """What the kernels take."""
    sections = (layout.tiles, layout.order, layout.visits, layout.sources, layout.patterns, layout.columns)
    result: list[Any] = [buffer, layout.batch, layout.heads, layout.queries, layout.keys, *sections]
    result += [layout.pair_capacity, layout.pattern_capacity]
    for parameter in parameters:
        values: list[Any] = [*parameter.kernel_arguments()]
        if isinstance(parameter.value, torch.Tensor):
            values[0] = parameter.value.numpy().ravel()
        result += values
    return result


def build(
    compiled: Compiled,
    layout: Layout,
    programs: int = 7,
    seed: int | None = 0,
    kernels: dict[str, Any] | None = None,
) -> Descriptor:
    """The descriptor as the kernels build it, into a buffer that holds `UNWRITTEN`."""
    buffer = np.full(layout.words, UNWRITTEN, np.int32)
    given = arguments(buffer, layout, [on_device(p, torch.device("cpu")) for p in compiled.parameters])
    kernels, tiles = kernels or kernels_of(compiled.program), (layout.query_tiles, layout.masks)
    for name, grid in (("count", tiles), ("fill", tiles), ("patterns", min(layout.pattern_capacity, programs))):
        run_kernel(kernels[name], grid, given, seed=seed)
    return Descriptor(torch.from_numpy(buffer), layout)


def check_equal(mask: Mask, queries: int, keys: int, rows: int = 128) -> None:
    """Assert that kernels and CPU build the same."""
    compiled = compile(mask)
    program = compiled.program.in_tiles_of(rows)
    # Not `compiled.descriptor`: it refuses masks that speak of positions outside, which kernels may meet in tables.
    expected = program.build(compiled.parameters, queries, keys, torch.device("cpu"))
    found = build(compiled, expected.layout, kernels=kernels_of(program))
    different = (found.defined() != expected.defined()).nonzero()
    assert not len(different), f"{queries} x {keys}: {len(different)} words differ, first {int(different[0])}"


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("name", MASKS)
def test_equal_to_the_cpu_build(name: str, queries: int, keys: int) -> None:
    check_equal(MASKS[name](queries, keys), queries, keys)


@pytest.mark.parametrize(("queries", "keys"), [(17, 17), (192, 128), (137, 300), (640, 640)])
@pytest.mark.parametrize("name", MASKS)
def test_equal_to_the_cpu_build_in_tiles_of_192_rows(name: str, queries: int, keys: int) -> None:
    check_equal(MASKS[name](queries, keys), queries, keys, rows=192)


@pytest.mark.parametrize("rows", [64, 128, 192])
@pytest.mark.parametrize("name", ["causal", "window", "hstu", "shared prompt", "clear", "labels"])
def test_equal_to_brute_force(name: str, rows: int) -> None:
    mask = MASKS[name](500, 450)
    compiled = compile(mask)
    program = compiled.program.in_tiles_of(rows)
    layout = program.layout(compiled.parameters, 500, 450)
    check_against_dense(build(compiled, layout, kernels=kernels_of(program)), mask.dense(500, 450))


@pytest.mark.parametrize("width", [1, 3, 16, 31, 64, 127, 128, 130, 200])
def test_clear_of_any_width(width: int) -> None:
    height = max(2, 400 // width)
    length = height * width + 20
    check_equal(compilemask.clear(height, width, 5, text=20), length, length)


def _label(length: int) -> torch.Tensor:
    values = np.random.default_rng(length).integers(0, 3, 1 + length // 150).repeat(150)
    return torch.from_numpy(values.astype(np.int32))


COMPOSITIONS: dict[str, Callable[[int], Mask]] = {
    "predicate beside intervals": lambda n: (
        compilemask.window(40) | (compilemask.causal() & compilemask.where(lambda q, kv, x: x[q] == x[kv], x=_label(n)))
    ),
    "outside an image": lambda n: ~compilemask.clear(12, 30, 6, text=20),
    "two images": lambda n: compilemask.disk2d(9, 20, 5, 10) | compilemask.box2d(8, 30, 4, 2, 200),
    "image under causal": lambda n: compilemask.clear(12, 30, 6, text=20) & compilemask.causal(),
    "documents with a common head": lambda n: compilemask.document(random_offsets(n, 7)) | compilemask.cols(0, 130),
}


@pytest.mark.parametrize("length", [200, 431])
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_compositions(name: str, length: int) -> None:
    check_equal(COMPOSITIONS[name](length), length, length)


def test_a_mask_of_nothing() -> None:
    mask = compilemask.causal() & ~compilemask.causal()
    compiled = compile(mask)
    layout = compiled.program.layout(compiled.parameters, 300, 300)
    check_against_dense(build(compiled, layout), mask.dense(300, 300))


@pytest.mark.parametrize("rows", [16, 48, 64, 192, 256])
@pytest.mark.parametrize("name", ["hstu", "clear"])
def test_other_tile_heights(name: str, rows: int) -> None:
    compiled = compile(MASKS[name](500, 400))
    func = compiled.program.intervals.clone()
    kernels = descriptor_kernels.emit(ModuleOp([func, tiling_function(func, rows)]))
    every = ceil_div(500, rows) * ceil_div(400, 128)
    layout = Layout(1, 1, 500, 400, rows, 2 * every, every, shared=False)
    values = [on_device(p, torch.device("cpu")).of_mask(0, 0) for p in compiled.parameters]
    assert build(compiled, layout, kernels=kernels) == build_cpu.build(
        layout, [rows_of_mask(compiled.program.intervals, values, layout)]
    )


def test_tables_per_batch_and_head() -> None:
    offsets = torch.stack([random_offsets(400, n, batch=2) for n in (6, 6)], dim=1)
    ends = torch.tensor([[[400], [170]]], dtype=torch.int32)
    check_equal(compilemask.causal() & compilemask.document(offsets) & compilemask.padding(ends[0]), 400, 400)


@pytest.mark.parametrize("keys", [128 * 32, 128 * 33 - 5, 128 * 1024, 128 * 1024 + 1, 128 * 1100])
@pytest.mark.parametrize("name", ["full", "causal from the end", "outside a window"])
def test_many_key_tiles(name: str, keys: int) -> None:
    check_equal(MASKS[name](150, keys), 150, keys)


def test_many_query_tiles() -> None:
    offsets = torch.arange(0, 1400 * 16 + 1, 350, dtype=torch.int32)
    check_equal(compilemask.causal() & compilemask.document(offsets), 1400 * 16, 300)


def test_order_of_programs_does_not_matter() -> None:
    compiled = compile(MASKS["hstu"](700, 700))
    layout = compiled.program.layout(compiled.parameters, 700, 700)
    first, *others = (build(compiled, layout, programs, seed) for programs, seed in ((1, None), (5, 1), (40, 2)))
    for other in others:
        assert torch.equal(first.buffer, other.buffer)


@settings(max_examples=12)
@given(cases(depth=2), st.sampled_from([64, 128, 192]))
def test_random_masks(case: Case, rows: int) -> None:
    check_equal(case.mask, case.queries, case.keys, rows)


# ---- memory ----

BROKEN_OFFSETS = {
    "descending": [400, 300, 200, 100, 0],
    "negative": [-500, -3, -2, 100, 400],
    "huge": [0, 2**31 - 1, 2**31 - 1, -(2**31), 2**31 - 1],
    "mixed": [0, 390, 10, 380, 20, 370, 30, -1, 400],
    "one": [7],
    "beyond": [0, 100, 5000, 70000],
}


@pytest.mark.parametrize("name", BROKEN_OFFSETS)
@pytest.mark.parametrize("shared_prompt", [False, True])
def test_broken_offsets_stay_in_memory(name: str, shared_prompt: bool) -> None:
    make = compilemask.shared_prompt if shared_prompt else compilemask.document
    good = compile(make(torch.tensor([0, 100, 400], dtype=torch.int32)))
    layout = good.program.layout(good.parameters, 400, 400)
    table = torch.tensor(BROKEN_OFFSETS[name], dtype=torch.int32)
    parameters = [Parameter(p.name, table) if p.is_table else p for p in good.parameters]
    buffer = np.full(layout.words, UNWRITTEN, np.int32)
    kernels, tiles = kernels_of(good.program), (layout.query_tiles, layout.masks)
    for kernel, grid in (("count", tiles), ("fill", tiles), ("patterns", 5)):
        run_kernel(kernels[kernel], grid, arguments(buffer, layout, parameters))
    descriptor = Descriptor(torch.from_numpy(buffer), layout)
    for visits in descriptor.tiles_of():
        assert all(0 <= key_tile < layout.key_tiles for key_tile, _ in visits.partial)
        assert all(0 <= begin < end <= layout.key_tiles for begin, end in visits.full)


@pytest.mark.parametrize(("pairs", "patterns"), [(0, 0), (1, 5), (5, 3), (30, 9), (9, 30), (30, 30)])
@pytest.mark.parametrize("name", ["hstu", "documents"])
def test_too_little_room(name: str, pairs: int, patterns: int) -> None:
    compiled = compile(MASKS[name](1000, 1000))
    layout = Layout(1, 1, 1000, 1000, 128, pairs, patterns, shared=False)
    values = [on_device(p, torch.device("cpu")).of_mask(0, 0) for p in compiled.parameters]
    expected = build_cpu.build(layout, [rows_of_mask(compiled.program.intervals, values, layout)])
    found = build(compiled, layout)
    assert found == expected
    pairs_used, patterns_used = (int(x) for x in expected.header[12:14])
    assert (found.visits[pairs_used:] == UNWRITTEN).all()
    for section in (found.sources, found.patterns, found.columns):
        assert (section[patterns_used:] == UNWRITTEN).all()


def test_too_little_room_for_shared_patterns() -> None:
    compiled = compile(MASKS["causal"](1000, 1000))
    whole = compiled.program.layout(compiled.parameters, 1000, 1000)
    layout = Layout(1, 1, 1000, 1000, 128, 6, whole.pattern_capacity, shared=True)
    found = build(compiled, layout)
    assert found.tiles[0, 0, :, 1].tolist() == [1, 1, 1, *[-1] * 5]
    assert found.header[12:15].tolist() == [5, layout.pattern_capacity, 1]
    with pytest.raises(compilemask.errors.DescriptorError):
        found.check()
