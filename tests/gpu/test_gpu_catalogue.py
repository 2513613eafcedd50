"""Every mask of the catalogue on the GPU: its descriptor is the CPU's, its attention that of the dense mask."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from catalogue import CATALOGUE, SIZES, full_shape
from compare import TOLERANCE, assert_close, dense_attention, random_inputs
from descriptor_checks import check_against_dense

from compilemask.runtime import attention, compile

LONGER = [*SIZES, (1000, 1000), (2048, 2048), (640, 3000)]


@pytest.mark.parametrize("name", CATALOGUE)
def test_descriptor_is_that_of_the_cpu(name: str) -> None:
    for queries, keys in LONGER:
        compiled = compile(CATALOGUE[name].make(queries, keys))
        on_gpu, on_cpu = (compiled.descriptor(queries, keys, device=device) for device in ("cuda", "cpu"))
        assert on_gpu.layout == on_cpu.layout
        different = (on_gpu.check().defined() != on_cpu.defined()).nonzero()
        assert not len(different), f"{queries} x {keys}: {len(different)} words differ, first {int(different[0])}"


@pytest.mark.parametrize("name", CATALOGUE)
def test_descriptor_is_that_of_the_predicate(name: str) -> None:
    for queries, keys in SIZES:
        visible = torch.from_numpy(np.array(full_shape(CATALOGUE[name].visible(queries, keys))))
        compiled = compile(CATALOGUE[name].make(queries, keys))
        descriptor = compiled.descriptor(queries, keys, device="cuda")
        check_against_dense(descriptor, visible.expand(*descriptor.layout.batch_shape, queries, keys))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CATALOGUE)
def test_attention_is_dense_attention(name: str, dtype: torch.dtype) -> None:
    for queries, keys in [*SIZES, (1000, 1000)]:
        mask = CATALOGUE[name].make(queries, keys)
        batch, heads = mask.batch_shape
        q, k, v = random_inputs(batch, 2 * heads if heads == 1 else heads, heads, queries, keys, 64, dtype, "cuda")
        blocks = [torch.full_like(q, torch.nan) for _ in range(3)]  # what the outputs will be put into
        del blocks
        out, lse = attention(q, k, v, mask, return_lse=True)
        visible = torch.from_numpy(np.array(full_shape(CATALOGUE[name].visible(queries, keys))))
        expected, expected_lse = dense_attention(q, k, v, visible)
        assert_close(out, expected, TOLERANCE[dtype], f"out of {queries} x {keys}")
        assert_close(lse, expected_lse, 1e-5 if dtype == torch.float32 else 1e-4, f"lse of {queries} x {keys}")


@pytest.mark.parametrize("name", CATALOGUE)
def test_parameters_in_device_memory(name: str) -> None:
    """Tables on the device give what the same tables give in host memory."""
    queries, keys = 200, 333
    mask = CATALOGUE[name].make(queries, keys)
    compiled = compile(mask)
    tables = {p.name: p.value.cuda() for p in mask.parameters if isinstance(p.value, torch.Tensor)}
    if not tables:
        pytest.skip("a mask without tables")
    expected = compiled.descriptor(queries, keys, device="cpu")
    found = compiled.bind(**tables).descriptor(queries, keys, device="cuda").check()
    assert torch.equal(found.defined().cpu(), expected.defined())
