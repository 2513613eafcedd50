"""Descriptors that are built on the CPU have the digests in the file, as those of a GPU do (tests/gpu)."""

from __future__ import annotations

import pytest
from descriptor_digests import MADE, check, in_numpy, kept
from test_descriptor_build_cpu_jit import compiled_build

import compilemask as cm
from compilemask.runtime.cpu import upstream_mlir
from compilemask.runtime.descriptor import Descriptor


def test_the_file_holds_each_mask() -> None:
    assert list(kept()) == list(MADE)


def test_a_wrong_bit_is_noticed() -> None:
    def wrong(compiled: cm.Compiled, queries: int, keys: int) -> Descriptor:
        descriptor = in_numpy(compiled, queries, keys)
        if (queries, keys) == (1000, 300):
            descriptor.patterns[0, 5, 2] ^= 1 << 7
        return descriptor

    with pytest.raises(AssertionError, match=r"descriptor_digests.json for 300 x 1000, transposed\. "):
        check("shared_prompt", wrong)


@pytest.mark.parametrize("name", MADE)
def test_built_by_numpy(name: str) -> None:
    check(name, in_numpy)


@pytest.mark.skipif(upstream_mlir.find() is None, reason="upstream MLIR's bindings are not installed")
@pytest.mark.parametrize("name", MADE)
def test_built_by_functions_that_mlir_compiled(name: str) -> None:
    check(name, compiled_build)
