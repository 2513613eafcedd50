"""What launched kernels say about the IR that they came from."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import torch

import compilemask as cm

PORTABLE = {"causal_count", "causal_fill", "causal_patterns", "attention"}
_LAUNCH = re.compile(r"// launch (\w+) on \d+ x \d+ x \d+ programs, IR ([0-9a-f]{8})")


def launches(dtype: torch.dtype, folder: Path) -> list[tuple[str, str]]:
    """Names and IR of the kernels of a forward and a backward pass, in the order of their launches."""
    q, k, v = (torch.randn(1, 2, 300, 64, dtype=dtype, device="cuda", requires_grad=True) for _ in range(3))
    stream = io.StringIO()
    with cm.debug(launches=True, dump=folder, stream=stream):
        cm.attention(q, k, v, cm.causal()).float().square().sum().backward()
    torch.cuda.synchronize()
    lines = stream.getvalue().splitlines()
    found = [_LAUNCH.fullmatch(line) for line in lines]
    return [(match[1], match[2]) for match in found if match is not None]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_each_launch_names_ir_that_was_dumped(dtype: torch.dtype, tmp_path: Path) -> None:
    launches(dtype, tmp_path / "before")  # what was compiled already is seen too
    found = launches(dtype, tmp_path)
    names = {name for name, _ in found}
    assert names >= PORTABLE
    assert any("backward" in name for name in names)
    for name, digest in found:
        (given,) = (tmp_path / "kernels").glob(f"{name}-cuda*-{digest}.mlir")
        assert f'"{name}"' in given.read_text()
        for level in ("ttgir", "llir", "ptx", "cubin"):
            assert given.with_suffix(f".{level}").stat().st_size


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
)
def test_kernels_for_hopper_are_dumped(tmp_path: Path) -> None:
    launches(torch.float16, tmp_path)
    for name in ("attention", "attention_backward_keys"):
        (given,) = (tmp_path / "kernels").glob(f"{name}-cuda90-*.mlir")
        assert "ttng.warp_group_dot" in given.read_text()
