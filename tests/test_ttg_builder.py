"""Kernels for Hopper written with the builder: what it emits, what it refuses, and that Triton compiles it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xdsl.dialects.builtin import ModuleOp, TensorType, bf16, f32, i1, i32
from xdsl.utils.exceptions import VerifyException

from compilemask.dialects.triton import tt, ttg, ttng
from compilemask.dialects.triton.layouts import BlockedLayout, LinearLayout, NvidiaMmaLayout
from compilemask.dialects.triton.layouts_linear import linear_form, permuted, reshaped
from compilemask.dialects.triton.printing import print_generic
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt.builder import ptr
from compilemask.lowering.tiling_to_ttg import builder
from compilemask.lowering.tiling_to_ttg.builder import (
    Arg,
    Descriptor,
    GpuKernelBuilder,
    Value,
    dot_operand,
    slice_of,
    tensor_map,
    tma_layout,
    wgmma,
)
from compilemask.lowering.tiling_to_ttg.builder_memory import Barriers, Buffer
from compilemask.passes.legalize_triton import legalize

STAGES = 2
TILE = 64


def slot(count: Value) -> tuple[Value, Value]:
    """The buffer and the phase of the count-th tile that goes through a ring of buffers."""
    return count % STAGES, (count // STAGES) % 2


def produce(a: Descriptor, b: Descriptor, tiles: Buffer, full: Barriers, empty: Barriers, steps: Value) -> None:
    """Load tiles of A and B along K as soon as a pair of buffers is empty."""
    kb = tiles.kernel
    assert isinstance(kb, GpuKernelBuilder)
    row, column = kb.program_id(0) * TILE, kb.program_id(1) * TILE
    with kb.for_loop(0, steps, 1) as loop:
        place, phase = slot(loop.index)
        empty[place].wait(phase ^ 1)
        full[place].expect(a.bytes + b.bytes)
        a.load([row, loop.index * TILE], tiles[place * 2], full[place])
        b.load([column, loop.index * TILE], tiles[place * 2 + 1], full[place])


def consume(kb: GpuKernelBuilder, tiles: Buffer, full: Barriers, empty: Barriers, steps: Value) -> Value:
    """The sum of the products of all pairs of tiles."""
    with kb.for_loop(0, steps, 1, [kb.zeros((TILE, TILE), f32, wgmma(TILE))]) as loop:
        place, phase = slot(loop.index)
        full[place].wait(phase)
        product = kb.warp_group_dot(tiles[place * 2], tiles[place * 2 + 1].transpose(), loop.carried[0])
        total = kb.warp_group_dot_wait(product)
        empty[place].arrive()
        loop.yield_(total)
    return loop.results[0]


def product_kernel() -> ModuleOp:
    """D = A @ B^T for bf16 A [M, K], B [N, K], D [M, N], one tile a program; K = 64 * steps."""
    kb = GpuKernelBuilder("product", [tensor_map("a"), tensor_map("b"), tensor_map("d"), Arg("steps", i32)])
    a, b, d = (kb.descriptor(name, (TILE, TILE), bf16) for name in "abd")
    steps = kb.arg("steps")
    tiles = kb.alloc((TILE, TILE), bf16, count=2 * STAGES).named("tiles")
    out = kb.alloc((TILE, TILE), bf16).named("out")
    full, empty = kb.barriers(STAGES), kb.barriers(STAGES)
    kb.fence_async_shared()
    with kb.warp_specialize() as roles:
        with roles.partition(num_warps=1, registers=24):
            produce(a, b, tiles, full, empty, steps)
        with roles.default():
            total = consume(kb, tiles, full, empty, steps)
            out.store(kb.cast(total, bf16))
            kb.fence_async_shared()
            d.store([kb.program_id(0) * TILE, kb.program_id(1) * TILE], out)
            kb.store_wait()
    return kb.finish()


# ---------------------------------------------------------------- pieces of attention

ROWS, KEYS = 64, 128
BITS = LinearLayout.of(
    [(0, 0, 0, 1), (8, 0, 0, 0), (0, 1, 0, 0), (0, 2, 0, 0), (0, 4, 0, 0), (0, 8, 0, 0)],
    [(0, 0, 1, 0), (0, 0, 2, 0), (1, 0, 0, 0), (2, 0, 0, 0), (4, 0, 0, 0)],
    [(16, 0, 0, 0), (32, 0, 0, 0)],
)
"""An accumulator of 128 columns as [rows, 16, 4, 2]: column = 8 i + 2 lane + c."""


def masked(kb: GpuKernelBuilder, scores: Value, words: Value) -> Value:
    """Scores [64, 128] where bit 2 i + c of the word [64, 4] of a row and lane is set, else -inf."""
    i = kb.arange(0, KEYS // 8, slice_of(slice_of(slice_of(BITS, 3), 2), 0))[None, :][:, :, None][:, :, :, None]
    c = kb.arange(0, 2, slice_of(slice_of(slice_of(BITS, 2), 1), 0))[None, :][:, None, :][:, :, None, :]
    visible = (words[:, None, :][:, :, :, None] & (kb.constant(1, i32) << (i * 2 + c))) != 0
    flat = kb.convert_layout(kb.reshape(visible, (ROWS, KEYS)), kb.layout_of(scores))
    return kb.where(flat, scores, float("-inf"))


def attention_step() -> ModuleOp:
    """Scores of one key tile, masked by bits, their softmax and its product with the values."""
    args = [*map(tensor_map, ("q", "k", "v")), Arg("bits", ptr(i32), 16), Arg("o", ptr(f32), 16), Arg("scale", f32)]
    kb = GpuKernelBuilder("step", args, max_registers=240)
    boxes = {"q": (1, 1, ROWS, TILE), "k": (1, 1, KEYS, TILE), "v": (1, 1, KEYS, TILE)}
    descriptors = {name: kb.descriptor(name, box, bf16) for name, box in boxes.items()}
    buffers = {name: kb.alloc(box, bf16) for name, box in boxes.items()}
    ready = kb.barriers(1)[0]
    kb.fence_async_shared()
    ready.expect(sum(descriptor.bytes for descriptor in descriptors.values()))
    for name, descriptor in descriptors.items():
        descriptor.load([kb.program_id(1), 0, kb.program_id(0), 0], buffers[name], ready)
    ready.wait(0)
    output_layout = wgmma(TILE)
    words_layout = slice_of(slice_of(BITS, 3), 1)
    row, lane = kb.arange(0, ROWS, slice_of(words_layout, 1)), kb.arange(0, 4, slice_of(words_layout, 0))
    words = kb.load(kb.arg("bits") + (row[:, None] * 4 + lane[None, :]))
    q, k, v = (buffers[name].reshape(*box[2:]) for name, box in boxes.items())
    scores = kb.warp_group_dot_wait(kb.warp_group_dot(q, k.transpose()))
    scores = masked(kb, scores, words) * kb.arg("scale")
    top = kb.reduce(scores, 1, "max")
    weights = kb.exp2(scores - top[:, None])
    lanes = kb.reduce(kb.reduce(kb.reshape(weights, (ROWS, KEYS // 8, 4, 2)), 3, "sum"), 1, "sum")
    total = kb.convert_layout(kb.reduce(lanes, 1, "sum"), slice_of(output_layout, 1))
    left = kb.convert_layout(kb.round_in_place(weights, bf16), dot_operand(output_layout))
    kb.bar_sync(8, 128)
    output = kb.warp_group_dot_wait(kb.warp_group_dot(left, v)) / total[:, None]
    row, column = kb.arange(0, ROWS, slice_of(output_layout, 1)), kb.arange(0, TILE, slice_of(output_layout, 0))
    kb.store(kb.arg("o") + row[:, None] * TILE + column[None, :], output, mask=(row < ROWS)[:, None])
    return kb.finish()


# ---------------------------------------------------------------- compiled


def ptx_of(module: ModuleOp, path: Path) -> str:
    """The PTX that the installed Triton makes of a kernel, down to machine code."""
    triton = pytest.importorskip("triton")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    path.write_text(print_generic(legalize(module, triton.__version__)))
    kernel = triton.compile(str(path), target=target)
    assert kernel.asm["cubin"][:4] == b"\x7fELF"
    return kernel.asm["ptx"]


def test_a_product_with_a_producer_and_a_consumer_compiles(tmp_path: Path) -> None:
    ptx = ptx_of(product_kernel(), tmp_path / "product.ttgir")
    assert ".target sm_90a" in ptx
    assert len(re.findall(r"\.param \.align 64 \.b8 \w+\[128\]", ptx)) == 3
    assert "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16" in ptx
    assert "setmaxnreg" in ptx


def test_a_step_of_attention_compiles(tmp_path: Path) -> None:
    ptx = ptx_of(attention_step(), tmp_path / "step.ttgir")
    assert "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16" in ptx
    assert "cp.async.bulk.tensor.4d.shared" in ptx
    assert "bar.sync 8, 128" in ptx
    assert "cvt.rn.bf16x2.f32" in ptx
    assert ".maxnreg 240" in ptx


def test_masks_and_row_sums_leave_elements_in_their_threads(tmp_path: Path) -> None:
    ptx = ptx_of(attention_step(), tmp_path / "step.ttgir")
    assert not re.search(r"(ld|st)\.shared", ptx)
    # Two rows a thread, four lanes a row: two steps each for the maximum and the sum.
    assert ptx.count("shfl.sync") == 8


def test_the_example_of_the_builder_compiles(tmp_path: Path) -> None:
    example = (builder.__doc__ or "").split("\n\n    ", 1)[1].split("\n\nValues are")[0]
    names: dict[str, Any] = {}
    exec(textwrap.dedent(f"    {example}"), names)
    assert "wgmma.mma_async" in ptx_of(names["module"], tmp_path / "product.ttgir")


# ---------------------------------------------------------------- what is emitted


def test_captures_are_found_in_loops_and_named() -> None:
    specialize = next(op for op in product_kernel().walk() if isinstance(op, ttg.WarpSpecializeOp))
    (partition,) = specialize.partitions_op.partitions
    names = [argument.name_hint for argument in partition.block.args]
    assert "steps" in names
    assert "tiles" in names
    assert "out" not in names
    assert len(names) == len(specialize.captures) == len(set(specialize.captures))
    assert specialize.num_warps == [1]


def test_later_captures_become_arguments_of_earlier_partitions() -> None:
    kb = GpuKernelBuilder("k", [Arg("x", i32), Arg("y", i32), Arg("out", ptr(i32))])
    x, y, out = kb.args
    with kb.warp_specialize() as roles:
        with roles.default():
            kb.store(out, x)
        with roles.partition(4, 104):
            kb.store(out, x + 1)
        with roles.partition(1, 24), kb.if_else(y > 0) as branch, branch.then():
            kb.store(out, y)
    specialize = next(op for op in kb.finish().walk() if isinstance(op, ttg.WarpSpecializeOp))
    types = [[argument.type for argument in region.block.args] for region in specialize.partitions_op.partitions]
    assert types == [[i32, ptr(i32), i32]] * 2


def test_layouts_follow_from_operands() -> None:
    kb = GpuKernelBuilder("k", [Arg("p", ptr(f32)), Arg("n", i32)])
    accumulator = wgmma(64)
    row = kb.arange(0, 64, slice_of(accumulator, 1))
    column = kb.arange(0, 64, slice_of(accumulator, 0))
    index = row[:, None] * kb.arg("n") + column[None, :]
    assert kb.layout_of(index) == accumulator
    loaded = kb.load(kb.arg("p") + index, mask=index < 100, other=0.0)
    assert kb.layout_of(loaded) == accumulator
    assert kb.layout_of(kb.where(index == 3, loaded, float("-inf"))) == accumulator
    assert kb.layout_of(kb.cast(loaded, bf16)) == accumulator
    assert kb.layout_of(kb.reduce(loaded, 0, "max")) == slice_of(accumulator, 0)
    assert kb.layout_of(kb.zeros((64, 64), f32) + loaded) == accumulator
    assert kb.layout_of(kb.convert_layout(kb.zeros((64, 64), f32), accumulator)) == accumulator
    kb.store(kb.arg("p") + index, 1.0, mask=kb.arg("n") > 0)
    kb.finish()


def test_converting_to_the_same_layout_is_nothing() -> None:
    kb = GpuKernelBuilder("k", [])
    x = kb.arange(0, 64, slice_of(wgmma(64), 1))
    assert kb.convert_layout(x, slice_of(wgmma(64), 1)) is x


def test_widest_swizzle_of_a_box() -> None:
    assert [tma_layout((8, columns), bf16).swizzle.data for columns in (128, 64, 32, 16, 8)] == [128, 128, 64, 32, 0]


def test_reshaping_an_accumulator() -> None:
    assert reshaped(wgmma(KEYS), (ROWS, KEYS), (ROWS, KEYS // 8, 4, 2)) == BITS
    assert linear_form(wgmma(KEYS), (ROWS, KEYS)) == reshaped(BITS, (ROWS, 16, 4, 2), (ROWS, KEYS))
    with pytest.raises(VerifyException, match="known for 64 rows, not 128"):
        linear_form(wgmma(KEYS), (128, KEYS))
    with pytest.raises(VerifyException, match="convert the tensor"):
        reshaped(BlockedLayout.of([1], [32], [4], [0]), (128,), (64, 2))


def test_permuting_an_accumulator() -> None:
    """As the backward kernel does, whose threads then write four numbers side by side."""
    kb = GpuKernelBuilder("k", [])
    parts = kb.reshape(kb.zeros((64, 64), f32, wgmma(64)), (4, 2, 8, 8, 4, 2))
    turned = kb.trans(parts, (3, 0, 2, 4, 1, 5))
    assert turned.shape == (8, 4, 8, 4, 2, 2)
    assert kb.layout_of(turned) == permuted(kb.layout_of(parts), (3, 0, 2, 4, 1, 5))
    layout = kb.layout_of(kb.reshape(turned, (8, 128, 4)))
    lanes, registers = [(0, 1 << bit, 0) for bit in range(5)], [(0, 0, 1), (0, 0, 2), (1, 0, 0), (2, 0, 0), (4, 0, 0)]
    assert layout == LinearLayout.of(registers, lanes, [(0, 32, 0), (0, 64, 0)])
    with pytest.raises(VerifyException, match="convert the tensor"):
        permuted(wgmma(64), (1, 0))
    with pytest.raises(LoweringError, match="is not linear"):
        kb.trans(kb.zeros((64, 64), f32, wgmma(64)))
    right = tt.TransOp(parts.ssa, (3, 0, 2, 4, 1, 5))
    types = [TensorType(f32, turned.shape, kb.layout_of(parts))]
    wrong = tt.TransOp.create(operands=[parts.ssa], result_types=types, properties=right.properties)
    with pytest.raises(VerifyException, match="is not that of"):
        wrong.verify()


def test_an_accumulator_is_passed_from_product_to_product() -> None:
    kb = GpuKernelBuilder("k", [])
    left, right = kb.alloc((64, 64), bf16), kb.alloc((64, 64), bf16)
    first = kb.warp_group_dot(left, right)
    kb.warp_group_dot_wait(kb.warp_group_dot(left, right, first, use_acc=True))
    dots = [op for op in kb.finish().walk() if isinstance(op, ttng.WarpGroupDotOp)]
    assert dots[1].c is dots[0].d
    assert dots[0].useC is not None
    assert dots[1].useC is None


# ---------------------------------------------------------------- what is refused


def _tensor_across(kb: GpuKernelBuilder) -> None:
    outside = kb.arange(0, 128, BlockedLayout.of([1], [32], [4], [0]))
    with kb.warp_specialize() as roles, roles.partition(4):
        _ = outside + 1


def _value_out_of_a_partition(kb: GpuKernelBuilder) -> None:
    with kb.warp_specialize() as roles:
        with roles.partition(1):
            inside = kb.program_id(0) + 1
        with roles.default():
            _ = inside + 1


def _wrong_warps(kb: GpuKernelBuilder) -> None:
    with kb.warp_specialize() as roles:
        with roles.default():
            pass
        with roles.partition(1):
            kb.arange(0, 128, BlockedLayout.of([1], [32], [4], [0]))
    kb.finish()


def _two_layouts(kb: GpuKernelBuilder) -> None:
    _ = kb.arange(0, 64, slice_of(wgmma(64), 1)) + kb.arange(0, 64, slice_of(wgmma(64), 0))


def _registers_for_one(kb: GpuKernelBuilder) -> None:
    with kb.warp_specialize() as roles:
        with roles.default():
            pass
        with roles.partition(1, 24):
            pass
        with roles.partition(1):
            pass


def _no_default(kb: GpuKernelBuilder) -> None:
    with kb.warp_specialize() as roles, roles.partition(1):
        pass


def _box_into_another_layout(kb: GpuKernelBuilder) -> None:
    plain = kb.alloc((64, 64), bf16, tma_layout((64, 16), bf16))
    kb.descriptor("map", (64, 64), bf16).load([0, 0], plain, kb.barriers(1)[0])


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (_tensor_across, "a partition cannot use tensor"),
        (_value_out_of_a_partition, "outside the loop or branch"),
        (_wrong_warps, "lies in 4 warps, the code runs on 1"),
        (_two_layouts, "layouts differ"),
        (_registers_for_one, "either all partitions"),
        (_no_default, r"needs a default\(\)"),
        (_box_into_another_layout, "the layout of .* is not that of"),
        (lambda kb: kb.arange(0, 64), "needs one"),
        (lambda kb: kb.arange(0, 64, slice_of(wgmma(64), 1))[None, :], "no slice along dimension 0"),
        (lambda kb: kb.alloc((64, 64), bf16, count=2)[2], "no buffer 2 among 2"),
        (lambda kb: kb.alloc((64, 64), bf16)[kb.constant(True, i1)], "where i32 is needed"),
        (lambda kb: kb.barriers(1)[0].wait(kb.constant(0.0)), "where i32 is needed"),
        (lambda kb: kb.warp_group_dot(kb.alloc((64, 32), bf16), kb.alloc((64, 64), bf16)), "does not give"),
        (lambda kb: kb.warp_group_dot(kb.alloc((32, 64), bf16), kb.alloc((64, 64), bf16)), "32 rows"),
        (lambda kb: kb.bar_sync(2, 128), "named barrier 2"),
        (lambda kb: kb.round_in_place(kb.zeros((64,), i32), bf16), "no conversion"),
        (lambda kb: kb.reshape(kb.arange(0, 64, BlockedLayout.of([1], [32], [4], [0])), (8, 8)), "not known"),
    ],
)
def test_mistakes_are_found_where_they_are_made(mistake: Callable[[GpuKernelBuilder], object], message: str) -> None:
    kb = GpuKernelBuilder("k", [tensor_map("map")])
    with pytest.raises((LoweringError, VerifyException), match=message):
        mistake(kb)


def test_wgmma_is_for_hopper() -> None:
    kb = GpuKernelBuilder("k", [], arch=100)
    kb.warp_group_dot_wait(kb.warp_group_dot(kb.alloc((64, 64), bf16), kb.alloc((64, 64), bf16)))
    with pytest.raises(LoweringError, match="exists on cuda:90 only"):
        kb.finish()


def test_the_kernel_is_the_one_public_function() -> None:
    module = product_kernel()
    assert [op.sym_name.data for op in module.ops if isinstance(op, tt.FuncOp)] == ["product"]
    assert isinstance(wgmma(64), NvidiaMmaLayout)
