"""Bad input of every kind, at every entrance: the class of the error, the value and the expectation in its message, and
nothing launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from compare import random_inputs

import compilemask as cm
from compilemask.lowering.descriptor_layout import VERSION
from compilemask.runtime import compiled_kernels
from compilemask.runtime.calls import operator
from compilemask.runtime.program import Program
from compilemask.tools import cli, opt


@dataclass(frozen=True)
class Bad:
    """A call that must fail, the class of its error, the value that the message names, and what it expects."""

    call: Callable[[], object]
    error: type[cm.CompileMaskError]
    value: str
    expectation: str


@pytest.fixture(autouse=True)
def _nothing_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No kernel is compiled, no descriptor is built and no attention is computed."""

    def ran(*_: object, **__: object) -> None:
        raise AssertionError("bad input reached what it must not reach")

    monkeypatch.setattr(Program, "build", ran)
    monkeypatch.setattr(operator, "attention_cpu", ran)
    monkeypatch.setattr(operator, "attention_gpu", ran)
    before = compiled_kernels()
    yield
    assert compiled_kernels() == before


def attend(
    mask: Any = None,
    q: Callable[[torch.Tensor], Any] = lambda q: q,
    k: Callable[[torch.Tensor], Any] = lambda k: k,
    v: Callable[[torch.Tensor], Any] = lambda v: v,
    **options: Any,
) -> Callable[[], object]:
    """Attention of 2 batches, 4 heads on 2, 100 queries, 120 keys and head_dim 16, with inputs changed."""

    def call() -> object:
        inputs = random_inputs(2, 4, 2, 100, 120, 16)
        changed = [change(tensor) for change, tensor in zip((q, k, v), inputs, strict=True)]
        return cast("Any", cm.attention)(*changed, cm.causal() if mask is None else mask(), **options)

    return call


def int32(*values: int) -> torch.Tensor:
    """A table in host memory."""
    return torch.tensor(values, dtype=torch.int32)


def descriptor_words(**words: int) -> torch.Tensor:
    """A header of a descriptor of this version with no tiles, some of its words changed."""
    header = {
        "magic": 0x434D4B31,
        "version": VERSION,
        "batch": 1,
        "heads": 1,
        "rows": 128,
        "keys_of_a_tile": 128,
        **words,
    }
    names = ("magic", "version", "batch", "heads", "queries", "keys", "rows", "keys_of_a_tile")
    return int32(*(header.get(name, 0) for name in names), *[0] * 7, header.get("shared", 0), *[0] * 16)


LANGUAGE: dict[str, Bad] = {
    "align": Bad(lambda: cm.causal("left"), cm.MaskError, "'left'", "'top_left' or 'bottom_right'"),  # pyright: ignore
    "negative window": Bad(lambda: cm.window(-2), cm.MaskError, "-2", "at least 0"),
    "fractional window": Bad(lambda: cm.window(2.5), cm.MaskError, "2.5 (float)", "must be an int"),  # pyright: ignore
    "window without bounds": Bad(lambda: cm.window(None, None), cm.MaskError, "window", "a bound on one side"),
    "descending offsets": Bad(
        lambda: cm.document(int32(0, 5, 3)), cm.MaskError, "entry 1 is 5 and entry 2 is 3", "must ascend"
    ),
    "one offset": Bad(lambda: cm.document([0]), cm.MaskError, "[1]", "at least 2 entries"),
    "offsets of floats": Bad(
        lambda: cm.document(torch.tensor([0.0, 5.0])), cm.MaskError, "torch.float32", "int32 or int64"
    ),
    "prompt behind 0": Bad(lambda: cm.shared_prompt([2, 5]), cm.MaskError, "2", "must start with 0"),
    "contexts above history": Bad(lambda: cm.hstu(5, 6), cm.MaskError, "6 (int) > 5", "at most history"),
    "image without columns": Bad(lambda: cm.clear(4, 0, 2), cm.MaskError, "width", "at least 1"),
    "radius 0": Bad(lambda: cm.disk2d(4, 4, 0), cm.MaskError, "got 0", "at least 1"),
    "batches differ": Bad(lambda: cm.hstu([1, 2], [1, 1, 1]), cm.MaskError, "for 2 batches", "for 3"),
    "mask and number": Bad(lambda: cm.causal() & 3, cm.MaskError, "int", "two masks"),  # pyright: ignore
    "mask as condition": Bad(lambda: cm.causal() or cm.full(), cm.MaskError, "neither true nor false", "& | - ~"),
    "name of an int": Bad(lambda: cm.causal().named(3), cm.MaskError, "3", "an identifier"),  # pyright: ignore
    "fractional size": Bad(lambda: cm.causal().dense(1.5, 2), cm.MaskError, "1.5 (float)", "an int"),  # pyright: ignore
    "no size": Bad(lambda: cm.hstu(5).check_lengths(5, None), cm.MaskError, "None", "an int"),  # pyright: ignore
    "predicate with if": Bad(lambda: cm.where(lambda q, kv: q if q > kv else kv), cm.MaskError, "predicate", "& | ~"),
}

MASK = "mask.func @m(%n: i32, %t: memref<?xi32>) -> !mask.region {\n  %r = mask.rows %n to %n\n  mask.return %r\n}\n"
TEXT: dict[str, Bad] = {
    "no parameter": Bad(lambda: cm.parse(MASK, n=3), cm.MaskError, "'t'", "it takes n: i32, t: memref<?xi32>"),
    "unknown parameter": Bad(lambda: cm.parse(MASK, n=3, t=[1], x=2), cm.MaskError, "'x'", "it takes n: i32"),
    "list for an int": Bad(lambda: cm.parse(MASK, n=[3], t=[1]), cm.MaskError, "list", "takes an int"),
    "unknown function": Bad(lambda: cm.parse(MASK, "k"), cm.IRError, "@k", "found @m"),
    "no such file": Bad(lambda: cm.load("no/such.mlir"), cm.IRError, "no/such.mlir", "No such file"),
    "no path": Bad(lambda: cm.load(None), cm.IRError, "NoneType", "str or a PathLike"),  # pyright: ignore
    "path with a null byte": Bad(lambda: cm.load("a\0b"), cm.IRError, r"'a\x00b'", "null byte"),
    "function by number": Bad(lambda: cm.parse(MASK, 3), cm.MaskError, "3 (int)", "must be a str"),  # pyright: ignore
}

FILES: dict[str, tuple[str, str, str]] = {
    # what the file holds, line and column of the fault, what the message says
    "malformed": ("mask.func @m( -> !mask.region {\n}\n", "1:15", "Expected argument or type"),
    "unknown operation": (
        "mask.func @m() -> !mask.region {\n  %r = mask.some\n  mask.return %r\n}\n",
        "2:3",
        "mask.some is not registered",
    ),
    "no bound": (
        "mask.func @m() -> !mask.region {\n\n   %r = mask.band\n  mask.return %r\n}\n",
        "3:4",
        "needs a lower or an upper bound",
    ),
    "mistyped parameter": (
        "\nmask.func @m(%n: i64) -> !mask.region {\n  %r = mask.all\n  mask.return %r\n}\n",
        "2:1",
        "argument 0 is i64; a mask parameter is i32 or memref<?xi32>",
    ),
    "used before it is defined": (
        "mask.func @m() -> !mask.region {\n  %a = mask.union %b, %b\n  %b = mask.all\n  mask.return %a\n}\n",
        "2:3",
        "uses %b before it is defined",
    ),
    "mask in a mask": (
        "mask.func @m() -> !mask.region {\n  mask.func @n() -> !mask.region {\n    %b = mask.all\n    mask.return %b\n"
        "  }\n  %a = mask.all\n  mask.return %a\n}\n",
        "2:3",
        "mask.func @n must stand in a module, not in mask.func",
    ),
    "region in a predicate": (
        "mask.func @m() -> !mask.region {\n  %a = mask.where {\n  ^bb0(%q: i32, %kv: i32):\n    %x = mask.all\n"
        "    %y = arith.constant true\n    mask.yield %y\n  }\n  mask.return %a\n}\n",
        "4:5",
        "mask.all cannot stand here; the body of mask.where holds arith",
    ),
    "choice between regions": (
        "mask.func @m() -> !mask.region {\n  %a = mask.all\n  %y = arith.constant true\n"
        "  %b = arith.select %y, %a, %a : !mask.region\n  mask.return %b\n}\n",
        "4:3",
        "arith.select cannot stand here; a mask.func holds mask operations and arith on scalars",
    ),
    "two masks of one name": (
        "mask.func @m() -> !mask.region {\n  %a = mask.all\n  mask.return %a\n}\n\n"
        "mask.func @m() -> !mask.region {\n  %a = mask.none\n  mask.return %a\n}\n",
        "6:1",
        "@m: there is a function of that name already",
    ),
    "bad tile": (
        "tiling.func @t(%t: i32, %q: i32, %k: i32) -> !tiling.runs attributes {shape = #tiling.shape<90 x 128>} {\n}\n",
        "1:",
        "rows must be a multiple of 16",
    ),
}

RUNTIME: dict[str, Bad] = {
    "list for q": Bad(attend(q=lambda q: q.tolist()), cm.DTypeError, "q is a list", "torch.Tensor"),
    "rank 3": Bad(attend(q=lambda q: q[0]), cm.ShapeError, "(4, 100, 16)", "rank 4"),
    "head counts that do not divide": Bad(
        attend(q=lambda q: q[:, :3]), cm.ShapeError, "q has 3 heads, k has 2", "multiple"
    ),
    "batches differ": Bad(attend(k=lambda k: k[:1]), cm.ShapeError, "k has batch 1, q has 2", "the same"),
    "head_dims differ": Bad(attend(v=lambda v: v[..., :8]), cm.ShapeError, "v has head_dim 8, q has 16", "the same"),
    "keys and values differ": Bad(attend(v=lambda v: v[:, :, :9]), cm.ShapeError, "2 x 9", "the same"),
    "head_dim 0": Bad(
        attend(q=lambda q: q[..., :0], k=lambda k: k[..., :0], v=lambda v: v[..., :0]),
        cm.ShapeError,
        "head_dim is 0",
        "at least 1",
    ),
    "types differ": Bad(
        attend(k=lambda k: k.half()), cm.DTypeError, "k is torch.float16, q is torch.float32", "one dtype"
    ),
    "integers": Bad(
        attend(q=lambda q: q.int(), k=lambda k: k.int(), v=lambda v: v.int()), cm.DTypeError, "torch.int32", "bfloat16"
    ),
    "devices differ": Bad(attend(k=lambda k: k.to("meta")), cm.DeviceError, "k is on meta, q on cpu", "one device"),
    "no backend": Bad(
        attend(q=lambda q: q.to("meta"), k=lambda k: k.to("meta"), v=lambda v: v.to("meta")),
        cm.DeviceError,
        "q is on meta",
        "cpu and cuda",
    ),
    "sparse": Bad(attend(k=lambda k: k.to_sparse()), cm.ShapeError, "k is a torch.sparse_coo tensor", "dense"),
    "nested": Bad(
        attend(q=lambda q: torch.nested.nested_tensor(list(q), layout=torch.jagged)),
        cm.ShapeError,
        "q is a nested tensor",
        "dense",
    ),
    "huge scale": Bad(attend(scale=10**400), cm.ScaleError, "1329 bits", "finite"),
    "scale too large for float32": Bad(attend(scale=-1e39), cm.ScaleError, "scale is -1e+39", "finite float32"),
    "scale": Bad(attend(scale=float("inf")), cm.ScaleError, "scale is inf", "finite"),
    "string for a mask": Bad(attend(lambda: "causal"), cm.MaskError, "got a str", "a mask"),
    "mask of other batches": Bad(
        attend(lambda: cm.padding([1, 2, 3])), cm.MaskError, "batch 3, q has 2", "expected 1 or 2"
    ),
    "mask for another length": Bad(
        attend(lambda: cm.causal() & cm.document([0, 40, 4096])), cm.MaskError, "4096", "at most 120"
    ),
    "image larger than the sequence": Bad(attend(lambda: cm.clear(64, 64, 8, 20)), cm.MaskError, "4116", "at most 120"),
    "history longer than the sequence": Bad(attend(lambda: cm.hstu(500)), cm.MaskError, "500", "at most 120"),
    "negative length": Bad(lambda: cm.compile(cm.causal()).descriptor(-1), cm.ShapeError, "-1", "0 to"),
    "unknown parameter": Bad(
        lambda: cm.compile(cm.hstu(5)).bind(size=3), cm.MaskError, "'size'", "it has history, contexts"
    ),
    "table of floats": Bad(
        lambda: cm.compile(cm.document([0, 5])).bind(offsets=torch.ones(3)), cm.DTypeError, "torch.float32", "integers"
    ),
    "no device": Bad(lambda: cm.compile(cm.causal()).descriptor(5, device="gpu"), cm.DeviceError, "'gpu'", "cuda"),
    "None as device": Bad(
        lambda: cm.compile(cm.causal()).descriptor(5, device=cast("Any", None)), cm.DeviceError, "None", "cuda"
    ),
    "patches that are none": Bad(
        lambda: cm.compile(cm.causal()).descriptor(5, patches=cast("Any", 1)), cm.DTypeError, "a int", "Patches"
    ),
    "a pipeline that is no text": Bad(
        lambda: cm.compile(cm.causal(), pipeline=cast("Any", 5)), cm.PipelineError, "int", "text"
    ),
    "sparse table": Bad(
        lambda: cm.document(torch.tensor([0, 3, 5]).to_sparse()), cm.MaskError, "sparse_coo", "dense tensor"
    ),
    "an array as side": Bad(
        lambda: cm.padding(3, cast("Any", np.array(["leading", "trailing"]))), cm.MaskError, "array", "'leading'"
    ),
    "an array as convention": Bad(
        lambda: cm.sliding_window(3, cast("Any", np.array([1, 2]))), cm.MaskError, "array", "one of"
    ),
    "a picture of several sizes": Bad(
        lambda: cm.causal().dense(cast("Any", np.array([1, 2])), 5), cm.MaskError, "queries must be an int", "array"
    ),
    "several lengths": Bad(
        lambda: cm.document([0, 3]).check_lengths(5, cast("Any", torch.tensor([4, 5]))), cm.MaskError, "keys", "an int"
    ),
    "the picture of a table on meta": Bad(
        lambda: cm.padding(torch.tensor([3], device="meta")).dense(5, 5), cm.MaskError, "on meta", "values"
    ),
    "unknown device": Bad(lambda: cm.compile(cm.causal()).descriptor(5, device="meta"), cm.DeviceError, "meta", "cuda"),
    "unknown level": Bad(lambda: cm.compile(cm.causal()).ir("sass"), cm.TargetError, "'sass'", "one of mask"),
    "unknown target": Bad(
        lambda: cm.compile(cm.causal()).ir("ptx", "cuda:75"), cm.TargetError, "'cuda:75'", "one of cuda:80"
    ),
    "descriptor of another version": Bad(
        lambda: cm.Descriptor.from_buffer(descriptor_words(version=7)),
        cm.DescriptorError,
        "version is 7",
        f"expected {VERSION}",
    ),
    "list for a descriptor": Bad(
        lambda: cm.Descriptor.from_buffer([1]),  # pyright: ignore
        cm.DescriptorError,
        "a list",
        "int32 tensor",
    ),
    "sparse descriptor": Bad(
        lambda: cm.Descriptor.from_buffer(descriptor_words().to_sparse()), cm.DescriptorError, "sparse_coo", "dense"
    ),
    "descriptor on meta": Bad(
        lambda: cm.Descriptor.from_buffer(descriptor_words().to("meta")), cm.DescriptorError, "meta", "CPU or GPU"
    ),
    "damaged descriptor": Bad(
        lambda: cm.Descriptor.from_buffer(descriptor_words(shared=2)),
        cm.DescriptorError,
        "shared is 2",
        "expected 0 or 1",
    ),
    "descriptor cut off": Bad(
        lambda: cm.Descriptor.from_buffer(descriptor_words(queries=100)), cm.DescriptorError, "got 32", "has 96 words"
    ),
}

CALLS = {
    f"{entrance}: {name}": bad
    for entrance, cases in (("language", LANGUAGE), ("text", TEXT), ("runtime", RUNTIME))
    for name, bad in cases.items()
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    bad = CALLS[name]
    with pytest.raises(cm.CompileMaskError) as raised:
        bad.call()
    assert type(raised.value) is bad.error
    assert bad.value in str(raised.value)
    assert bad.expectation in str(raised.value)


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, place, message = FILES[name]
    path = tmp_path / "mine.mlir"
    path.write_text(text)
    with pytest.raises(cm.IRError) as raised:
        cm.load(path)
    assert (raised.value.file, raised.value.line) == (str(path), int(place.split(":")[0]))
    assert str(raised.value).startswith(f"{path}:{place}")
    assert message in str(raised.value)
    assert cli.main(["lower", str(path), "--to", "interval"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"{path}:{place}")
    assert message in printed


TOOLS: dict[str, tuple[list[str], str, str]] = {
    # arguments, the value that the message names, what it expects
    "unknown mask": (["lower", "casual"], "'casual'", "there are full, causal"),
    "unknown level": (["lower", "hstu", "--to", "sass"], "'sass'", "choose from"),
    "unknown target": (["lower", "hstu", "--to", "ptx", "--target", "cuda:1"], "'cuda:1'", "expected one of cuda:80"),
    "ptx for hip": (["lower", "hstu", "--to", "ptx", "--target", "hip:gfx942"], "'hip:gfx942'", "a cuda target"),
    "unknown parameter": (["lower", "hstu", "--param", "size=3"], "'size'", "it takes history, contexts"),
    "unknown parameter of a file": (
        ["lower", "hstu.mlir", "--param", "zz=3"],
        "'zz'",
        "@hstu takes history: i32, contexts: i32",
    ),
    "parameter without value": (["lower", "hstu", "--param", "history"], "'history'", "NAME=INTEGER"),
    "descending offsets": (["lower", "document", "--param", "offsets=0,9,3"], "entry 2 is 3", "must ascend"),
    "no length": (["draw", "hstu", "--seq", "0"], "'0'", "a positive integer"),
    "history longer than the picture": (["draw", "hstu", "--param", "history=2000"], "history is 2000", "at most 1024"),
    "offsets behind the picture": (
        ["draw", "shared_prompt", "--param", "offsets=0,10,20000"],
        "20000",
        "at most 1024",
    ),
    "picture too large": (["draw", "causal", "--seq", "100000"], "queries is 100000", "1 to 65536"),
    "unknown picture format": (["draw", "causal", "-o", "a.xyz"], "'xyz'", "png"),
}


@pytest.mark.parametrize("name", TOOLS)
def test_tools(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, value, expectation = TOOLS[name]
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert value in captured.err
    assert expectation in captured.err


def test_the_driver_of_passes_says_where(tmp_path: Path) -> None:
    path = tmp_path / "mine.mlir"
    path.write_text(FILES["no bound"][0])
    with pytest.raises(cm.IRError, match=r"mine\.mlir:3:4: "):
        opt.Driver([str(path), "-p", "mask-to-interval"]).run()


def test_good_input_would_have_run() -> None:
    with pytest.raises(AssertionError, match="must not reach"):
        attend()()


def test_there_are_many_cases() -> None:
    assert min(map(len, (LANGUAGE, TEXT, FILES, RUNTIME, TOOLS))) >= 5
    assert len(CALLS) + len(FILES) + len(TOOLS) >= 50
