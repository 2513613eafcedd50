"""The one emitted form of Triton-GPU IR in the form of each Triton version, and through the Triton at hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

from compilemask.dialects.registry import make_context
from compilemask.dialects.triton.printing import print_generic
from compilemask.errors import TargetError
from compilemask.passes.legalize_triton import legalize

ALIASES = """
#rows = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#columns = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = true, elementBitWidth = 16}>
#plain = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#mma = #ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], instrShape = [16, 64, 16]}>
#smem = #ttg.shared_memory
!raw = !tt.ptr<i8, 0>
!box = !tt.tensordesc<tensor<64x64xbf16, #rows>>
!tiles = !ttg.memdesc<2x64x64xbf16, #rows, #smem, mutable>
!tile = !ttg.memdesc<64x64xbf16, #rows, #smem, mutable>
!turned = !ttg.memdesc<64x64xbf16, #columns, #smem, mutable>
!bar = !ttg.memdesc<1xi64, #plain, #smem, mutable>
!acc = tensor<64x64xf32, #mma>
!low = tensor<64x64xbf16, #mma>
"""

ORIGINAL = """
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90",
                   "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @product(%raw_a: !raw {tt.nv_tma_desc = 1 : i32}, %raw_b: !raw {tt.nv_tma_desc = 1 : i32},
                          %raw_d: !raw {tt.nv_tma_desc = 1 : i32}, %n: i32) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %true = arith.constant true
    %zero = arith.constant dense<0.0> : !acc
    %a = ttng.reinterpret_tensor_descriptor %raw_a : !raw to !box
    %b = ttng.reinterpret_tensor_descriptor %raw_b : !raw to !box
    %d = ttng.reinterpret_tensor_descriptor %raw_d : !raw to !box
    %tiles = ttg.local_alloc : () -> !tiles
    %out = ttg.local_alloc : () -> !tile
    %full = ttg.local_alloc : () -> !bar
    ttng.init_barrier %full, 1 : !bar
    ttng.fence_async_shared {bCluster = false}
    ttg.warp_specialize(%a, %b, %tiles, %full, %n) attributes {requestedRegisters = array<i32: 24>}
    default {
      %tile_a = ttg.memdesc_index %tiles[%c0] : !tiles -> !tile
      %tile_b = ttg.memdesc_index %tiles[%c1] : !tiles -> !tile
      ttng.wait_barrier %full, %c0, %true : !bar
      %turned = ttg.memdesc_trans %tile_b {order = array<i32: 1, 0>} : !tile -> !turned
      %acc = ttng.warp_group_dot %tile_a, %turned, %zero {inputPrecision = 0 : i32, isAsync = true}
        : !tile * !turned -> !acc
      %sum = ttng.warp_group_dot_wait %acc {pendings = 0 : i32} : !acc
      %low = arith.truncf %sum : !acc to !low
      ttg.local_store %low, %out : !low -> !tile
      ttng.fence_async_shared {bCluster = false}
      ttng.async_tma_copy_local_to_global %d[%n, %c0] %out : !box, !tile
      ttng.async_tma_store_wait {pendings = 0 : i32}
      ttg.warp_yield
    }
    partition0(%p_a: !box, %p_b: !box, %p_tiles: !tiles, %p_full: !bar, %p_n: i32) num_warps(1) {
      %p0 = arith.constant 0 : i32
      %p1 = arith.constant 1 : i32
      %yes = arith.constant true
      ttng.barrier_expect %p_full, 16384, %yes : !bar
      %tile_a = ttg.memdesc_index %p_tiles[%p0] : !tiles -> !tile
      ttng.async_tma_copy_global_to_local %p_a[%p_n, %p0] %tile_a, %p_full, %yes : !box, !bar -> !tile
      %tile_b = ttg.memdesc_index %p_tiles[%p1] : !tiles -> !tile
      ttng.async_tma_copy_global_to_local %p_b[%p0, %p0] %tile_b, %p_full, %yes : !box, !bar -> !tile
      ttg.warp_return
    } : (!box, !box, !tiles, !bar, i32) -> ()
    tt.return
  }
}
"""

_COPY = "<{cache = 1 : i32, evict = 1 : i32, isVolatile = false}> : (!box, i32, i32, !bar, !tile, i1) -> ()"
GENERIC = f"""
"builtin.module"() ({{
  "tt.func"() <{{arg_attrs = [{{tt.nv_tma_desc = 1 : i32}}, {{tt.nv_tma_desc = 1 : i32}},
    {{tt.nv_tma_desc = 1 : i32}}, {{}}], function_type = (!raw, !raw, !raw, i32) -> (), sym_name = "product",
    sym_visibility = "public"}}> ({{
  ^bb0(%raw_a: !raw, %raw_b: !raw, %raw_d: !raw, %n: i32):
    %c0 = "arith.constant"() <{{value = 0 : i32}}> : () -> i32
    %c1 = "arith.constant"() <{{value = 1 : i32}}> : () -> i32
    %true = "arith.constant"() <{{value = true}}> : () -> i1
    %zero = "arith.constant"() <{{value = dense<0.0> : !acc}}> : () -> !acc
    %a = "ttng.reinterpret_tensor_descriptor"(%raw_a) : (!raw) -> !box
    %b = "ttng.reinterpret_tensor_descriptor"(%raw_b) : (!raw) -> !box
    %d = "ttng.reinterpret_tensor_descriptor"(%raw_d) : (!raw) -> !box
    %tiles = "ttg.local_alloc"() : () -> !tiles
    %out = "ttg.local_alloc"() : () -> !tile
    %full = "ttg.local_alloc"() : () -> !bar
    "ttng.init_barrier"(%full) <{{count = 1 : i32}}> : (!bar) -> ()
    "ttng.fence_async_shared"() <{{bCluster = false}}> : () -> ()
    "ttg.warp_specialize"(%a, %b, %tiles, %full, %n) <{{partitionNumWarps = array<i32: 1>,
      requestedRegisters = array<i32: 24>}}> ({{
      %tile_a = "ttg.memdesc_index"(%tiles, %c0) : (!tiles, i32) -> !tile
      %tile_b = "ttg.memdesc_index"(%tiles, %c1) : (!tiles, i32) -> !tile
      "ttng.wait_barrier"(%full, %c0, %true) <{{operandSegmentSizes = array<i32: 1, 1, 1, 0>}}> : (!bar, i32, i1) -> ()
      %turned = "ttg.memdesc_trans"(%tile_b) <{{order = array<i32: 1, 0>}}> : (!tile) -> !turned
      %acc = "ttng.warp_group_dot"(%tile_a, %turned, %zero) <{{inputPrecision = 0 : i32, isAsync = true,
        maxNumImpreciseAcc = 0 : i32}}> : (!tile, !turned, !acc) -> !acc
      %sum = "ttng.warp_group_dot_wait"(%acc) <{{pendings = 0 : i32}}> : (!acc) -> !acc
      %low = "arith.truncf"(%sum) : (!acc) -> !low
      "ttg.local_store"(%low, %out) : (!low, !tile) -> ()
      "ttng.fence_async_shared"() <{{bCluster = false}}> : () -> ()
      "ttng.async_tma_copy_local_to_global"(%d, %n, %c0, %out) : (!box, i32, i32, !tile) -> ()
      "ttng.async_tma_store_wait"() <{{pendings = 0 : i32}}> : () -> ()
      "ttg.warp_yield"() : () -> ()
    }}, {{
      "ttg.warp_specialize.partitions"() ({{
      ^bb0(%p_a: !box, %p_b: !box, %p_tiles: !tiles, %p_full: !bar, %p_n: i32):
        %p0 = "arith.constant"() <{{value = 0 : i32}}> : () -> i32
        %p1 = "arith.constant"() <{{value = 1 : i32}}> : () -> i32
        %yes = "arith.constant"() <{{value = true}}> : () -> i1
        "ttng.barrier_expect"(%p_full, %yes) <{{size = 16384 : i32}}> : (!bar, i1) -> ()
        %p_tile_a = "ttg.memdesc_index"(%p_tiles, %p0) : (!tiles, i32) -> !tile
        "ttng.async_tma_copy_global_to_local"(%p_a, %p_n, %p0, %p_full, %p_tile_a, %yes) {_COPY}
        %p_tile_b = "ttg.memdesc_index"(%p_tiles, %p1) : (!tiles, i32) -> !tile
        "ttng.async_tma_copy_global_to_local"(%p_b, %p0, %p0, %p_full, %p_tile_b, %yes) {_COPY}
        "ttg.warp_return"() : () -> ()
      }}) : () -> ()
    }}) : (!box, !box, !tiles, !bar, i32) -> ()
    "tt.return"() : () -> ()
  }}) : () -> ()
}}) {{"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32}}
  : () -> ()
"""


def emitted() -> ModuleOp:
    return Parser(make_context(), ALIASES + GENERIC).parse_module()


def original(version: tuple[int, int]) -> str:
    """The kernel as one writes it by hand for a version of Triton."""
    text = ALIASES + ORIGINAL
    if version >= (3, 8):
        text = text.replace("tensordesc<tensor<64x64xbf16, #rows>>", "tensordesc<64x64xbf16, #rows>")
    if version >= (3, 9):
        text = re.sub(r"!raw = .*\n|.*reinterpret_tensor_descriptor.*\n", "", text)
        text = text.replace("%raw_", "%").replace(": !raw", ": !box")
    return text


# ---------------------------------------------------------------- what each version reads


def test_the_emitted_form_is_that_of_3_6() -> None:
    module = emitted()
    assert print_generic(legalize(module, "3.6.0")) == print_generic(module)


def test_the_module_given_stays_as_it_is() -> None:
    module = emitted()
    before = print_generic(module)
    legalize(module, "3.9.0")
    assert print_generic(module) == before


@pytest.mark.parametrize("version", ["3.7.0", "3.7.1", "3.8.0", "3.9.0"])
def test_captures_and_segments_since_3_7(version: str) -> None:
    text = print_generic(legalize(emitted(), version))
    assert '"ttg.warp_specialize"() <{' in text
    assert re.search(r'"ttg\.warp_specialize\.partitions"\(%\w+, %\w+, %\w+, %\w+, %\w+\)', text)
    assert text.count("operandSegmentSizes = array<i32: 1, 2, 0, 1, 1, 1>") == 2


@pytest.mark.parametrize(("version", "wraps"), [("3.7.1", True), ("3.8.0", False), ("3.9.0", False)])
def test_descriptor_types_since_3_8(version: str, wraps: bool) -> None:
    assert ("!tt.tensordesc<tensor<" in print_generic(legalize(emitted(), version))) == wraps


@pytest.mark.parametrize(
    ("version", "pointers"), [("3.8.0", True), ("3.9.0", False), ("3.10.0", False), ("4.0", False)]
)
def test_descriptor_arguments_since_3_9(version: str, pointers: bool) -> None:
    text = print_generic(legalize(emitted(), version))
    assert ("!tt.ptr<i8, 0>" in text) == pointers
    assert ("reinterpret_tensor_descriptor" in text) == pointers
    assert text.count("tt.nv_tma_desc = 1 : i32") == 3


@pytest.mark.parametrize("version", ["3.6.0", "3.7.1", "3.8.0", "3.9.0"])
def test_every_form_parses_again(version: str) -> None:
    text = print_generic(legalize(emitted(), version))
    again = Parser(make_context(), text).parse_module()
    again.verify()
    assert print_generic(again) == text


@pytest.mark.parametrize("version", ["3.5.1", "2.3", "new", "3"])
def test_other_versions_are_refused(version: str) -> None:
    with pytest.raises(TargetError, match=re.escape(version)):
        legalize(emitted(), version)


def test_pre_releases_count_as_their_version() -> None:
    assert print_generic(legalize(emitted(), "3.8.0+git1234")) == print_generic(legalize(emitted(), "3.8.0"))


def test_a_tensor_map_used_as_a_pointer_is_refused() -> None:
    module = Parser(
        make_context(), (ALIASES + GENERIC).replace("(%raw_b) : (!raw)", "(%raw_a) : (!raw)")
    ).parse_module()
    with pytest.raises(VerifyException, match="%raw_b must be reinterpreted"):
        legalize(module, "3.9.0")


# ---------------------------------------------------------------- through Triton


def ptx_of(text: str, path: Path) -> str:
    """What Triton makes of a module, without debug information."""
    triton = pytest.importorskip("triton")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    path.write_text(text)
    kernel = triton.compile(str(path), target=target)
    assert kernel.asm["cubin"]
    return re.sub(r"(?m)^\s*(//|\.loc|\.file).*$", "", kernel.asm["ptx"].split(".section")[0])


def test_the_triton_at_hand_makes_the_same_of_our_text_as_of_the_original(tmp_path: Path) -> None:
    version = pytest.importorskip("triton").__version__
    major, minor = version.split(".")[:2]
    ours = print_generic(legalize(emitted(), version))
    expected = ptx_of(original((int(major), int(minor))), tmp_path / "original.ttgir")
    assert "wgmma.mma_async" in expected
    assert "cp.async.bulk.tensor.2d.shared" in expected
    assert ptx_of(ours, tmp_path / "ours.ttgir") == expected
