"""All operations, types and layouts of `ttg` and `ttng`: both syntaxes round-trip, verifiers reject."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp, bf16
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from compilemask.dialects.registry import make_context
from compilemask.dialects.triton.layouts import LAYOUTS, LinearLayout, NvmmaSharedLayout
from compilemask.dialects.triton.printing import print_generic
from compilemask.dialects.triton.ttg import TTG
from compilemask.dialects.triton.ttg_module import module_attributes, verify_gpu_module
from compilemask.dialects.triton.ttg_types import TYPES, MemDescType
from compilemask.dialects.triton.ttng import TTNG

EVERY_OP = (Path(__file__).parent / "filecheck/dialects/ttg/ops.mlir").read_text()
ALIASES = "".join(line + "\n" for line in EVERY_OP.splitlines() if line[:1] in "#!" and line)

PREAMBLE = (
    ALIASES
    + """
%n, %yes, %bar, %bars = "test.values"() : () -> (i32, i1, !bar, !ttg.memdesc<2x1xi64, #plain, #smem, mutable>)
%tile, %turned, %acc, %box = "test.values"() : () -> (!tile, !turned, !acc, !box)
%frozen, %left = "test.values"() : () -> (!ttg.memdesc<64x64xbf16, #rows, #smem>, tensor<64x64xbf16, #left>)
%grid, %raw, %ptr = "test.values"() : () -> (tensor<64x64xbf16, #grid>, !tt.ptr<i8, 0>, !tt.ptr<i8>)
"""
)

_DOT = "<{inputPrecision = 0 : i32, isAsync = true, maxNumImpreciseAcc = 0 : i32}> : "
_BYTES_ROWS = "#ttg.nvmma_shared<{swizzlingByteWidth = 64, transposed = false, elementBitWidth = 8}>"
_BYTES = f"!ttg.memdesc<64x64xi8, {_BYTES_ROWS}, #smem>"
_BYTES_MMA = "#ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], instrShape = [16, 64, 32]}>"
_BF16_GRID = "tensor<64x64xbf16, #grid>"


def _specialize(warps: str, registers: str, partition: str = "^bb0(%q: i32):") -> str:
    return (
        f'"ttg.warp_specialize"(%n) <{{partitionNumWarps = array<i32: {warps}>, requestedRegisters = '
        f"array<i32: {registers}>}}> ({{\nttg.warp_yield\n}}, {{\n"
        f'"ttg.warp_specialize.partitions"() ({{\n{partition}\nttg.warp_return\n}}) : () -> ()\n}}) : (i32) -> ()'
    )


INVALID: dict[str, list[tuple[str, str]]] = {
    "ttg.local_alloc": [
        ('%r = "ttg.local_alloc"() : () -> !ttg.memdesc<64x64xbf16, #rows, #smem>', "must be mutable"),
        (f'%r = "ttg.local_alloc"(%grid) : ({_BF16_GRID}) -> !bar', "does not hold what"),
    ],
    "ttg.local_dealloc": [('"ttg.local_dealloc"(%n) : (i32) -> ()', "i32")],
    "ttg.local_load": [
        ("%r = ttg.local_load %tile : !tile -> tensor<64x32xbf16, #grid>", "does not hold what"),
        ("%r = ttg.local_load %tile : !tile -> tensor<64x64xbf16>", "no register layout"),
        (
            "%r = ttg.local_load %bars : !ttg.memdesc<2x1xi64, #plain, #smem, mutable> -> tensor<2x1xi64, #grid>",
            "index it first",
        ),
    ],
    "ttg.local_store": [
        (
            f"ttg.local_store %grid, %frozen : {_BF16_GRID} -> !ttg.memdesc<64x64xbf16, #rows, #smem>",
            "not mutable",
        )
    ],
    "ttg.memdesc_index": [
        ("%r = ttg.memdesc_index %bars[%n] : !ttg.memdesc<2x1xi64, #plain, #smem, mutable> -> !tile", "element types")
    ],
    "ttg.memdesc_subslice": [
        (
            '%r = "ttg.memdesc_subslice"(%tile) <{offsets = array<i32: 48, 0>}>'
            " : (!tile) -> !ttg.memdesc<32x64xbf16, #rows, #smem, mutable, 64x64>",
            "no aligned part",
        ),
        (
            '%r = "ttg.memdesc_subslice"(%tile) <{offsets = array<i32: 0, 0>}>'
            " : (!tile) -> !ttg.memdesc<32x64xbf16, #rows, #smem, mutable>",
            "shape of the allocation",
        ),
    ],
    "ttg.memdesc_trans": [
        ("%r = ttg.memdesc_trans %tile {order = array<i32: 1, 1>} : !tile -> !turned", "no permutation"),
        ("%r = ttg.memdesc_trans %tile {order = array<i32: 1, 0>} : !tile -> !tile", "layout should be"),
        (
            '%part = "ttg.memdesc_subslice"(%tile) <{offsets = array<i32: 32, 0>}>'
            " : (!tile) -> !ttg.memdesc<32x64xbf16, #rows, #smem, mutable, 64x64>\n"
            "%r = ttg.memdesc_trans %part {order = array<i32: 1, 0>}"
            " : !ttg.memdesc<32x64xbf16, #rows, #smem, mutable, 64x64>"
            " -> !ttg.memdesc<64x32xbf16, #columns, #smem, mutable>",
            "cut from another buffer",
        ),
    ],
    "ttg.memdesc_reshape": [
        (
            "%r = ttg.memdesc_reshape %tile : !tile -> !ttg.memdesc<128x64xbf16, #rows, #smem, mutable>",
            "differ in size",
        ),
        ("%r = ttg.memdesc_reshape %tile : !tile -> !ttg.memdesc<64x64xbf16, #rows, #smem>", "as mutable as"),
    ],
    "ttg.memdesc_reinterpret": [
        (
            "%r = ttg.memdesc_reinterpret %tile : !tile -> !ttg.memdesc<128x64xbf16, #rows, #smem, mutable>",
            "16384 bytes are not 8192",
        )
    ],
    "ttg.convert_layout": [
        (f"%r = ttg.convert_layout %grid : {_BF16_GRID} -> tensor<64x64xf32, #mma>", "more than the layout"),
        (f"%r = ttg.convert_layout %grid : {_BF16_GRID} -> tensor<64x64xbf16>", "no register layout"),
    ],
    "tt.elementwise_inline_asm": [
        (
            '%r = "tt.elementwise_inline_asm"(%n) <{asm_string = "", constraints = "=r,r", packed_element = 3 : i32,'
            " pure = true}> : (i32) -> i32",
            "packed_element 3",
        ),
        (
            '"tt.elementwise_inline_asm"(%n) <{asm_string = "", constraints = "=r,r", packed_element = 1 : i32,'
            " pure = true}> : (i32) -> ()",
            "a result is needed",
        ),
        (
            '%r = "tt.elementwise_inline_asm"(%grid) <{asm_string = "", constraints = "=r,r", packed_element = 1 : i32,'
            f" pure = true}}> : ({_BF16_GRID}) -> tensor<64x64xbf16, #mma>",
            "layouts differ",
        ),
        (
            '%r = "tt.elementwise_inline_asm"(%n) <{asm_string = "", constraints = "=r,r,r", packed_element = 1 : i32,'
            " pure = true}> : (i32) -> i32",
            r"constraints of \[1, 2\] results and operands",
        ),
    ],
    "ttg.warp_specialize": [
        (_specialize("4, 1", "24, 24"), "2 entries for 1 partitions"),
        (_specialize("3", "24"), "a partition of 3 warps"),
        (_specialize("4", "100"), "100 registers"),
        (_specialize("4", "24, 24"), "requestedRegisters has 2"),
    ],
    "ttg.warp_specialize.partitions": [
        (_specialize("4", "24", "^bb0(%q: i64):"), "arguments of partition 0"),
        (_specialize("4", "24", "^bb0(%q: i32):\n%u = arith.addi %n, %n : i32"), "solated"),
    ],
    "ttg.warp_yield": [("ttg.warp_yield", "expects parent")],
    "ttg.warp_return": [("ttg.warp_return", "expects parent")],
    "ttng.init_barrier": [
        ("ttng.init_barrier %bar, 0 : !bar", "count 0 is not in"),
        ("ttng.init_barrier %tile, 1 : !tile", "not one mbarrier"),
    ],
    "ttng.inval_barrier": [("ttng.inval_barrier %tile : !tile", "not one mbarrier")],
    "ttng.barrier_expect": [("ttng.barrier_expect %bar, 0, %yes : !bar", "size 0 is not in")],
    "ttng.arrive_barrier": [
        (
            "ttng.arrive_barrier %bars, 1 : !ttg.memdesc<2x1xi64, #plain, #smem, mutable>",
            "not one mbarrier",
        )
    ],
    "ttng.wait_barrier": [("ttng.wait_barrier %bar, %n deps %n : !bar, i32", "not a buffer")],
    "ttng.fence_async_shared": [('"ttng.fence_async_shared"() : () -> ()', "bCluster")],
    "ttng.reinterpret_tensor_descriptor": [
        ("%r = ttng.reinterpret_tensor_descriptor %ptr : !tt.ptr<i8> to !box", "is not !tt.ptr<i8, 0>")
    ],
    "ttng.async_tma_copy_global_to_local": [
        (
            '"ttng.async_tma_copy_global_to_local"(%box, %n, %bar, %tile, %yes) : (!box, i32, !bar, !tile, i1) -> ()',
            "1 coordinates for a box of 2",
        ),
        (
            '"ttng.async_tma_copy_global_to_local"(%box, %n, %n, %tile, %tile, %yes)'
            " : (!box, i32, i32, !tile, !tile, i1) -> ()",
            "not one mbarrier",
        ),
        (
            '"ttng.async_tma_copy_global_to_local"(%box, %n, %n, %bar, %turned, %yes)'
            " : (!box, i32, i32, !bar, !turned, i1) -> ()",
            "is not that of",
        ),
        (
            '"ttng.async_tma_copy_global_to_local"(%box, %n, %n, %bar, %tile, %yes)'
            " <{operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1>}> : (!box, i32, i32, !bar, !tile, i1) -> ()",
            "should be",
        ),
    ],
    "ttng.async_tma_copy_local_to_global": [
        (
            '"ttng.async_tma_copy_local_to_global"(%box, %n, %n, %bar) : (!box, i32, i32, !bar) -> ()',
            "does not hold a box",
        )
    ],
    "ttng.async_tma_reduce": [
        (
            '"ttng.async_tma_reduce"(%box, %n, %n, %tile) <{kind = 9 : i32}> : (!box, i32, i32, !tile) -> ()',
            "9",
        )
    ],
    "ttng.async_tma_store_wait": [("ttng.async_tma_store_wait {pendings = -1 : i32}", "pendings -1")],
    "ttng.warp_group_dot": [
        (
            f'%r = "ttng.warp_group_dot"(%grid, %turned, %acc) {_DOT} ({_BF16_GRID}, !turned, !acc) -> !acc',
            "is not operand 0",
        ),
        (
            f'%r = "ttng.warp_group_dot"(%tile, %bar, %acc) {_DOT} (!tile, !bar, !acc) -> !acc',
            "no layout that wgmma reads",
        ),
        (
            f'%o = "test.values"() : () -> tensor<64x64xbf16, #mma>\n'
            f'%r = "ttng.warp_group_dot"(%tile, %turned, %o) {_DOT}'
            " (!tile, !turned, tensor<64x64xbf16, #mma>) -> tensor<64x64xbf16, #mma>",
            "are not summed as",
        ),
        (
            f'%o = "test.values"() : () -> tensor<32x64xf32, #mma>\n'
            f'%r = "ttng.warp_group_dot"(%tile, %turned, %o) {_DOT}'
            " (!tile, !turned, tensor<32x64xf32, #mma>) -> tensor<32x64xf32, #mma>",
            "does not give",
        ),
        (
            f'%o = "test.values"() : () -> tensor<64x64xf32, #grid>\n'
            f'%r = "ttng.warp_group_dot"(%tile, %turned, %o) {_DOT}'
            " (!tile, !turned, tensor<64x64xf32, #grid>) -> tensor<64x64xf32, #grid>",
            "no layout of wgmma",
        ),
        (
            f'%a, %b, %o = "test.values"() : () -> ({_BYTES}, {_BYTES}, tensor<64x64xi32, {_BYTES_MMA}>)\n'
            f'%r = "ttng.warp_group_dot"(%a, %b, %o) {_DOT} ({_BYTES}, {_BYTES}, tensor<64x64xi32, {_BYTES_MMA}>)'
            f" -> tensor<64x64xi32, {_BYTES_MMA}>",
            "K must be the contiguous dimension",
        ),
    ],
    "ttng.warp_group_dot_wait": [
        ('%r = "ttng.warp_group_dot_wait"(%acc) <{pendings = 0 : i32}> : (!acc) -> !tile', "operands' types")
    ],
}


def parse(text: str) -> ModuleOp:
    context = make_context()
    context.allow_unregistered = True
    return Parser(context, text).parse_module()


def names_in(module: ModuleOp) -> set[str]:
    return {op.name for op in module.walk()}


def test_both_syntaxes_round_trip() -> None:
    module = parse(EVERY_OP)
    verify_gpu_module(module)
    for printed in (str(module), print_generic(module)):
        again = parse(printed)
        again.verify()
        assert again.is_structurally_equivalent(module)
        assert str(again) == str(module)


def test_samples_hold_every_operation_and_layout() -> None:
    assert {op.name for op in (*TTG.operations, *TTNG.operations)} <= names_in(parse(EVERY_OP))
    printed = print_generic(parse(EVERY_OP))
    assert all(f"#{layout.name}" in printed for layout in LAYOUTS)
    assert all(f"!{kind.name}" in printed or kind.name == "ttg.async.token" for kind in TYPES)


def test_every_operation_has_an_invalid_use() -> None:
    assert {op.name for op in (*TTG.operations, *TTNG.operations)} == set(INVALID)


@pytest.mark.parametrize(
    ("name", "use", "message"), [(name, use, message) for name, uses in INVALID.items() for use, message in uses]
)
def test_invalid_uses_are_rejected(name: str, use: str, message: str) -> None:
    module = parse(PREAMBLE + use)
    with pytest.raises(VerifyException, match=message):
        module.verify()
    assert name in names_in(module)


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("#ttg.blocked<{sizePerThread = [1], threadsPerWarp = [16], warpsPerCTA = [4], order = [0]}>", "32 threads"),
        ("#ttg.blocked<{sizePerThread = [3], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>", "powers of two"),
        ("#ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [1]}>", "permutation"),
        ("#ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4]}>", "needs order"),
        ("#ttg.slice<{dim = 2, parent = #mma}>", "no dimension 2"),
        ("#ttg.slice<{dim = 0, parent = #line}>", "no dimension 0"),
        ("#ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 2}>", "only operand 0"),
        ("#ttg.dot_op<{opIdx = 0, parent = #mma}>", "kWidth is needed"),
        ("#ttg.linear<{register = [], lane = [[1]], warp = [], block = []}>", "five lane bases"),
        (
            "#ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], instrShape = [16, 12, 16]}>",
            "no wgmma instruction",
        ),
        (
            "#ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [2, 1], instrShape = [16, 64, 16]}>",
            "four warps",
        ),
        ("#ttg.nvmma_shared<{swizzlingByteWidth = 48, transposed = false, elementBitWidth = 16}>", "48 bytes"),
        ("#ttg.nvmma_shared<{swizzlingByteWidth = 64, transposed = false, elementBitWidth = 16, x = 1}>", "has no x"),
        ("#ttg.swizzled_shared<{vec = 3, perPhase = 1, maxPhase = 1, order = [0]}>", "powers of two"),
        ("!ttg.memdesc<4x64x64x64xbf16, #rows, #smem>", "does not fit a layout of rank 2"),
        ("!ttg.memdesc<64x64xf32, #rows, #smem>", "16-bit elements"),
        ("!ttg.memdesc<64x16xbf16, #rows, #smem>", "rows of 32 bytes"),
        ("!tt.tensordesc<tensor<64x64xbf16>>", "no shared layout"),
        ("!tt.tensordesc<tensor<64x64xbf16, #columns>>", "no shared layout that TMA writes"),
        ("!tt.tensordesc<tensor<1x64x64xbf16, #rows>>", "layout of rank 2"),
    ],
)
def test_invalid_layouts_and_types_are_rejected(attribute: str, message: str) -> None:
    with pytest.raises((VerifyException, ParseError), match=message):
        parse(f'{ALIASES}"test.op"() {{x = {attribute}}} : () -> ()')


def test_layouts_and_types_are_printed_in_full() -> None:
    assert str(NvmmaSharedLayout.of(16, rank=4)) == (
        "#ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, rank = 4}>"
    )
    assert str(MemDescType.of([32, 64], bf16, NvmmaSharedLayout.of(16), alloc_shape=[64, 64])).endswith(
        "#ttg.shared_memory, mutable, 64x64>"
    )
    assert str(LinearLayout.of([], [[1], [2], [4], [8], [16]], [])) == (
        "#ttg.linear<{register = [], lane = [[1], [2], [4], [8], [16]], warp = [], block = []}>"
    )


KERNEL = """
builtin.module attributes {ATTRIBUTES} {
tt.func public @kernel(ARGUMENTS) {
  BODY
  tt.return
}
}
"""


def kernel(body: str = "", arguments: str = "", **changed: str | None) -> ModuleOp:
    """A module for Hopper around a body; `changed` attributes have another text, or none."""
    attributes = {name: str(value) for name, value in module_attributes(4).items()}
    for key, value in changed.items():
        name = {"warps": "ttg.num-warps", "ctas": "ttg.num-ctas", "target": "ttg.target"}[key]
        if value is None:
            del attributes[name]
        else:
            attributes[name] = value
    text = "{" + ", ".join(f'"{name}" = {value}' for name, value in attributes.items()) + "}"
    filled = KERNEL.replace("{ATTRIBUTES}", text).replace("ARGUMENTS", arguments).replace("BODY", body)
    return parse(ALIASES + filled)


def test_a_module_with_its_attributes_verifies() -> None:
    verify_gpu_module(kernel())


NESTED = _specialize("1", "24", "^bb0(%q: i32):\n" + _specialize("1", "24").replace("%n", "%q").replace("%q:", "%p:"))
_WAIT = '%w = "ttng.warp_group_dot_wait"(%a) <{pendings = 0 : i32}> : (!acc) -> !acc'
_RANGE = "%r = tt.make_range {end = 256 : i32, start = 0 : i32} : tensor<256xi32, #line>"


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (kernel(warps=None), "ttg.num-warps : i32 is missing"),
        (kernel(warps="3 : i32"), "no power of two"),
        (kernel(ctas="2 : i32"), "must be 1"),
        (kernel(target=None), "ttg.target"),
        (kernel(target='"hip:gfx942"'), "ttg.target"),
        (kernel(_WAIT, "%a: !acc", target='"cuda:100"'), "wgmma exists on cuda:90 only"),
        (kernel("ttng.fence_async_shared {bCluster = false}", target='"cuda:80"'), "needs cuda:90"),
        (kernel(arguments="%d: !tt.ptr<i8> {tt.nv_tma_desc = 1 : i32}"), "not !tt.ptr<i8, 0>"),
        (kernel("tt.return\n}\ntt.func public @second() {"), "2 public functions"),
        (kernel(_RANGE, warps="8 : i32"), "lies in 4 warps, the code runs on 8"),
        (kernel("%r = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>"), "no register layout"),
        (kernel("%r = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32, #mma>"), "layout of rank 2"),
        (kernel(_specialize("16", "24"), "%n: i32", warps="32 : i32"), "48 warps in all"),
        (kernel(_specialize("16", "128"), "%n: i32"), "65536 registers|68608 registers"),
        (kernel(NESTED, "%n: i32"), "inside another"),
        (kernel(_specialize("1", "24", f"^bb0(%q: i32):\n{_RANGE}"), "%n: i32"), "the code runs on 1"),
    ],
)
def test_modules_that_would_end_the_process_are_rejected(module: ModuleOp, message: str) -> None:
    with pytest.raises(VerifyException, match=message):
        verify_gpu_module(module)


def test_inline_ptx_is_read_where_nothing_else_is_of_ttg() -> None:
    text = """"builtin.module"() ({
      %0 = "arith.constant"() <{value = 1.0 : f32}> : () -> f32
      %1 = "tt.splat"(%0) : (f32) -> tensor<4xf32>
      %2 = "tt.elementwise_inline_asm"(%1) <{asm_string = "mov.b32 $0, $1;", constraints = "=f,f", pure = true,
        packed_element = 1 : i32}> : (tensor<4xf32>) -> tensor<4xf32>
    }) : () -> ()"""
    Parser(make_context(), text).parse_module().verify()
