"""What the guards of TorchDynamo see of tensors: calls that are known rely on it, in each PyTorch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_direct import Subclass

from compilemask.runtime.calls import tensor_guard
from compilemask.runtime.calls.direct import is_thread_direct
from compilemask.runtime.calls.tensor_guard import guard_of


def tensor() -> torch.Tensor:
    return torch.randn(2, 4, 8, 16)


def _inference(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return x.clone()


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": lambda x: x[:, :, :7],
    "shape of a whole": lambda x: x.reshape(2, 8, 4, 16),
    "rank": lambda x: x[0],
    "strides": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "strides of 0": lambda x: x[:1].expand(x.shape),
    "dtype": lambda x: x.to(torch.bfloat16),
    "gradient": lambda x: x.clone().requires_grad_(),
    "result with a gradient": lambda x: x.clone().requires_grad_() * 2,
    "parameter": torch.nn.Parameter,
    "subclass": lambda x: x.as_subclass(Subclass),
    "inference": _inference,
    "device": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "sparse rows": lambda x: x[0, 0].to_sparse_csr(),
    "negative": lambda x: torch.complex(x, x).conj().imag,
    "zero": lambda x: torch._efficientzerotensor(x.shape),  # pyright: ignore[reportPrivateImportUsage]
    "functional": torch._to_functional_tensor,  # pyright: ignore[reportPrivateImportUsage]
    "opaque": lambda x: x.to_mkldnn(),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8),
    "jagged": lambda x: torch.nested.nested_tensor([x[0, 0], x[0, 1]], layout=torch.jagged),
    "no tensor": lambda x: x.tolist(),
    "nothing": lambda _: None,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("name", CHANGES)
def test_what_a_guard_sees(name: str, place: int) -> None:
    tensors = [tensor() for _ in range(3)]
    holds = guard_of(*tensors)
    assert holds is not None
    assert holds(*tensors)
    tensors[place] = CHANGES[name](tensors[place])
    assert not holds(*tensors)


def test_what_a_guard_does_not_mind() -> None:
    tensors = [tensor() for _ in range(3)]
    holds = guard_of(*tensors)
    assert holds is not None
    assert holds(*[tensor() for _ in range(3)])
    assert holds(*[torch.randn(2, 4, 9, 16)[:, :, :8].contiguous() for _ in range(3)])
    with torch.no_grad():
        assert holds(*tensors)


def test_changes_of_a_tensor_that_was_seen() -> None:
    tensors = [tensor() for _ in range(3)]
    holds = guard_of(*tensors)
    assert holds is not None
    tensors[1].requires_grad_()
    assert not holds(*tensors)
    tensors[1].requires_grad_(False)
    assert holds(*tensors)
    tensors[2].resize_(2, 4, 7, 16)
    assert not holds(*tensors)
    tensors[2].resize_(2, 4, 8, 16)
    assert holds(*tensors)
    tensors[0].data = tensors[0].double()
    assert not holds(*tensors)


def test_inference_mode_is_seen() -> None:
    tensors = [tensor() for _ in range(3)]
    holds = guard_of(*tensors)
    assert holds is not None
    with torch.inference_mode():
        assert not holds(*tensors)
        within = guard_of(*tensors)
        assert within is not None
        assert within(*tensors)
    assert not within(*tensors)


def test_inside_of_transformations() -> None:
    tensors = [tensor() for _ in range(3)]
    holds = guard_of(*tensors)
    assert holds is not None
    seen: list[bool] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.extend([holds(x, *tensors[1:]), holds(*tensors)])
        return x

    torch.vmap(look)(torch.randn(3, 2, 4, 8, 16))
    torch.func.functionalize(look)(tensors[0])
    torch.func.grad(lambda x: look(x).sum())(tensors[0])
    assert seen == [False] * 6


def test_modes_in_python_are_for_the_thread() -> None:
    from torch._dispatch.python import enable_python_dispatcher

    assert is_thread_direct()
    with enable_python_dispatcher():
        assert not is_thread_direct()


def test_a_tensor_that_stands_twice_has_no_guard() -> None:
    x, y = tensor(), tensor()
    assert guard_of(x, y, x) is None
    holds = guard_of(x, y)
    assert holds is not None
    assert not holds(x, x)


@pytest.mark.parametrize("found", [None, lambda *_: None])
def test_without_guards(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Guards:
        """Those of a PyTorch that has none, or others."""

        TensorGuards = found

    monkeypatch.setattr(tensor_guard, "_guards", Guards)
    assert guard_of(tensor()) is None


def test_a_nested_tensor_is_not_shown_to_a_guard(tmp_path: Path) -> None:
    """It would end the process."""
    program = """
import warnings, torch, compilemask
warnings.simplefilter("ignore")
q, k, v = (torch.randn(2, 4, 8, 16) for _ in range(3))
compilemask.attention(q, k, v, compilemask.causal())
nested = torch.nested.nested_tensor([q[0], q[1]])
for inputs in ((nested, k, v), (q, nested, v), (q, k, nested)):
    try:
        compilemask.attention(*inputs, compilemask.causal())
    except compilemask.errors.ShapeError as error:
        print(error)
"""
    # Elsewhere than in the checkout, whose folder of the package's name is a part of it.
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines() == [
        f"{name} is a nested tensor, expected a dense (torch.strided) one" for name in "qkv"
    ]
