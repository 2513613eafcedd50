"""What calls of the GPU's runtime are given, seen without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from compilemask.runtime.gpu import launch


def test_new_memory_of_a_size_as_tensors_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own call refuses a torch.Size."""
    given: list[Any] = []
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(launch._guards, "_empty_strided_cuda", lambda *sizes: given.append(sizes))
    x = torch.empty(2, 3)
    launch.empty(x.shape, x.stride(), x.dtype, torch.device("cuda", 0))
    ((shape, stride, dtype),) = given
    assert (type(shape), type(stride)) == (tuple, tuple)
    assert (shape, stride, dtype) == ((2, 3), (3, 1), torch.float32)
