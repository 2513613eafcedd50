"""The gradient as the runtime launches it on a GPU, with kernels executed in numpy, against the oracle's gradients."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from compare import assert_close, dense_attention, dense_gradients, random_inputs
from sample_masks import MASKS
from xdsl.dialects.builtin import f16, f32, i32
from xdsl.ir import Attribute
from xdsl.parser import Parser

import compilemask as cm
from compilemask.dialects.registry import make_context
from compilemask.dialects.semantics.triton import run_kernel
from compilemask.dialects.triton import tt
from compilemask.dialects.triton.types import PointerType
from compilemask.runtime.calls.gradient_inputs import GradientInputs
from compilemask.runtime.gpu import attention_backward_cuda

_asked: list[torch.Tensor] = []
"""Tensors whose addresses were asked for, under `watch_addresses`."""


def watch_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember tensors whose addresses are asked for, so that `memory_at` finds them."""
    data_ptr = torch.Tensor.data_ptr

    def watched(x: torch.Tensor) -> int:
        _asked.append(x)
        return data_ptr(x)

    _asked.clear()
    monkeypatch.setattr(torch.Tensor, "data_ptr", watched)


def memory_at(address: int, dtype: type) -> np.ndarray:
    """What lies behind an address, up to the end of the tensor that holds it."""
    for x in reversed(_asked):
        storage = x.untyped_storage()
        start, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        if start <= address < end:
            return np.frombuffer(memoryview((ctypes.c_char * (end - address)).from_address(address)), dtype)
    raise AssertionError(f"no tensor lies at {address:#x}")


HELD_IN: dict[Attribute, type] = {f32: np.float32, f16: np.float16, i32: np.int32}


def launch_in_numpy(text: str, grid: tuple[int, int, int], device: torch.device, arguments: list[Any]) -> None:
    module = Parser(make_context(), text).parse_module()
    func = module.body.block.first_op
    assert isinstance(func, tt.FuncOp)
    given: list[Any] = []
    for value, argument in zip(arguments, func.body.block.args, strict=True):
        if isinstance(argument.type, PointerType):
            given.append(memory_at(value, HELD_IN[argument.type.pointee_type]))
        else:
            given.append(np.float32(value) if isinstance(value, float) else value)
    run_kernel(module, grid, given, seed=0)


def empty(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


@pytest.fixture
def on_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are texts, and are executed in numpy."""
    watch_addresses(monkeypatch)
    monkeypatch.setattr(attention_backward_cuda, "kernel_for", lambda text, device, options: text)
    monkeypatch.setattr(attention_backward_cuda, "target_of", lambda device: "cuda:90")
    monkeypatch.setattr(attention_backward_cuda, "launch", launch_in_numpy)
    monkeypatch.setattr(attention_backward_cuda, "empty", empty)


Change = Callable[[torch.Tensor], torch.Tensor]


def check(
    mask: cm.Mask,
    queries: int,
    keys: int,
    dim: int = 16,
    change: Change = lambda x: x,
    lse: bool = True,
    change_lse: Change = lambda x: x,
) -> None:
    q, k, v = (change(x) for x in random_inputs(2, 4, 2, queries, keys, dim))
    visible = mask.dense(queries, keys)
    out, out_lse = (x.float() for x in dense_attention(q, k, v, visible, 0.3))
    grad = change(torch.randn(out.shape, generator=torch.Generator().manual_seed(1)))
    grad_lse = torch.randn(out_lse.shape, generator=torch.Generator().manual_seed(2)) if lse else None
    descriptor = cm.compile(mask).descriptor(queries, keys, gradient=True)
    inputs = GradientInputs(grad, grad_lse, q, k, v, change(out), change_lse(out_lse), descriptor, 0.3)
    found = attention_backward_cuda.attention_backward_cuda(inputs)[:3]
    expected = dense_gradients(q, k, v, visible, grad, grad_lse, 0.3)
    for name, x, gradient, reference in zip("qkv", (q, k, v), found, expected, strict=True):
        assert gradient.shape == x.shape
        assert_close(gradient, reference, 2e-5, f"gradient of {name}")


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("name", ["causal", "hstu per batch", "padding per head", "scattered"])
def test_equal_to_the_oracle(name: str) -> None:
    check(MASKS[name](70, 140), 70, 140)


@pytest.mark.usefixtures("on_numpy")
def test_lse_that_a_hook_has_restored_in_other_strides() -> None:
    check(cm.causal(), 70, 70, change_lse=lambda x: x.mT.contiguous().mT)


CHANGES: dict[str, Change] = {
    "sequence first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "columns": lambda x: x.mT.contiguous().mT,
    "misaligned": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "cut": lambda x: torch.cat([x, x], dim=3)[..., : x.shape[3]],
}


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("name", CHANGES)
def test_strides(name: str) -> None:
    check(cm.causal(), 40, 40, change=CHANGES[name])


@pytest.mark.usefixtures("on_numpy")
def test_without_a_gradient_of_lse_and_odd_head_dims() -> None:
    check(cm.window(20), 40, 40, dim=5, lse=False)


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize(("queries", "keys"), [(0, 9), (9, 0)])
def test_empty_sequences(queries: int, keys: int) -> None:
    check(cm.causal(), queries, keys)
