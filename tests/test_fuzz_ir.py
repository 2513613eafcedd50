"""10,000 mutated modules: parser and passes refuse them with our errors, or take them; a child process runs Triton."""

from __future__ import annotations

import pytest
from fuzz_ir import fuzz, try_triton

BROKEN = """
"builtin.module"() ({
  "tt.func"() <{function_type = (!tt.ptr<f32>) -> (), sym_name = "k", sym_visibility = "public"}> ({
  ^bb0(%p: !tt.ptr<f32>):
    %r = "tt.make_range"() <{end = 5 : i32, start = 9 : i32}> : () -> tensor<64xi32>
    "tt.return"() : () -> ()
  }) : () -> ()
}) : () -> ()
"""


@pytest.mark.parametrize("seed", range(10))
def test_mutated_modules_never_give_a_traceback(seed: int) -> None:
    report = fuzz(seed, modules=1000)
    assert not report.findings, "\n".join(report.findings[:3])
    assert report.outcomes["placed"] > 200, "most faults have a place"
    assert report.outcomes["lowered"] > 20, "mutations leave some modules valid"


def test_text_that_triton_refuses_ends_no_process() -> None:
    assert try_triton(BROKEN) == ("Triton refused", None)
    assert try_triton("module {")[0] == "Triton refused"
