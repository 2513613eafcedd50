"""Text to kernels, without a GPU."""

from __future__ import annotations

import pytest

from compilemask.errors import TargetError
from compilemask.runtime import compile_for, compile_in_child
from compilemask.runtime.gpu.compile_kernel import Options, Passes

pytest.importorskip("triton")

STORE = """
module {
  tt.func public @store_seven(%where: !tt.ptr<i32>) {
    %seven = arith.constant 7 : i32
    tt.store %where, %seven : !tt.ptr<i32>
    tt.return
  }
}
"""


@pytest.mark.parametrize(
    ("target", "form", "text"), [("cuda:80", "ptx", ".target sm_80"), ("cuda:90", "ptx", ".target sm_90a")]
)
def test_compiles_without_a_gpu(target: str, form: str, text: str) -> None:
    forms = compile_for(STORE, target, Options(num_warps=1, num_stages=1))
    assert text in forms[form]
    assert "store_seven" in forms[form]
    assert "ttg.num-warps" in forms["ttgir"]


def test_text_that_is_no_ir_is_an_error() -> None:
    with pytest.raises(TargetError):
        compile_in_child("module { tt.func public @broken( }", "cuda:90")


def test_unknown_targets_are_refused_before_anything_runs() -> None:
    with pytest.raises(TargetError, match="cuda:90"):
        compile_in_child(STORE, "cuda:1")


@pytest.mark.parametrize("passes", ["few", "few and coalesce"])
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "hip:gfx942"])
def test_few_passes_give_all_forms(target: str, passes: Passes) -> None:
    forms = compile_for(STORE, target, Options(num_warps=1, passes=passes))
    assert {"ttir", "ttgir", "llir"} < set(forms)
    assert ".ttir" not in forms.get("ptx", ""), "code names a temporary file"


def test_text_that_few_passes_cannot_read_is_an_error() -> None:
    with pytest.raises(TargetError):
        compile_in_child("module { tt.func public @broken( }", "cuda:90", Options(passes="few"))
