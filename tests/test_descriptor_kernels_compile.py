"""The kernels that build descriptors compile for every kind of GPU, with registers to spare."""

from __future__ import annotations

import pytest
from sample_masks import MASKS

from compilemask.dialects.triton.printing import print_generic
from compilemask.lowering.tiling_to_tt import descriptor as descriptor_kernels
from compilemask.runtime import compile
from compilemask.runtime.gpu.compile_kernel import compile_for
from compilemask.runtime.program import OPTIONS

MACHINE_CODE = {"cuda": "cubin", "hip": "hsaco"}


def check_compiles(name: str, target: str) -> None:
    """Assert that all kernels of a mask compile for a target."""
    program = compile(MASKS[name](1000, 1000)).program
    for kernel, module in descriptor_kernels.emit(program.tiling_module).items():
        forms = compile_for(print_generic(module), target, OPTIONS[kernel])
        assert forms[MACHINE_CODE[target.split(":")[0]]]


@pytest.mark.parametrize("name", ["causal", "hstu", "shared prompt", "clear", "labels"])
def test_hopper(name: str) -> None:
    check_compiles(name, "cuda:90")


@pytest.mark.parametrize("target", ["cuda:80", "cuda:100", "hip:gfx942"])
def test_other_targets(target: str) -> None:
    check_compiles("hstu", target)


def test_patterns_are_stored_sixteen_bytes_at_a_time() -> None:
    kernels = descriptor_kernels.emit(compile(MASKS["hstu"](1000, 1000)).program.tiling_module)
    ptx = compile_for(print_generic(kernels["patterns"]), "cuda:90", OPTIONS["patterns"])["ptx"]
    assert "st.global.v4" in ptx


def test_kernels_depend_on_structure_alone() -> None:
    texts = [
        {name: print_generic(kernel) for name, kernel in descriptor_kernels.emit(program.tiling_module).items()}
        for program in (compile(MASKS["hstu"](n, n)).program for n in (100, 5000))
    ]
    assert texts[0] == texts[1]
