"""The descriptor kernels of every mask of the catalogue, run on numpy: word by word what the CPU builds."""

from __future__ import annotations

import pytest
from catalogue import CATALOGUE
from test_descriptor_kernels import check_equal

from compilemask.dialects.triton.printing import print_generic
from compilemask.lowering.tiling_to_tt import descriptor as descriptor_kernels
from compilemask.runtime import compile
from compilemask.runtime.gpu.compile_kernel import compile_for
from compilemask.runtime.program import OPTIONS

LARGEST = ["draft_tree", "hstu_arbitrary", "natten2d, dilated", "natten3d", "sliding_tile3d", "topk_blocks"]
"""Those with the most arithmetic in their kernels."""


@pytest.mark.parametrize(("queries", "keys"), [(137, 137), (200, 333)])
@pytest.mark.parametrize("name", CATALOGUE)
def test_equal_to_the_cpu_build(name: str, queries: int, keys: int) -> None:
    check_equal(CATALOGUE[name].make(queries, keys), queries, keys)


@pytest.mark.parametrize("name", LARGEST)
def test_kernels_compile(name: str) -> None:
    program = compile(CATALOGUE[name].make(1000, 1000)).program
    for kernel, module in descriptor_kernels.emit(program.tiling_module).items():
        assert compile_for(print_generic(module), "cuda:90", OPTIONS[kernel])["cubin"]
