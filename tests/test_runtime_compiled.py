"""Compiled masks: programs are shared, values are bound, nothing is left over."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, random_inputs
from descriptor_checks import check_against_dense

import compilemask
from compilemask.errors import DeviceError, DTypeError, MaskError, ShapeError, TargetError
from compilemask.language.text import parse_module
from compilemask.runtime import attention, compile
from compilemask.runtime.compiled import Compiled, compiled_of
from compilemask.runtime.gpu.compile_kernel import Source
from compilemask.runtime.parameters import Parameter, on_device
from compilemask.runtime.program import Program, load_kernels


def pickled(compiled: Compiled) -> Compiled:
    return pickle.loads(pickle.dumps(compiled))


def test_masks_of_one_structure_share_a_program() -> None:
    one, two = compile(compilemask.hstu(100, 10)), compile(compilemask.hstu(70, 20))
    assert one.program is two.program
    assert one.program is not compile(compilemask.causal()).program
    assert compile(one) is one
    for compiled, mask in ((one, compilemask.hstu(100, 10)), (two, compilemask.hstu(70, 20))):
        check_against_dense(compiled.descriptor(150), mask.dense(150, 150))


def test_kernels_of_a_mask_and_its_transpose_are_compiled_together(monkeypatch: pytest.MonkeyPatch) -> None:
    mask, device = compilemask.causal() & compilemask.window(11), torch.device("cuda", 0)
    own = Program(mask.key, mask.module())
    asked: list[list[str]] = []

    def kernels_for(sources: Sequence[Source], _: torch.device) -> list[str]:
        asked.append([source.identity for source in sources])
        return asked[-1]

    monkeypatch.setattr("compilemask.runtime.program.kernels_for", kernels_for)
    for _ in range(2):
        load_kernels([own, own.transposed], device)
    (identities,) = asked
    assert [identity.split()[0] for identity in identities] == ["fill"] * 2 + ["count"] * 2 + ["patterns"] * 2
    for program in (own, own.transposed):
        names = ("count", "fill", "patterns")
        assert list(program.loaded(device).items()) == [(name, f"{name} None {program.key}") for name in names]


@pytest.mark.parametrize("made_by", [pickled, copy.copy, copy.deepcopy])
def test_copies(made_by: Callable[[Compiled], Compiled]) -> None:
    """Before and after use, and of what was made from a mask: another object by another handle."""
    inputs = random_inputs(1, 1, 1, 60, 60, 16, torch.float32)
    mask = compilemask.document([0, 20, 60]) & compilemask.where(lambda q, kv: kv % 2 == q % 2)
    original = compile(mask).bind()
    expected = attention(*inputs, mask=mask)
    for _ in range(2):
        for compiled in (original, original.transposed):
            made = made_by(compiled)
            assert made.handle != compiled.handle
            assert compiled_of(made.handle) is made
            assert made.program is compiled.program
            assert made.batch_shape == compiled.batch_shape
            assert torch.equal(made.descriptor(60).buffer, compiled.descriptor(60).buffer)
        assert torch.equal(attention(*inputs, mask=made_by(original)), expected)
    for program in (original.program.in_tiles_of(64), original.program.in_tiles_of(192).transposed):
        assert pickle.loads(pickle.dumps(program)) is program


def test_a_copy_in_another_process(tmp_path: Path) -> None:
    """There, handles of this process name other masks."""
    (tmp_path / "mask").write_bytes(pickle.dumps(compile(compilemask.causal()).bind()))
    text = """
        import pickle, sys, compilemask, torch
        others = [compilemask.compile(compilemask.window(n)).bind() for n in range(1, 50)]
        with open(sys.argv[1], "rb") as file:
            mask = pickle.load(file)
        attend = torch.compile(lambda x: compilemask.attention(x, x, x, mask=mask), fullgraph=True, backend="eager")
        x = torch.randn(1, 1, 40, 16)
        assert torch.equal(attend(x), compilemask.attention(x, x, x, mask=compilemask.causal()))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text), tmp_path / "mask"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_bind() -> None:
    compiled = compile(compilemask.document([0, 50, 200]))
    offsets = torch.tensor([[0, 10, 200], [0, 150, 190]])
    for bound in (compiled.bind(offsets=offsets), compiled.bind(compilemask.document(offsets))):
        assert bound.batch_shape == (2, 1)
        check_against_dense(bound.descriptor(200), compilemask.document(offsets).dense(200, 200))
    check_against_dense(compiled.descriptor(200), compilemask.document([0, 50, 200]).dense(200, 200))


def test_bad_values_are_refused() -> None:
    compiled = compile(compilemask.hstu(100, 10))
    with pytest.raises(MaskError, match="no parameter 'size'"):
        compiled.bind(size=3)
    with pytest.raises(DTypeError, match="history"):
        compiled.bind(history=2.5)
    with pytest.raises(MaskError, match="structure"):
        compiled.bind(compilemask.causal())
    with pytest.raises(MaskError, match="int"):
        compile(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DTypeError, match="queries"):
        compiled.descriptor(1.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ShapeError, match="keys is -1"):
        compiled.descriptor(5, -1)
    with pytest.raises(DeviceError, match="meta"):
        compiled.descriptor(100, device="meta")
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError, match="CUDA"):
            compiled.descriptor(100, device="cuda")


def test_masks_per_batch_fit_their_batch_only() -> None:
    mask = compilemask.padding(torch.tensor([3, 5]))
    q, k, v = random_inputs(3, 2, 2, 8, 8, 16)
    with pytest.raises(MaskError, match="batch 2, q has 3"):
        attention(q, k, v, mask)


@pytest.mark.parametrize("level", ["mask", "interval", "tiling", "scf", "ttir"])
def test_ir(level: str) -> None:
    text = compile(compilemask.hstu(100, 10)).ir(level)
    word = {"scf": "func.func @descriptor", "ttir": "tt.func"}.get(level, f"{level}.func")
    assert word in text
    assert text == compile(compilemask.hstu(30, 20)).ir(level)


def test_unknown_levels_and_targets() -> None:
    compiled = compile(compilemask.causal())
    with pytest.raises(TargetError, match="expected one of mask"):
        compiled.ir("sass")
    with pytest.raises(TargetError, match="target"):
        compiled.ir("ptx")
    with pytest.raises(TargetError, match="ptx is code for a cuda target, got 'hip:gfx942'"):
        compiled.ir("ptx", target="hip:gfx942")
    with pytest.raises(ShapeError, match="head_dim is 257, expected an int from 1 to 256"):
        compiled.ir("ttir", head_dim=257)
    with pytest.raises(DTypeError, match=r"dtype is torch\.float64, expected one of torch\.float16"):
        compiled.ir("ttir", dtype=torch.float64)


@pytest.mark.parametrize("level", ["mask", "ttir", "ttgir", "ptx"])
def test_unknown_targets_are_refused_before_anything_is_built(level: str) -> None:
    compiled = compile(compilemask.causal().named(f"unknown_target_of_{level}"))
    before = set(vars(compiled.program))
    with pytest.raises(TargetError, match="unknown target 'cuda:1', expected one of cuda:80"):
        compiled.ir(level, target="cuda:1")
    assert set(vars(compiled.program)) == before, "something was lowered"


KERNELS = ("count", "fill", "patterns", "attention")


@pytest.mark.parametrize("level", ["ttir", "ttgir", "llir", "ptx"])
def test_kernels_as_text(level: str) -> None:
    pytest.importorskip("triton")
    compiled = compile(compilemask.causal())
    text = compiled.ir(level, "cuda:90")
    assert re.findall(r"^// (\w+)$", text, re.MULTILINE) == [*KERNELS]
    assert tempfile.gettempdir() not in text
    for place in (" loc(", "#loc", "\t.loc", "\t.file", "!dbg", "!DI", "debug_"):
        assert place not in text
    word = {"llir": "define ptx_kernel", "ptx": ".visible .entry"}.get(level, "tt.func public")
    assert text.count(word) == len(KERNELS)
    assert text == compiled.ir(level, "cuda:90")
    if level == "ptx":
        assert text.count(".target sm_90a") == len(KERNELS)


def test_triton_ir_for_people_can_be_read_again() -> None:
    compiled = compile(compilemask.causal())
    texts = dict(re.findall(r"^// (\w+)\n(.*?)(?=^// |\Z)", compiled.ir("ttir"), re.MULTILINE | re.DOTALL))
    assert list(texts) == [*KERNELS]
    for name, given in compiled.program.kernels.items():
        assert parse_module(texts[name]).is_structurally_equivalent(parse_module(given))
    assert parse_module(texts["attention"])


def test_attention_as_text_for_a_head_dim_and_type() -> None:
    compiled = compile(compilemask.causal())
    assert "!tt.ptr<bf16>" in compiled.ir("ttir")
    other = compiled.ir("ttir", head_dim=40, dtype=torch.float16)
    assert "!tt.ptr<f16>" in other
    assert "64xf16>" in other
    assert compiled.ir("ttir", "hip:gfx942") != compiled.ir("ttir", "cuda:90")


def test_tables_changed_in_place_are_seen() -> None:
    offsets = torch.tensor([0, 50, 200], dtype=torch.int32)
    compiled = compile(compilemask.document(offsets))
    before = compiled.descriptor(200)
    offsets[1] = 120
    check_against_dense(compiled.descriptor(200), compilemask.document([0, 120, 200]).dense(200, 200))
    check_against_dense(before, compilemask.document([0, 50, 200]).dense(200, 200))


def test_a_table_on_the_device_is_used_as_it_is() -> None:
    table = torch.arange(4, dtype=torch.int32)
    assert on_device(Parameter("t", table), torch.device("cpu")).value is table
    wide = on_device(Parameter("t", table.long()), torch.device("cpu")).value
    assert isinstance(wide, torch.Tensor)
    assert wide.dtype == torch.int32
    with pytest.raises(MaskError, match="32-bit"):
        on_device(Parameter("t", torch.tensor([2**40])), torch.device("cpu"))


def test_kernel_arguments_of_tables() -> None:
    table = torch.zeros(2, 3, 5, dtype=torch.int32)
    assert Parameter("t", table).kernel_arguments()[1:] == [5, 15, 5]
    assert Parameter("t", table[:, :1].contiguous()).kernel_arguments()[1:] == [5, 5, 0]
    assert Parameter("t", table[0, 0]).kernel_arguments()[1:] == [5, 0, 0]
    assert Parameter("n", 7).kernel_arguments() == [7]


@pytest.mark.parametrize("length", [1, 128, 1000])
@pytest.mark.parametrize("heads", [(8, 8), (9, 3), (12, 2)])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_attention_of_a_mask(length: int, heads: tuple[int, int], head_dim: int) -> None:
    mask = compilemask.hstu(length - length // 8, length // 10)
    q, k, v = random_inputs(1, *heads, length, length, head_dim)
    expected, expected_lse = dense_attention(q, k, v, mask.dense(length, length))
    out, lse = compile(mask).attention(q, k, v, return_lse=True)
    assert_close(out, expected, TOLERANCE[torch.float32])
    assert_close(lse, expected_lse, 1e-5)


@pytest.mark.parametrize("keys", [128, 200])
@pytest.mark.parametrize(
    "mask", [~compilemask.full(), compilemask.causal() & ~compilemask.causal(), compilemask.full() - compilemask.full()]
)
def test_a_mask_of_nothing(mask: compilemask.Mask, keys: int) -> None:
    q, k, v = random_inputs(1, 2, 1, 150, keys, 16)
    out, lse = attention(q, k, v, mask, return_lse=True)
    assert not out.any()
    assert (lse == -torch.inf).all()
    check_against_dense(compile(mask).descriptor(150, keys), mask.dense(150, keys))
