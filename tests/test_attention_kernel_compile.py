"""The attention kernel compiled by Triton for every target: it fits, and the hardware's units are used."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from xdsl.dialects.builtin import AnyFloat, bf16, f16

from compilemask.dialects.triton.printing import print_generic
from compilemask.lowering.tiling_to_tt.attention import AttentionConfig, attention_module, attention_op, emit
from compilemask.runtime.gpu.target import parse_target

SHARED_MEMORY = {"cuda:80": 163, "cuda:90": 227, "cuda:100": 227, "cuda:120": 99, "hip:gfx942": 64}
"""KiB that one block may have."""


def compiled(head_dim: int, element: AnyFloat, target: str, folder: Path) -> Any:
    """Triton's kernel for the chosen variant."""
    triton = pytest.importorskip("triton")
    config = AttentionConfig.choose(head_dim, element, target)
    path = folder / "attention.ttir"
    path.write_text(print_generic(emit(attention_op(attention_module(head_dim, element)), config)))
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    return triton.compile(str(path), target=parse_target(target).for_triton(), options=options)


@pytest.mark.parametrize(
    ("target", "head_dim"),
    [("cuda:80", 128), ("cuda:100", 64), ("cuda:120", 64), ("cuda:120", 128), ("hip:gfx942", 128)],
)
def test_compiles_and_fits(target: str, head_dim: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    kernel = compiled(head_dim, f16, target, tmp_path)
    assert kernel.metadata.shared <= SHARED_MEMORY[target] * 1024
    assert len(kernel.asm["cubin" if target.startswith("cuda") else "hsaco"]) > 1000


@pytest.mark.parametrize(("head_dim", "element"), [(64, f16), (128, f16), (128, bf16)])
def test_on_hopper(head_dim: int, element: AnyFloat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    kernel = compiled(head_dim, element, "cuda:90", tmp_path)
    assert kernel.metadata.shared <= SHARED_MEMORY["cuda:90"] * 1024
    partial, _, full = _loops(kernel.asm["ttgir"])
    for loop in (partial, full):
        products = re.findall(r"ttng\.warp_group_dot (%\w+), .*", loop)
        assert len(products) == 2
        assert len(re.findall(r"ttg\.async_copy_global_to_local .*x(?:f16|bf16)", loop)) == 2, "k and v run ahead"
    shared_operand = re.search(r"ttng\.warp_group_dot .* : (\S+)", full)
    assert shared_operand is not None
    assert "memdesc" in shared_operand[1], "q stays in shared memory"
    assert re.search(r"%\w+ = ttg\.(local_alloc|convert_layout).*ttg\.blocked", full) is None
    assert _stack_bytes(kernel.asm["cubin"], tmp_path) == 0


def _loops(ttgir: str) -> list[str]:
    """Bodies of the loops in the order in which they begin, inner ones with less indentation removed."""
    found = re.finditer(r"^( *)%\S+ = scf\.for .*?^\1\}", ttgir, re.MULTILINE | re.DOTALL)
    outer = [match[0] for match in found]
    inner = re.search(r"^ *%\S+ = scf\.for .*", "\n".join(outer[1].splitlines()[1:]), re.MULTILINE | re.DOTALL)
    assert inner is not None
    return [*outer[:2], inner[0]]


def _stack_bytes(cubin: bytes, folder: Path) -> int:
    """Stack of the kernel, where spilled registers go."""
    return int(re.findall(r"STACK:(\d+)", cuobjdump("-res-usage", cubin, folder))[-1])


def cuobjdump(option: str, cubin: bytes, folder: Path) -> str:
    """What cuobjdump says of a kernel."""
    from triton.backends import nvidia

    tool = Path(nvidia.__path__[0]) / "bin" / "cuobjdump"
    if not tool.exists():
        pytest.skip("Triton has come without cuobjdump")
    path = folder / "attention.cubin"
    path.write_bytes(cubin)
    return subprocess.run([tool, option, path], capture_output=True, text=True, check=True).stdout
