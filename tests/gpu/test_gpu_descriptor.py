"""Descriptors built on the GPU: equal to the CPU's word for word, in little memory, in CUDA graphs."""

from __future__ import annotations

import pytest
import torch
from descriptor_checks import check_against_dense
from descriptor_digests import MADE, check
from sample_masks import MASKS, random_offsets
from test_descriptor_build_cpu_jit import compiled_build

import compilemask
from compilemask.language.mask import Mask
from compilemask.runtime import compile, compiled_kernels
from compilemask.runtime.cpu import upstream_mlir

LENGTHS = [(1, 1), (17, 17), (128, 128), (137, 300), (300, 200), (1000, 1000), (4096, 4096), (640, 5000)]


@pytest.mark.parametrize("rows", [64, 128, 192])
@pytest.mark.parametrize("name", MASKS)
def test_equal_to_the_cpu_build(name: str, rows: int) -> None:
    for queries, keys in LENGTHS:
        compiled = compile(MASKS[name](queries, keys))
        on_gpu, on_cpu = (compiled.descriptor(queries, keys, device, rows=rows) for device in ("cuda", "cpu"))
        assert on_gpu.layout == on_cpu.layout
        different = (on_gpu.check().defined() != on_cpu.defined()).nonzero()
        assert not len(different), f"{queries} x {keys}: {len(different)} words differ, first {int(different[0])}"


@pytest.mark.parametrize("rows", [64, 128, 192])
@pytest.mark.parametrize("name", MASKS)
def test_equal_to_brute_force(name: str, rows: int) -> None:
    mask = MASKS[name](1000, 900)
    check_against_dense(compile(mask).descriptor(1000, 900, "cuda", rows=rows), mask.dense(1000, 900))


@pytest.mark.parametrize("name", MASKS)
def test_two_builds_are_equal(name: str) -> None:
    compiled = compile(MASKS[name](5000, 5000))
    one, two = (compiled.program.build(compiled.parameters, 5000, 5000, torch.device("cuda", 0)) for _ in range(2))
    assert one == two


def test_new_lengths_and_values_compile_nothing() -> None:
    compile(MASKS["hstu"](1000, 1000)).descriptor(1000, device="cuda")
    compile(MASKS["shared prompt"](1000, 1000)).descriptor(1000, device="cuda")
    before = compiled_kernels()
    for length in (1, 127, 1024, 30000):
        compile(MASKS["hstu"](length, length)).descriptor(length, device="cuda").check()
        compile(MASKS["shared prompt"](length, length)).descriptor(length, 2 * length, device="cuda").check()
    assert compiled_kernels() == before


@pytest.mark.parametrize(("name", "limit"), [("causal", 2), ("hstu", 16), ("shared prompt", 16)])
def test_memory_of_a_long_build(name: str, limit: int) -> None:
    length = 131072
    compiled = compile(MASKS[name](length, length))
    compile(MASKS[name](1000, 1000)).descriptor(1000, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    descriptor = compiled.descriptor(length, device="cuda")
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before < limit * 2**20
    descriptor.check()


def test_lengths_change_inside_a_graph() -> None:
    length = 1500
    offsets = random_offsets(length, 6).cuda()
    mask: Mask = compilemask.causal() & compilemask.document(offsets)
    compiled = compile(mask)
    compiled.descriptor(length, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        descriptor = compiled.descriptor(length, device="cuda")
    for seed in (10, 20, 30):
        new = torch.tensor([0, 4 * seed, 4 * seed, 300, 1000 + seed, 1100, length], dtype=torch.int32)
        offsets.copy_(new)
        graph.replay()
        expected = compilemask.causal() & compilemask.document(new)
        check_against_dense(descriptor, expected.dense(length, length))


def test_a_build_does_not_wait() -> None:
    compiled = compile(MASKS["documents"](3000, 3000)).bind(offsets=random_offsets(3000, 6).cuda())
    compiled.descriptor(3000, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        compiled.descriptor(3000, device="cuda")
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", MASKS)
def test_transpose_is_equal_to_the_cpu_build(name: str) -> None:
    for queries, keys in LENGTHS:
        compiled = compile(MASKS[name](queries, keys)).transposed
        on_gpu, on_cpu = (compiled.descriptor(keys, queries, device) for device in ("cuda", "cpu"))
        assert on_gpu.check() == on_cpu


@pytest.mark.skipif(upstream_mlir.find() is None, reason="upstream MLIR's bindings are not installed")
@pytest.mark.parametrize("name", MASKS)
def test_equal_to_the_build_that_mlir_compiled_for_the_cpu(name: str) -> None:
    for queries, keys in LENGTHS:
        compiled = compile(MASKS[name](queries, keys))
        on_gpu, on_cpu = compiled.descriptor(queries, keys, "cuda"), compiled_build(compiled, queries, keys)
        assert on_cpu is not None
        assert torch.equal(on_gpu.check().defined(), on_cpu.defined())


@pytest.mark.parametrize("name", MADE)
def test_digests(name: str) -> None:
    """Those in the file, which builds on the CPU have too, where MLIR is installed and no GPU is (`make test`)."""
    check(name, lambda compiled, queries, keys: compiled.descriptor(queries, keys, "cuda"))
