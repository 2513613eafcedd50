"""All operations of `tt`, and of `arith` as defined here: both syntaxes round-trip, verifiers reject, Triton reads."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.parser import Parser
from xdsl.transforms.canonicalize import CanonicalizePass
from xdsl.utils.exceptions import VerifyException

from compilemask.dialects import arith
from compilemask.dialects.registry import make_context
from compilemask.dialects.triton.printing import print_generic
from compilemask.dialects.triton.tt import TT

EVERY_OP = """
tt.func public @every(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %n: i32, %q: !tt.ptr<i32>) {
  %pid = tt.get_program_id x : i32
  %count = tt.get_num_programs z : i32
  %lane = tt.make_range {start = 0 : i32, end = 64 : i32} : tensor<64xi32>
  %base = tt.splat %x : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
  %at = tt.addptr %base, %lane : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
  %limit = tt.splat %n : i32 -> tensor<64xi32>
  %mask = arith.cmpi slt, %lane, %limit : tensor<64xi32>
  %a = tt.load %at, %mask : tensor<64x!tt.ptr<f32>>
  %b = tt.load %at, %mask, %a cacheModifier = cg evictionPolicy = evict_last : tensor<64x!tt.ptr<f32>>
  %one = tt.load %q : !tt.ptr<i32>
  %sum, %arg = "tt.reduce"(%a, %lane) <{axis = 0 : i32}> ({
  ^bb0(%v0: f32, %i0: i32, %v1: f32, %i1: i32):
    %less = arith.cmpf olt, %v0, %v1 : f32
    %v = arith.select %less, %v0, %v1 : f32
    %i = arith.select %less, %i0, %i1 : i32
    tt.reduce.return %v, %i : f32, i32
  }) : (tensor<64xf32>, tensor<64xi32>) -> (f32, i32)
  %prefix = "tt.scan"(%lane) <{axis = 0 : i32, reverse = false}> ({
  ^bb0(%p0: i32, %p1: i32):
    %p = arith.addi %p0, %p1 : i32
    tt.scan.return %p : i32
  }) : (tensor<64xi32>) -> tensor<64xi32>
  %bits = tt.bitcast %a : tensor<64xf32> -> tensor<64xi32>
  %column = tt.expand_dims %a {axis = 1 : i32} : tensor<64xf32> -> tensor<64x1xf32>
  %square = tt.broadcast %column : tensor<64x1xf32> -> tensor<64x64xf32>
  %turned = tt.trans %square {order = array<i32: 1, 0>} : tensor<64x64xf32> -> tensor<64x64xf32>
  %d0 = tt.dot %square, %turned, %square : tensor<64x64xf32> * tensor<64x64xf32> -> tensor<64x64xf32>
  %d1 = tt.dot %d0, %turned, %d0, inputPrecision = tf32x3 : tensor<64x64xf32> * tensor<64x64xf32> -> tensor<64x64xf32>
  %flat = tt.reshape %d1 : tensor<64x64xf32> -> tensor<4096xf32>
  %any = tt.reshape %d1 allow_reorder : tensor<64x64xf32> -> tensor<4096xf32>
  %pairs = tt.join %a, %b : tensor<64xf32> -> tensor<64x2xf32>
  %left, %right = tt.split %pairs : tensor<64x2xf32> -> tensor<64xf32>
  %old = tt.atomic_rmw fadd, relaxed, gpu, %at, %a, %mask
    : (tensor<64x!tt.ptr<f32>>, tensor<64xf32>, tensor<64xi1>) -> tensor<64xf32>
  %top = tt.atomic_rmw max, acq_rel, sys, %q, %n : (!tt.ptr<i32>, i32) -> i32
  tt.store %at, %left, %mask : tensor<64x!tt.ptr<f32>>
  tt.store %q, %pid evictionPolicy = evict_first : !tt.ptr<i32>
  %address = tt.ptr_to_int %x : !tt.ptr<f32> -> i64
  %again = tt.int_to_ptr %address : i64 -> !tt.ptr<f32>
  %single = tt.make_range {start = 3 : i32, end = 4 : i32} : tensor<1xi32>
  %three = tt.unsplat %single : tensor<1xi32> -> i32
  tt.return
}
"""

EVERY_ARITH = """
%i, %j, %f, %h, %c, %s = "test.op"()
  : () -> (tensor<4xi32>, tensor<4xi8>, tensor<4xf32>, tensor<4xf16>, tensor<4xi1>, i1)
%0 = arith.cmpi ult, %i, %i : tensor<4xi32>
%1 = arith.cmpf ogt, %f, %f : tensor<4xf32>
%2 = arith.cmpf une, %f, %f fastmath<nnan> : tensor<4xf32>
%3 = arith.select %c, %f, %f : tensor<4xi1>, tensor<4xf32>
%4 = arith.select %s, %f, %f : tensor<4xf32>
%5 = arith.extsi %j : tensor<4xi8> to tensor<4xi32>
%6 = arith.extui %j : tensor<4xi8> to tensor<4xi32>
%7 = arith.trunci %i : tensor<4xi32> to tensor<4xi8>
%8 = arith.sitofp %i : tensor<4xi32> to tensor<4xf32>
%9 = arith.uitofp %i : tensor<4xi32> to tensor<4xf32>
%10 = arith.fptosi %f : tensor<4xf32> to tensor<4xi32>
%11 = arith.fptoui %f : tensor<4xf32> to tensor<4xi32>
%12 = arith.extf %h : tensor<4xf16> to tensor<4xf32>
%13 = arith.truncf %f : tensor<4xf32> to tensor<4xf16>
%14 = arith.bitcast %f : tensor<4xf32> to tensor<4xi32>
"""

PREAMBLE = """
  %f, %g, %i, %s, %p, %pt, %m, %w = "test.op"() : () -> (tensor<8xf32>, tensor<4x8xf32>, tensor<8xi32>, i32,
    !tt.ptr<f32>, tensor<8x!tt.ptr<f32>>, tensor<8xi1>, i64)
"""

# operation: invalid uses of it, each with a part of the message
INVALID: dict[str, list[tuple[str, str]]] = {
    "tt.func": [
        (
            '"tt.func"() <{sym_name = "k", function_type = (i32) -> ()}> ({\n"tt.return"() : () -> ()\n}) : () -> ()',
            "entry",
        ),
    ],
    "tt.return": [('"tt.return"() : () -> ()', "expects parent")],
    "tt.get_program_id": [('"tt.get_program_id"() <{axis = 3 : i32}> : () -> i32', "axis must be")],
    "tt.get_num_programs": [('"tt.get_num_programs"() <{axis = 0 : i64}> : () -> i32', "axis must be")],
    "tt.make_range": [
        ('"tt.make_range"() <{start = 0 : i32, end = 6 : i32}> : () -> tensor<6xi32>', "power of two"),
        ('"tt.make_range"() <{start = 0 : i32, end = 8 : i32}> : () -> tensor<4xi32>', "should be tensor<8xi32>"),
    ],
    "tt.splat": [
        ('"tt.splat"(%s) : (i32) -> tensor<8xf32>', "element types"),
        ('"tt.splat"(%i) : (tensor<8xi32>) -> tensor<8xi32>', "must be a scalar"),
    ],
    "tt.unsplat": [('"tt.unsplat"(%i) : (tensor<8xi32>) -> i32', "more than one")],
    "tt.expand_dims": [
        ('"tt.expand_dims"(%f) <{axis = 2 : i32}> : (tensor<8xf32>) -> tensor<8x1xf32>', "outside rank"),
        ('"tt.expand_dims"(%f) <{axis = 0 : i32}> : (tensor<8xf32>) -> tensor<8x1xf32>', "inserted at axis 0"),
    ],
    "tt.broadcast": [('"tt.broadcast"(%g) : (tensor<4x8xf32>) -> tensor<8x8xf32>', "does not broadcast")],
    "tt.reshape": [('"tt.reshape"(%g) : (tensor<4x8xf32>) -> tensor<16xf32>', "number of elements")],
    "tt.trans": [
        ('"tt.trans"(%g) <{order = array<i32: 1, 1>}> : (tensor<4x8xf32>) -> tensor<8x8xf32>', "does not permute"),
        ('"tt.trans"(%g) <{order = array<i32: 1, 0>}> : (tensor<4x8xf32>) -> tensor<4x8xf32>', "in the order"),
    ],
    "tt.join": [('"tt.join"(%f, %f) : (tensor<8xf32>, tensor<8xf32>) -> tensor<2x8xf32>', "dimension of 2")],
    "tt.split": [('%a, %b = "tt.split"(%g) : (tensor<4x8xf32>) -> (tensor<4xf32>, tensor<4xf32>)', "must be 2")],
    "tt.addptr": [
        ('"tt.addptr"(%i, %i) : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi32>', "not a pointer"),
        ('"tt.addptr"(%pt, %s) : (tensor<8x!tt.ptr<f32>>, i32) -> tensor<8x!tt.ptr<f32>>', "does not fit"),
    ],
    "tt.ptr_to_int": [('"tt.ptr_to_int"(%p) : (!tt.ptr<f32>) -> i32', "must be i64")],
    "tt.int_to_ptr": [('"tt.int_to_ptr"(%w) : (i64) -> i64', "not a pointer")],
    "tt.load": [
        ('"tt.load"(%p) <{operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<f32>) -> i32', "should be f32"),
        (
            '"tt.load"(%p, %m) <{operandSegmentSizes = array<i32: 1, 1, 0>}> : (!tt.ptr<f32>, tensor<8xi1>) -> f32',
            "mask tensor<8xi1>",
        ),
        (
            '"tt.load"(%pt, %f) <{operandSegmentSizes = array<i32: 1, 0, 1>}>'
            " : (tensor<8x!tt.ptr<f32>>, tensor<8xf32>) -> tensor<8xf32>",
            "without a mask",
        ),
        ('"tt.load"(%p) <{cache = 9 : i32, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<f32>) -> f32', "9"),
    ],
    "tt.store": [('"tt.store"(%pt, %i) : (tensor<8x!tt.ptr<f32>>, tensor<8xi32>) -> ()', "should be tensor<8xf32>")],
    "tt.atomic_rmw": [
        (
            '"tt.atomic_rmw"(%pt, %f) <{atomic_rmw_op = 4 : i32, scope = 1 : i32, sem = 1 : i32}>'
            " : (tensor<8x!tt.ptr<f32>>, tensor<8xf32>) -> tensor<8xf32>",
            "add does not take",
        ),
    ],
    "tt.bitcast": [
        ('"tt.bitcast"(%f) : (tensor<8xf32>) -> tensor<8xi64>', "different widths"),
        ('"tt.bitcast"(%f) : (tensor<8xf32>) -> tensor<4xi32>', "shapes"),
    ],
    "tt.dot": [
        (
            '"tt.dot"(%g, %g, %g) <{inputPrecision = 2 : i32, maxNumImpreciseAcc = 0 : i32}>'
            " : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>",
            "does not give",
        ),
    ],
    "tt.reduce": [
        (
            '"tt.reduce"(%f) <{axis = 1 : i32}> ({\n^bb0(%a: f32, %b: f32):\n"tt.reduce.return"(%a) : (f32) -> ()\n})'
            " : (tensor<8xf32>) -> f32",
            "axis 1 is outside",
        ),
        (
            '"tt.reduce"(%f) <{axis = 0 : i32}> ({\n^bb0(%a: f32):\n"tt.reduce.return"(%a) : (f32) -> ()\n})'
            " : (tensor<8xf32>) -> f32",
            "two values of each",
        ),
        (
            '"tt.reduce"(%g) <{axis = 0 : i32}> ({\n^bb0(%a: f32, %b: f32):\n"tt.reduce.return"(%a) : (f32) -> ()\n})'
            " : (tensor<4x8xf32>) -> tensor<4xf32>",
            "results should be tensor<8xf32>",
        ),
    ],
    "tt.reduce.return": [('"tt.reduce.return"(%f) : (tensor<8xf32>) -> ()', "expects parent")],
    "tt.scan": [
        (
            '"tt.scan"(%f) <{axis = 0 : i32, reverse = false}> ({\n^bb0(%a: f32, %b: f32):\n'
            '"tt.scan.return"(%a) : (f32) -> ()\n}) : (tensor<8xf32>) -> tensor<4xf32>',
            "results must have",
        ),
    ],
    "tt.scan.return": [('"tt.scan.return"(%f) : (tensor<8xf32>) -> ()', "expects parent")],
    "arith.cmpi": [
        ('"arith.cmpi"(%i, %i) <{predicate = 2 : i32}> : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>', "not i64"),
        ('"arith.cmpi"(%i, %i) <{predicate = 2 : i64}> : (tensor<8xi32>, tensor<8xi32>) -> i1', "result type"),
    ],
    "arith.cmpf": [
        ('"arith.cmpf"(%f, %f) <{predicate = 2 : i32}> : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xi1>', "not i64"),
        (
            '"arith.cmpf"(%f, %f) <{predicate = 16 : i64}> : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xi1>',
            "predicate 16",
        ),
    ],
    "arith.select": [
        (
            '"arith.select"(%m, %g, %g) : (tensor<8xi1>, tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>',
            "does not fit",
        ),
    ],
    "arith.extsi": [('"arith.extsi"(%i) : (tensor<8xi32>) -> tensor<8xi32>', "not wider")],
    "arith.extui": [('"arith.extui"(%i) : (tensor<8xi32>) -> i64', "shapes")],
    "arith.trunci": [('"arith.trunci"(%i) : (tensor<8xi32>) -> tensor<8xi64>', "not narrower")],
    "arith.sitofp": [('"arith.sitofp"(%i) : (tensor<8xi32>) -> tensor<4xf32>', "shapes")],
    "arith.uitofp": [('"arith.uitofp"(%i) : (tensor<8xi32>) -> tensor<4xf32>', "shapes")],
    "arith.fptosi": [('"arith.fptosi"(%f) : (tensor<8xf32>) -> i32', "shapes")],
    "arith.fptoui": [('"arith.fptoui"(%f) : (tensor<8xf32>) -> i32', "shapes")],
    "arith.extf": [('"arith.extf"(%f) : (tensor<8xf32>) -> tensor<8xbf16>', "not wider")],
    "arith.truncf": [('"arith.truncf"(%f) : (tensor<8xf32>) -> tensor<8xf64>', "not narrower")],
    "arith.bitcast": [('"arith.bitcast"(%f) : (tensor<8xf32>) -> tensor<8xi64>', "different widths")],
}


def parse(text: str) -> ModuleOp:
    context = make_context()
    context.allow_unregistered = True
    module = Parser(context, text).parse_module()
    return module


def names_in(module: ModuleOp) -> set[str]:
    return {op.name for op in module.walk()}


@pytest.mark.parametrize("text", [EVERY_OP, EVERY_ARITH], ids=["tt", "arith"])
def test_both_syntaxes_round_trip(text: str) -> None:
    module = parse(text)
    module.verify()
    for printed in (str(module), print_generic(module)):
        again = parse(printed)
        again.verify()
        assert again.is_structurally_equivalent(module)
        assert str(again) == str(module)


def test_samples_hold_every_operation() -> None:
    assert {op.name for op in TT.operations} <= names_in(parse(EVERY_OP))
    assert {op.name for op in arith.REDEFINED} <= names_in(parse(EVERY_ARITH))


def test_every_operation_has_an_invalid_use() -> None:
    assert {op.name for op in (*TT.operations, *arith.REDEFINED)} == set(INVALID)


@pytest.mark.parametrize(
    ("name", "use", "message"), [(name, use, message) for name, uses in INVALID.items() for use, message in uses]
)
def test_invalid_uses_are_rejected(name: str, use: str, message: str) -> None:
    module = parse(PREAMBLE + use)
    with pytest.raises(VerifyException, match=message):
        module.verify()
    assert name in names_in(module)


@pytest.mark.parametrize(
    "use", ["tt.get_program_id w : i32", "tt.load %i : tensor<8xi32>", "arith.cmpi lt, %i, %i : i32"]
)
def test_parse_errors_name_what_is_wrong(use: str) -> None:
    with pytest.raises(Exception, match=r"expected|unknown"):
        parse(PREAMBLE + "%r = " + use)


def test_triton_reads_the_generic_form(tmp_path: Path) -> None:
    libtriton = pytest.importorskip("triton._C.libtriton")
    compiler = pytest.importorskip("triton.compiler.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    path = tmp_path / "every.ttir"
    path.write_text(print_generic(parse(EVERY_OP)))
    context = libtriton.ir.context()
    libtriton.ir.load_dialects(context)
    compiler.make_backend(target).load_dialects(context)
    text = libtriton.ir.parse_mlir_module(str(path), context).str_nodebug()
    assert "tt.divisibility = 16 : i32" in text
    assert "tt.load %4, %6, %7 cacheModifier = cg evictionPolicy = evict_last" in text


def folded(text: str) -> list[Operation]:
    context = make_context()
    context.allow_unregistered = True
    module = Parser(context, textwrap.dedent(text)).parse_module()
    CanonicalizePass().apply(context, module)
    return list(module.ops)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("arith.cmpi slt, %a, %b : i32", "arith.constant false"),
        ("arith.cmpi ult, %a, %b : i32", "arith.constant true"),
        ("arith.cmpi sge, %b, %b : i32", "arith.constant true"),
        ("arith.extsi %b : i32 to i64", "arith.constant -2 : i64"),
        ("arith.extui %b : i32 to i64", "arith.constant 4294967294 : i64"),
        ("arith.trunci %a : i32 to i8", "arith.constant 5 : i8"),
        ("arith.select %t, %a, %b : i32", "arith.constant 5 : i32"),
    ],
)
def test_scalar_constants_fold(op: str, expected: str) -> None:
    ops = folded(f"""
        %a = arith.constant 5 : i32
        %b = arith.constant -2 : i32
        %t = arith.constant true
        %r = {op}
        "test.use"(%r) : ({op.rsplit(" ", 1)[1] if "cmp" not in op else "i1"}) -> ()
    """)
    assert [str(op).partition(" = ")[2] for op in ops[:-1]] == [expected]
