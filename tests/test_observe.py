"""`compilemask.debug`: what the compiler does is seen from Python, although results are cached otherwise."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
import torch
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, f16
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException

import compilemask as cm
from compilemask.dialects.mask import FuncOp
from compilemask.dialects.registry import make_context
from compilemask.lowering.tiling_to_ttg.attention import HopperConfig
from compilemask.lowering.tiling_to_ttg.attention_backward import HopperBackwardConfig
from compilemask.passes.instrument import current_observers, observers_of_launches, observing, run_passes
from compilemask.passes.observers import ReadBack, digest
from compilemask.runtime.calls import direct_gradient, gradient, operator
from compilemask.runtime.calls.gradient_inputs import GradientInputs, Gradients
from compilemask.runtime.cpu.attention_backward_cpu import attention_backward_cpu
from compilemask.runtime.gpu.compile_kernel import compile_for, compile_in_child
from compilemask.runtime.gpu.hopper import hopper_binary, hopper_text
from compilemask.runtime.gpu.hopper_backward import backward_binary, backward_text

HOPPER = HopperConfig.choose(64, f16)
HOPPER_BACKWARD = HopperBackwardConfig.choose(64, f16)


def test_debug_sees_what_was_compiled_before() -> None:
    expected = cm.compile(cm.causal()).ir("tiling")
    stream = io.StringIO()
    with cm.debug(print_ir_after="interval-normalize", timing=True, stream=stream):
        assert cm.compile(cm.causal()).ir("tiling") == expected
    assert stream.getvalue().startswith("// ----- IR after interval-normalize -----\n")
    assert "IR after cse" not in stream.getvalue()
    assert "total" in stream.getvalue()
    assert not current_observers()


def test_unknown_passes_are_refused() -> None:
    with pytest.raises(cm.PipelineError, match="no pass 'normalise'"), cm.debug(print_ir_after=["cse", "normalise"]):
        pass


def test_dump_of_a_kernel_holds_all_levels(tmp_path: Path) -> None:
    with cm.debug(dump=tmp_path):
        text = cm.compile(cm.causal()).program.kernels["count"]
        compile_for(text, "cuda:90")
    levels = {path.suffix for path in (tmp_path / "kernels").iterdir()}
    assert {".mlir", ".ttir", ".ttgir", ".llir", ".ptx", ".cubin"} <= levels
    (given,) = (tmp_path / "kernels").glob("causal_count-cuda90-*.mlir")
    assert given.read_text() == text


@pytest.mark.parametrize("name", ["attention", "attention_backward_keys"])
def test_dump_of_a_hopper_kernel_that_was_compiled_before(name: str, tmp_path: Path) -> None:
    def compiled() -> str:
        if name == "attention":
            hopper_binary(64, torch.float16, HOPPER)
            return hopper_text(64, torch.float16, HOPPER)
        backward_binary(64, torch.float16, HOPPER_BACKWARD)
        return backward_text(64, torch.float16, HOPPER_BACKWARD)

    text = compiled()
    with cm.debug(dump=tmp_path):
        assert compiled() == text
    written = {path.suffix: path for path in (tmp_path / "kernels").iterdir()}
    assert {".mlir", ".ttgir", ".llir", ".ptx", ".cubin"} <= set(written)
    assert {path.stem for path in written.values()} == {f"{name}-cuda90-{digest(text)}"}
    assert written[".mlir"].read_text() == text


@pytest.mark.parametrize("below", ["file", "file/folder"])
def test_a_folder_that_cannot_be_written(below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("COMPILEMASK_DUMP", str(tmp_path / below))
    with pytest.raises(cm.PipelineError, match="nothing can be dumped to"):
        cm.compile(cm.window(31) & cm.window(17)).ir("tiling")


def test_children_dump_into_the_folder_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPILEMASK_DUMP", str(tmp_path))
    compile_in_child(cm.compile(cm.causal()).program.kernels["fill"], "cuda:80")
    assert list((tmp_path / "kernels").glob("causal_fill-cuda80-*.ptx"))


def test_other_threads_are_not_observed() -> None:
    seen: list[int] = []
    with observing(ReadBack(make_context())):
        thread = threading.Thread(target=lambda: seen.append(len(current_observers())))
        thread.start()
        thread.join()
        assert len(current_observers()) == 1
    assert seen == [0]


@pytest.mark.parametrize("way", [gradient, direct_gradient])
@pytest.mark.parametrize("is_over", [False, True])
def test_gradients_are_observed_in_threads_of_autograd(
    is_over: bool, way: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def note(inputs: GradientInputs) -> Gradients:
        seen.append(len(observers_of_launches()))
        return attention_backward_cpu(inputs)

    monkeypatch.setattr(way, "attention_backward_cpu", note)
    if way is gradient:
        monkeypatch.setattr(operator, "direct_call", lambda *_: None)
    q = torch.randn(1, 1, 5, 4, requires_grad=True)
    with ThreadPoolExecutor(1) as pool:
        with cm.debug(launches=True):
            out = cm.attention(q, q, q, cm.causal())
            if not is_over:
                pool.submit(out.sum().backward).result()
        if is_over:
            pool.submit(out.sum().backward).result()
    assert seen == [0 if is_over else 1]
    assert q.grad is not None


class RenamePass(ModulePass):
    """Gives functions a name that does not read back."""

    name = "rename"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for func in op.ops:
            if isinstance(func, FuncOp):
                func.attributes["sym_name"] = StringAttr("twice")


def test_ir_that_does_not_read_back_is_found() -> None:
    module = cm.causal().module()
    with observing(ReadBack(make_context())), pytest.raises(VerifyException, match="after rename"):
        run_passes(module, [RenamePass()], make_context())


def test_a_mask_compiles_with_a_pipeline_of_ones_own() -> None:
    usual = cm.compile(cm.hstu(300, 20))
    text = "mask-to-interval,interval-normalize{max-arity=1},interval-to-tiling"
    other = cm.compile(cm.hstu(300, 20), pipeline=text)
    assert other.program is not usual.program
    assert other.program is cm.compile(cm.hstu(7, 3), pipeline=text).program
    assert "interval.between" in other.ir("interval")
    assert "tiling.func" not in other.ir("interval")
    assert "interval.between" not in usual.ir("interval")
    assert other.descriptor(400).check().tiles_of(0, 0)[0].partial
    with pytest.raises(cm.PipelineError, match="no pass 'normalise'"):
        cm.compile(cm.causal(), pipeline="normalise")
