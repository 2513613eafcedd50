"""Bad values and bad text: each raises its error where it is given, and says what was expected."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import compilemask as cm
from compilemask.language.text import parse_module

SEEN: list[object] = []
IDS = torch.arange(9) // 3

BAD: dict[str, tuple[Callable[[], object], str]] = {
    "align": (lambda: cm.causal("left"), "align must be 'top_left' or 'bottom_right', got 'left'"),  # pyright: ignore
    "window without bounds": (lambda: cm.window(None, None), "window needs a bound"),
    "window -1": (lambda: cm.window(-1, 0), "left must be at least 0, got -1; None means unbounded"),
    "window negative": (lambda: cm.window(3, -2), "right must be at least 0, got -2"),
    "window float": (lambda: cm.window(2.5), "left must be an int.*2.5 .float."),  # pyright: ignore
    "window bool": (lambda: cm.window(True), "left must be an int.*True .bool."),
    "window too large": (lambda: cm.window(2**30 + 1), "left must be at most 1073741824, got 1073741825"),
    "band without bounds": (lambda: cm.band(), "band needs a lower or an upper bound"),
    "rows negative": (lambda: cm.rows(-1, 5), "rows: begin must be at least 0, got -1"),
    "cols string": (lambda: cm.cols(0, "5"), "cols: end must be an int.*'5'"),  # pyright: ignore
    "padding float tensor": (lambda: cm.padding(torch.tensor([1.0])), "int32 or int64, got torch.float32"),
    "padding bool tensor": (lambda: cm.padding(torch.tensor([True])), "int32 or int64, got torch.bool"),
    "padding negative": (lambda: cm.padding([4, -1]), "padding: lengths must be at least 0, got -1"),
    "padding rank": (lambda: cm.padding(torch.zeros(1, 2, 3, dtype=torch.int32)), r"\[B, H\], got \[1, 2, 3\]"),
    "document scalar": (lambda: cm.document(5), "offsets must be integers of shape"),  # pyright: ignore
    "document rank": (lambda: cm.document(torch.zeros(1, 1, 1, 3, dtype=torch.int32)), "document: offsets must have"),
    "document one entry": (lambda: cm.document([0]), r"at least 2 entries, got \[1\]"),
    "document descending": (lambda: cm.document([0, 5, 3]), "must ascend, but entry 1 is 5 and entry 2 is 3"),
    "document descending batch": (lambda: cm.document(torch.tensor([[0, 1], [4, 2]])), "entry 0 is 4 and entry 1 is 2"),
    "document negative": (lambda: cm.document([-1, 5]), "at least 0, got -1"),
    "document float list": (lambda: cm.document([0.0, 5.0]), "integers of shape"),  # pyright: ignore
    "document ragged": (lambda: cm.document([[0, 5], [0, 5, 9]]), "rows of different lengths"),
    "document numpy float": (lambda: cm.document(np.array([0.5])), "integers of shape"),
    "prompt not from 0": (lambda: cm.shared_prompt([2, 5, 9]), "offsets must start with 0, got 2"),
    "hstu contexts": (lambda: cm.hstu(5, 6), "contexts must be at most history, got 6 .int. > 5"),
    "hstu contexts batch": (lambda: cm.hstu(torch.tensor([5, 9]), 6), "contexts must be at most history"),
    "hstu total": (lambda: cm.hstu(5, 2, total=4), "history must be at most total"),
    "hstu negative": (lambda: cm.hstu(-5), "hstu: history must be at least 0, got -5"),
    "batches": (lambda: cm.hstu([1, 2], [1, 1, 1]), "history is for 2 batches, but .* are for 3"),
    "disk radius": (lambda: cm.disk2d(4, 4, 0), "disk2d: radius must be at least 1, got 0"),
    "disk radius tensor": (lambda: cm.disk2d(4, 4, torch.tensor(3)), "radius must be an int"),  # pyright: ignore
    "disk width": (lambda: cm.disk2d(4, 0, 3), "disk2d: width must be at least 1, got 0"),
    "disk huge radius": (lambda: cm.disk2d(4, 4, 2**20), "at most 16384"),
    "box reach": (lambda: cm.box2d(4, 4, -1), "box2d: reach_y must be at least 0"),
    "clear text": (lambda: cm.clear(4, 4, 2, text=-3), "clear: text must be at least 0, got -3"),
    "chunks too large": (lambda: cm.transformer_xl(2**29 + 1), "size must be at most 536870912, got 536870913"),
    "bigbird reach": (lambda: cm.bigbird(64, [[0]], reach=2**25), "reach must be at most 16777216, got 33554432"),
    "bigbird edge": (lambda: cm.bigbird(64, [[0]], edge=2**25), "edge must be at most 16777216, got 33554432"),
    "and": (lambda: cm.causal() & 3, "& combines two masks, got int"),  # pyright: ignore
    "and keyword": (lambda: cm.causal() and cm.full(), "neither true nor false"),
    "name": (lambda: cm.causal().named("two words"), "identifier, got 'two words'"),
    "dense": (lambda: cm.causal().dense(-1, 5), "no -1 x 5 pairs"),
    "where if": (lambda: cm.where(lambda q, kv: q if q > kv else kv), "write & | ~"),
    "where chain": (lambda: cm.where(lambda q, kv: 0 <= q - kv < 5), "chained comparisons"),
    "where not a condition": (lambda: cm.where(lambda q, kv: q - kv), "truth value was expected"),
    "where none": (lambda: cm.where(lambda q, kv: None), "truth value was expected.*NoneType"),
    "where float": (lambda: cm.where(lambda q, kv: q * 0.5 < kv), "got 0.5; write the comparison with"),
    "where side effect": (lambda: cm.where(lambda q, kv: SEEN.append(q) or q < kv), "SEEN.*errors.py:.*append"),
    "where line": (
        lambda: cm.where(lambda q, kv: q if q > kv else kv),
        "errors.py:.*lambda q, kv: q if",
    ),
    "where division": (lambda: cm.where(lambda q, kv: q / 2 < kv), "compare products, .* or use //, which"),
    "where power": (lambda: cm.where(lambda q, kv: q**kv < 3), "raises to the power .*; expected an int from 0 to 8"),
    "where captured tensor": (lambda: cm.where(lambda q, kv: IDS[q] == kv), "pass tables by name"),
    "where captured array": (lambda: cm.where(lambda q, kv: IDS.numpy()[q] == kv), "pass tables by name"),
    "where torch": (lambda: cm.where(lambda q, kv: torch.maximum(q, kv) < 4), "calls maximum; it may use Python's"),  # pyright: ignore
    "where numpy": (lambda: cm.where(lambda q, kv: np.maximum(q, kv) < 4), "does not support ufuncs"),
    "where zero": (lambda: cm.where(lambda q, kv: q // 0 < kv), "divides by zero"),
    "where modulo zero": (lambda: cm.where(lambda q, kv: q % 0 < kv), "divides by zero"),
    "where closure": (lambda: cm.where(lambda q, kv: [1, 2][q] == kv), "pass tables by name"),
    "where table": (lambda: cm.where(lambda q, kv, t: t + 1 == kv, t=[1]), "cannot be traced"),
    "where table bare": (lambda: cm.where(lambda q, kv, t: q == t, t=[1]), "table t without an index"),
    "where mixed": (lambda: cm.where(lambda q, kv: (q < kv) + 1 == 2), "cannot be traced"),
    "where arguments": (lambda: cm.where(lambda q, kv: q < kv, n=3), "cannot be traced.*unexpected keyword"),
    "where empty table": (lambda: cm.where(lambda q, kv, t: t[q] == 0, t=[]), "t must be"),
    "where overflow": (
        lambda: cm.where(lambda q, kv: q * 2**29 > kv).dense(9, 9),
        "@where cannot be .*arith.muli leaves",
    ),
    "where no function": (lambda: cm.where(5), "takes a function"),  # pyright: ignore
}


@pytest.mark.parametrize("name", BAD)
def test_bad_values(name: str) -> None:
    make, message = BAD[name]
    with pytest.raises(cm.MaskError, match=message):
        make()


ALL = "mask.func @m() -> !mask.region {\n  %r = mask.all\n  mask.return %r\n}\n"
BAD_TEXT: dict[str, tuple[str, int | None, int | None, str]] = {
    "nothing": ("mask.func", 1, 10, "expect symbol name"),
    "unknown operation": ("mask.func @m() -> !mask.region {\n  %r = mask.some\n}", 2, 3, "mask.some is not registered"),
    "unknown dialect": ("foo.bar", 1, 1, "foo.bar is not registered"),
    "unknown type": ("mask.func @m(%n: !mask.areas) -> !mask.region {\n}", 1, None, "areas"),
    "undefined value": ("mask.func @m() -> !mask.region {\n  mask.return %r\n}", 2, None, "%?r"),
    "used before": (
        "mask.func @m() -> !mask.region {\n  %a = mask.union %b, %b\n  %b = mask.all\n  mask.return %a\n}",
        2,
        3,
        "mask.union uses %b before it is defined",
    ),
    "no bound": (
        "mask.func @m() -> !mask.region {\n\n   %r = mask.band\n  mask.return %r\n}",
        3,
        4,
        "needs a lower or an upper bound.*mask.func @m",
    ),
    "parameter type": ("\nmask.func @m(%n: i64) -> !mask.region {\n  %r = mask.all\n  mask.return %r\n}", 2, 1, "i64"),
    "no terminator": ("mask.func @m() -> !mask.region {\n  %r = mask.all\n}", 2, 3, "not a terminator"),
    "set of arity -2": ("interval.func @s(%q: i32) -> !interval.set<-2> {\n}", 1, None, "integer literal"),
    "two of one name": (ALL + ALL, 5, 1, "a function of that name already"),
    "bad shape": (
        "tiling.func @t(%t: i32, %q: i32, %k: i32) -> !tiling.runs attributes {shape = #tiling.shape<100 x 128>} {\n}",
        1,
        1,
        "multiple of 16",
    ),
    "garbage": ("\x00\x01 {]", 1, None, "Unexpected|expected"),
    "unbalanced": (ALL[:-2], 4, None, "unexpected text in block definition"),
}


@pytest.mark.parametrize(
    "mask",
    [cm.transformer_xl(2**29), cm.bigbird(5, [[0]], reach=2**30 // 5), cm.bigbird(2**30, [[0]], edge=1)],
    ids=["transformer_xl", "bigbird reach", "bigbird block"],
)
def test_largest_values(mask: cm.Mask) -> None:
    queries, keys = torch.meshgrid(torch.arange(150), torch.arange(170), indexing="ij")
    wanted = keys <= queries if mask.LABEL == "transformer_xl" else keys >= 0
    assert torch.equal(mask.dense(150, 170)[0, 0], wanted)
    cm.compile(mask).descriptor(150, 170, "cpu", gradient=True).check()


@pytest.mark.parametrize("name", BAD_TEXT)
def test_bad_text(name: str) -> None:
    text, line, column, message = BAD_TEXT[name]
    with pytest.raises(cm.IRError, match=message) as raised:
        parse_module(text, "masks/mine.mlir")
    assert str(raised.value).startswith("masks/mine.mlir")
    assert raised.value.file == "masks/mine.mlir"
    if line is not None:
        assert raised.value.line == line
    if column is not None:
        assert raised.value.column == column


TWO = (
    "mask.func @a(%n: i32, %t: memref<?xi32>) -> !mask.region {\n  %r = mask.rows %n to %n\n  mask.return %r\n}\n" + ALL
)


def test_text_with_several_masks() -> None:
    with pytest.raises(cm.IRError, match="name of one; found @a"):
        cm.parse(TWO)
    with pytest.raises(cm.IRError, match=r"no mask\.func @b; found @a, @m"):
        cm.parse(TWO, "b")
    with pytest.raises(cm.IRError, match="found none"):
        cm.parse("builtin.module {\n}")
    with pytest.raises(cm.IRError, match=r"<text>:1:1"):
        cm.parse("")
    assert cm.parse(TWO, "m").name == "m"


def test_parameters_of_text() -> None:
    with pytest.raises(cm.MaskError, match="@a needs the parameter 't'; it takes n: i32, t: memref"):
        cm.parse(TWO, "a", n=3)
    with pytest.raises(cm.MaskError, match="@a has no parameter 'x'"):
        cm.parse(TWO, "a", n=3, t=[1], x=2)
    with pytest.raises(cm.MaskError, match="@a: t must be integers of shape"):
        cm.parse(TWO, "a", n=3, t=2)
    with pytest.raises(cm.MaskError, match="@a: n is i32 and takes an int, got list"):
        cm.parse(TWO, "a", n=[3], t=[2])
    with pytest.raises(cm.MaskError, match=r"@a: n must be an int"):
        cm.parse(TWO, "a", n=1.5, t=[2])  # pyright: ignore[reportArgumentType]
    mask = cm.parse(TWO, "a", n=3, t=[2])
    assert [p.name for p in mask.parameters] == ["n", "t"]


def test_names_in_text_are_kept() -> None:
    body = "{\n  %r = mask.rows %x_1 to %x_2\n  mask.return %r\n}"
    text = f"mask.func @m(%x_2: i32, %x_1: i32, %0: i32) -> !mask.region {body}"
    parsed = cm.parse(text, x_1=3, x_2=9, **{"0": 1})
    assert parsed.dense(20, 1).sum() == 6
    assert [p.name for p in parsed.parameters] == ["x2", "x1", "arg0"], "what would print as another name is changed"


def test_operations_that_masks_cannot_hold() -> None:
    text = (
        "mask.func @m() -> !mask.region {\n  %n = arith.constant 3 : index\n  %s = memref.alloc(%n) : memref<?xi32>\n"
    )
    with pytest.raises(cm.IRError, match=r":3:3: memref.alloc cannot stand here"):
        cm.parse(text + "  %r = mask.all\n  mask.return %r\n}")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.mlir"
    with pytest.raises(cm.IRError, match=r"mine.mlir: cannot be read: No such file"):
        cm.load(path)
    path.write_bytes(b"\xff\xfe\x80")
    with pytest.raises(cm.IRError, match="is not UTF-8 text"):
        cm.load(path)
    path.write_text("mask.func @m() -> !mask.region {\n  %r = mask.band\n  mask.return %r\n}")
    with pytest.raises(cm.IRError, match=rf"^{path}:2:3: mask.band needs") as raised:
        cm.load(path)
    assert raised.value.__cause__ is None
    path.write_text(ALL)
    assert cm.load(path).dense(2, 2).all()


def test_a_string_that_is_not_closed_is_found_at_once() -> None:
    text = 'mask.func @m() -> !mask.region {\n  %r = "mask.band(%zero) <{operandSegmentSizes = array<i32: 0, 1>}>\n}'
    start = time.perf_counter()
    with pytest.raises(cm.IRError, match=r":2:8: .*closing string literal"):
        cm.parse(text)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("body", [" ({\n})", " ({\n^a:\n^b:\n})", ""])
def test_a_module_holds_one_block(body: str) -> None:
    with pytest.raises(cm.IRError, match=r":1:1: builtin\.module holds one region of one block, this one [02] blocks"):
        parse_module(f'"builtin.module"(){body} : () -> ()')


def test_a_fault_in_a_function_without_a_name_has_a_place() -> None:
    text = '"interval.func"() ({\n^bb0(%q: i32):\n  "interval.member"(%q, %q) : (i32, i32) -> ()\n}) : () -> ()'
    with pytest.raises(cm.IRError, match=r":3:3: .*expects parent op 'interval.family'"):
        parse_module(text)


@pytest.mark.parametrize("attributes", ["é = 1 : i32", "a = {é = 1 : i32}", 'a = "é"', 'a = [1, {b = "é"}]'])
def test_other_characters_than_ascii_are_refused(attributes: str) -> None:
    """Printed, they would be read again as other attributes or not at all."""
    text = f"mask.func @m() -> !mask.region attributes {{{attributes}}} {{\n  %r = mask.all\n  mask.return %r\n}}"
    with pytest.raises(cm.IRError, match=r":1:1: mask.func: 'é' holds characters other than ASCII"):
        cm.parse(text)
