"""The split kernel and the one that combines, compiled by Triton: they fit, loads run ahead, and nothing spills."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from test_attention_kernel_compile import SHARED_MEMORY, cuobjdump

from compilemask.runtime.gpu.attention_split_cuda import COMBINE_OPTIONS, combine_text, split_kernel
from compilemask.runtime.gpu.compile_kernel import Options
from compilemask.runtime.gpu.target import parse_target

HALF, SINGLE = torch.bfloat16, torch.float32


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


def compiled(text: str, options: Options, target: str, folder: Path) -> Any:
    """Triton's kernel."""
    triton = pytest.importorskip("triton")
    path = folder / "kernel.ttir"
    path.write_text(text)
    given = {"num_warps": options.num_warps, "num_stages": options.num_stages}
    return triton.compile(str(path), target=parse_target(target).for_triton(), options=given)


@pytest.mark.parametrize(
    ("target", "head_dim", "dtype", "rows"),
    [
        ("cuda:80", 128, HALF, 16),
        ("cuda:100", 256, HALF, 64),
        ("cuda:120", 128, HALF, 64),
        ("cuda:120", 256, HALF, 32),
        ("cuda:120", 128, SINGLE, 32),
        ("hip:gfx942", 256, HALF, 64),
    ],
)
def test_compiles_and_fits(target: str, head_dim: int, dtype: torch.dtype, rows: int, tmp_path: Path) -> None:
    text, options, _ = split_kernel(head_dim, dtype, target, rows)
    kernel = compiled(text, options, target, tmp_path)
    assert kernel.metadata.shared <= SHARED_MEMORY[target] * 1024
    assert len(kernel.asm["cubin" if target.startswith("cuda") else "hsaco"]) > 1000


@pytest.mark.parametrize(
    ("head_dim", "dtype", "rows"),
    [
        (64, HALF, 1),
        (64, HALF, 32),
        (128, HALF, 16),
        (128, HALF, 32),
        (128, HALF, 64),
        (256, HALF, 16),
        (128, SINGLE, 8),
    ],
)
def test_on_hopper(head_dim: int, dtype: torch.dtype, rows: int, tmp_path: Path) -> None:
    text, options, _ = split_kernel(head_dim, dtype, "cuda:90", rows)
    kernel = compiled(text, options, "cuda:90", tmp_path)
    assert 2 * kernel.metadata.shared <= SHARED_MEMORY["cuda:90"] * 1024, "two programs on a processor"
    assert spills_in_loops(kernel.asm["cubin"], tmp_path) == []
    loops = kernel.asm["ttgir"].split("scf.for")[1:]
    element = "bf16" if dtype is HALF else "f32"
    copy = rf"async_copy_global_to_local .*x!tt\.ptr<{element}>"
    ahead = [len(re.findall(copy, loop)) for loop in loops]
    assert sum(count >= 2 for count in ahead) >= 2, "k and v run ahead, in partial and in full tiles"


@pytest.mark.parametrize(("head_dim", "dtype"), [(64, HALF), (128, HALF), (256, SINGLE)])
def test_combining_on_hopper(head_dim: int, dtype: torch.dtype, tmp_path: Path) -> None:
    kernel = compiled(combine_text(head_dim, dtype), COMBINE_OPTIONS, "cuda:90", tmp_path)
    assert spills_in_loops(kernel.asm["cubin"], tmp_path) == []
    assert re.search(r"ld\.global\S*\.v4\.b32", kernel.asm["ptx"]), "parts are read 16 bytes at a time"


def spills_in_loops(cubin: bytes, folder: Path) -> list[str]:
    """Accesses to local memory between the ends of a backward branch."""
    text = cuobjdump("-sass", cubin, folder)
    found = [(int(at, 16), what) for at, what in re.findall(r"/\*([0-9a-f]{4,})\*/\s+([^;]+);", text)]
    branches = [(at, int(target[1], 16)) for at, what in found if (target := re.search(r"\bBRA (0x[0-9a-f]+)", what))]
    loops = [(target, at) for at, target in branches if target < at]
    assert loops, "the kernel has none"
    return [what for at, what in found if re.match(r"(@\S+ )?(LDL|STL)", what) and any(a <= at <= b for a, b in loops)]
