"""The kernels that build descriptors, executed in numpy in random order: equal to the CPU build word for word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sample_masks import MASKS

from compilemask.dialects.semantics.triton import run_kernel
from compilemask.errors import DescriptorError
from compilemask.lowering.descriptor_layout import Layout
from compilemask.lowering.tiling_to_tt import descriptor as descriptor_kernels
from compilemask.runtime import Compiled, Descriptor, compile
from compilemask.runtime.parameters import on_device
from compilemask.runtime.program import build_grids, kernel_arguments

GARBAGE = 0x5A5A5A5A


def run_build(compiled: Compiled, layout: Layout, seed: int | None = None) -> Descriptor:
    """What the kernels write over memory full of garbage."""
    buffer = np.full(layout.words, GARBAGE, dtype=np.int32)
    tensor = torch.from_numpy(buffer)
    parameters = [on_device(parameter, torch.device("cpu")) for parameter in compiled.parameters]
    arguments: list[Any] = kernel_arguments(tensor.data_ptr(), layout, parameters)
    memory: dict[int, Any] = {tensor.data_ptr(): buffer}
    for parameter in parameters:
        if isinstance(parameter.value, torch.Tensor):
            memory[parameter.value.data_ptr()] = parameter.value.numpy().reshape(-1)
    arguments = [memory.get(value, value) for value in arguments]
    kernels = descriptor_kernels.emit(compiled.program.tiling_module)
    for name, grid in build_grids(layout).items():
        run_kernel(kernels[name], grid, arguments, seed=seed)
    return Descriptor(tensor, layout)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (137, 300), (300, 200), (256, 256)])
@pytest.mark.parametrize("name", MASKS)
def test_equal_to_the_cpu_build(name: str, queries: int, keys: int) -> None:
    compiled = compile(MASKS[name](queries, keys))
    expected = compiled.descriptor(queries, keys)
    built = run_build(compiled, expected.layout, seed=queries).check()
    different = (built.defined() != expected.defined()).nonzero()
    assert not len(different), f"{len(different)} words differ, first {int(different[0])} of {built.layout}"


@pytest.mark.parametrize(("pairs", "patterns"), [(5, None), (None, 3), (9, 5)])
@pytest.mark.parametrize("name", ["causal", "hstu", "documents"])
def test_too_little_room_is_the_same_fault(name: str, pairs: int | None, patterns: int | None) -> None:
    compiled = compile(MASKS[name](1000, 1000))
    layout = compiled.program.layout(compiled.parameters, 1000, 1000)
    if layout.shared and patterns is not None:
        pytest.skip("shared patterns have a fixed number")
    layout = replace(
        layout,
        pair_capacity=pairs or layout.pair_capacity,
        pattern_capacity=patterns or layout.pattern_capacity,
    )
    built, expected = run_build(compiled, layout), compiled.program.build_on_cpu(layout, compiled.parameters)
    assert built == expected
    assert (built.tiles[..., 1] == -1).any()
    with pytest.raises(DescriptorError, match="reserved"):
        built.check()
