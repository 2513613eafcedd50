"""The Hopper backward kernel as the runtime launches it, with kernels executed in numpy, against the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from compare import assert_close, dense_attention, dense_gradients, random_inputs
from sample_masks import MASKS
from test_hopper_kernel import ELEMENT
from test_runtime_backward_kernels import CHANGES, HELD_IN, launch_in_numpy, memory_at, watch_addresses
from xdsl.dialects.builtin import ModuleOp

import compilemask as cm
from compilemask.dialects.semantics.triton_gpu import TensorMap, run_kernel
from compilemask.dialects.triton import tt
from compilemask.dialects.triton.ttg_module import TMA_ARGUMENT
from compilemask.dialects.triton.types import PointerType
from compilemask.errors import DescriptorError
from compilemask.lowering.patch_grid import Patches
from compilemask.lowering.tiling_to_ttg.attention_backward import HopperBackwardConfig, emit_backward
from compilemask.lowering.tiling_to_ttg.attention_backward_queries import HopperQueriesConfig, emit_backward_queries
from compilemask.runtime.calls.gradient_inputs import GradientInputs
from compilemask.runtime.gpu import attention_backward_cuda, hopper_backward, hopper_backward_queries, patch_maps
from compilemask.runtime.gpu.hopper_backward import attention_backward_hopper

TOLERANCE = 5e-3


@lru_cache
def kernel(head_dim: int, dtype: torch.dtype, config: HopperBackwardConfig, device: int | None) -> ModuleOp:
    return emit_backward(head_dim, ELEMENT[dtype], config)


def launch(kernel: ModuleOp | str, grid: tuple[int, int, int], device: torch.device, arguments: list[Any]) -> None:
    if isinstance(kernel, str):
        return launch_in_numpy(kernel, grid, device, arguments)
    func = kernel.body.block.first_op
    assert isinstance(func, tt.FuncOp)
    assert func.arg_attrs is not None
    given: list[Any] = []
    for value, argument, attributes in zip(arguments, func.body.block.args, func.arg_attrs.data, strict=True):
        is_map = TMA_ARGUMENT in attributes.data
        if isinstance(argument.type, PointerType) and not is_map:
            value = memory_at(value, HELD_IN[argument.type.pointee_type])
        given.append(value)
    run_kernel(kernel, grid, given, seed=0)


class NumpyMaps:
    """What lies at an address, as kernels see it."""

    def __init__(
        self,
        shape: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
        rows: int | Sequence[int],
        columns: int | None = None,
    ) -> None:
        self.shape, self.stride = shape, [dtype.itemsize * step for step in stride]
        self.held_in = np.float32 if dtype == torch.float32 else np.float16

    def __getitem__(self, address: int) -> TensorMap:
        memory = memory_at(address, self.held_in)
        return TensorMap(np.lib.stride_tricks.as_strided(memory, self.shape, self.stride))


def empty(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device=device).fill_(torch.nan)


@lru_cache
def queries_kernel(head_dim: int, dtype: torch.dtype, config: HopperQueriesConfig, device: int | None) -> ModuleOp:
    return emit_backward_queries(head_dim, ELEMENT[dtype], config)


@pytest.fixture(autouse=True)
def _on_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are modules or texts, and are executed in numpy."""
    watch_addresses(monkeypatch)
    for module in (attention_backward_cuda, hopper_backward, hopper_backward_queries):
        module.forget()
    for module in (attention_backward_cuda, hopper_backward):
        monkeypatch.setattr(module, "kernel_for", lambda text, device, options: text)
        monkeypatch.setattr(module, "launch", launch)
        monkeypatch.setattr(module, "empty", empty)
    monkeypatch.setattr(attention_backward_cuda, "target_of", lambda device: "cuda:90")
    monkeypatch.setattr(hopper_backward, "_kernel", kernel)
    monkeypatch.setattr(hopper_backward_queries, "launch", launch)
    for module in (hopper_backward, hopper_backward_queries, patch_maps):
        monkeypatch.setattr(module, "TensorMaps", NumpyMaps)
    monkeypatch.setattr(hopper_backward_queries, "queries_binary", lru_cache(lambda *_: None))
    monkeypatch.setattr(hopper_backward_queries, "_kernel", queries_kernel)


def check(
    mask: cm.Mask,
    queries: int,
    keys: int,
    dim: int = 64,
    *,
    change: Callable[[torch.Tensor], torch.Tensor] = lambda x: x,
    sums_queries: bool = True,
    lse: bool = True,
    patches: Patches | None = None,
) -> None:
    q, k, v = random_inputs(2, 4, 2, queries, keys, dim, torch.float16)
    visible = mask.dense(queries, keys)
    out, out_lse = dense_attention(q, k, v, visible, 0.2)
    out, out_lse = out.half(), out_lse.float()
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).half()
    grad_lse = torch.randn(out_lse.shape, generator=torch.Generator().manual_seed(2)) if lse else None
    descriptor = cm.compile(mask).descriptor(queries, keys, gradient=True, patches=patches)
    shapes = (None, None) if patches is None else (patches.query_patch, patches.key_patch)
    config = HopperBackwardConfig(128 if dim <= 64 else 64, 2, sums_queries, query_patch=shapes[0], key_patch=shapes[1])
    q, k, v = changed = (change(q), change(k), change(v))
    inputs = GradientInputs(change(grad), grad_lse, q, k, v, change(out), out_lse, descriptor, 0.2)
    found = attention_backward_hopper(inputs, config)[:3]
    expected = dense_gradients(q, k, v, visible, grad, grad_lse, 0.2)
    for name, x, gradient, reference in zip("qkv", changed, found, expected, strict=True):
        assert gradient.shape == x.shape
        assert_close(gradient, reference, TOLERANCE, f"gradient of {name}")


@pytest.mark.parametrize("sums_queries", [True, False])
@pytest.mark.parametrize("name", ["causal", "hstu per batch", "padding per head"])
def test_equal_to_the_oracle(name: str, sums_queries: bool) -> None:
    check(MASKS[name](70, 140), 70, 140, sums_queries=sums_queries)


@pytest.mark.parametrize("name", ["sequence first", "cut"])
def test_strides(name: str) -> None:
    check(cm.causal(), 40, 40, change=CHANGES[name])


@pytest.mark.parametrize("dim", [40, 72, 128])
def test_head_dims(dim: int) -> None:
    check(cm.causal(), 140, 140, dim, lse=False)


@pytest.mark.parametrize("dim", [40, 64, 128])
def test_patches_of_an_image(dim: int) -> None:
    patches = Patches(20, (9, 17), 20 + 153 + 7, (8, 16), (8, 16))
    check(cm.clear(9, 17, 4, text=20), 180, 180, dim, patches=patches)


def test_other_patches_are_refused() -> None:
    q, k, v = random_inputs(1, 1, 1, 128, 128, 64, torch.float16)
    patches = Patches(0, (8, 16), 128, (8, 16), (8, 16))
    descriptor = cm.compile(cm.full()).descriptor(128, 128, gradient=True, patches=patches)
    inputs = GradientInputs(q, None, q, k, v, q, q[..., 0].float(), descriptor, 0.125)
    with pytest.raises(DescriptorError, match="Patches"):
        attention_backward_hopper(inputs, HopperBackwardConfig(128))


UNREADABLE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "expanded": lambda x: x[:, :, :1].expand(x.shape),
    "not aligned": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
    "transposed": lambda x: x.mT.contiguous().mT,
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_gradients_that_tma_cannot_read_are_copied(name: str) -> None:
    q, k, v = random_inputs(1, 2, 2, 50, 50, 64, torch.float16)
    visible = cm.causal().dense(50, 50)
    out, lse = dense_attention(q, k, v, visible)
    descriptor = cm.compile(cm.causal()).descriptor(50, 50, gradient=True)
    grad = UNREADABLE[name](random_inputs(1, 2, 2, 50, 50, 64, torch.float16, seed=1)[0])
    config = HopperBackwardConfig(128)
    inputs = GradientInputs(grad, None, q, k, v, out.half(), lse.float(), descriptor, 0.125)
    found = attention_backward_hopper(inputs, config)[:3]
    for gradient, reference in zip(found, dense_gradients(q, k, v, visible, grad), strict=True):
        assert_close(gradient, reference, TOLERANCE)


def test_plans_see_other_addresses_and_strides() -> None:
    mask, config = cm.causal(), HopperBackwardConfig(128)
    visible = mask.dense(40, 40)
    descriptor = cm.compile(mask).descriptor(40, 40, gradient=True)
    for seed, change in enumerate([lambda x: x, lambda x: x, CHANGES["sequence first"]]):
        q, k, v = (change(x) for x in random_inputs(1, 2, 1, 40, 40, 64, torch.float16, seed=seed))
        out, lse = dense_attention(q, k, v, visible)
        inputs = GradientInputs(q, None, q, k, v, out.half(), lse.float(), descriptor, 0.125)
        found = attention_backward_hopper(inputs, config)[:3]
        for gradient, reference in zip(found, dense_gradients(q, k, v, visible, q), strict=True):
            assert_close(gradient, reference, TOLERANCE)
    assert hopper_backward._plan.cache_info().misses == 2


def test_which_variant_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper_backward, "is_supported", lambda *_: True)
    monkeypatch.setattr(hopper_backward, "backward_binary", lambda *_: None)
    monkeypatch.setattr(hopper_backward, "_plan", lambda *arguments: arguments[-1])
    monkeypatch.setattr(hopper_backward, "gradients_by", lambda plan, inputs: plan)
    x = torch.zeros(1, 1, 1, 128, dtype=torch.bfloat16)
    hopper_backward._chosen.cache_clear()
    descriptor = cm.compile(cm.causal()).descriptor(1, 1, gradient=True)
    inputs = GradientInputs(x, None, x, x, x, x, x[..., 0], descriptor, 1.0)
    assert hopper_backward.attention_backward_gpu(inputs) == HopperBackwardConfig(64, 3)
    torch.use_deterministic_algorithms(True)
    try:
        assert hopper_backward.attention_backward_gpu(inputs) == HopperBackwardConfig(64, 3, sums_queries=False)
    finally:
        torch.use_deterministic_algorithms(False)
        hopper_backward._chosen.cache_clear()


def test_what_triton_cannot_compile_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from compilemask.errors import TargetError

    def fail(*_: object) -> None:
        raise TargetError("no")

    monkeypatch.setattr(hopper_backward, "backward_binary", fail)
    hopper_backward._chosen.cache_clear()
    with pytest.warns(RuntimeWarning, match="portable kernels: no"):
        assert hopper_backward._chosen(128, torch.bfloat16, True) is None
    hopper_backward._chosen.cache_clear()
