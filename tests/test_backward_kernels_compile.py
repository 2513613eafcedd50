"""The backward kernels compiled by Triton: they fit, and the hardware's units are used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from test_attention_kernel_compile import SHARED_MEMORY
from xdsl.dialects.builtin import AnyFloat, bf16, f16, f32

from compilemask.dialects.triton.printing import print_generic
from compilemask.lowering.tiling_to_tt.attention_backward_config import BackwardConfig, Side
from compilemask.lowering.tiling_to_tt.attention_backward_keys import emit_keys
from compilemask.lowering.tiling_to_tt.attention_backward_queries import emit_queries
from compilemask.lowering.tiling_to_tt.attention_backward_rows import emit_rows
from compilemask.runtime.gpu.target import parse_target

EMITTERS = {"keys": emit_keys, "queries": emit_queries}


def compiled(side: Side, head_dim: int, element: AnyFloat, target: str, folder: Path) -> Any:
    """Triton's kernel for the chosen variant."""
    config = BackwardConfig.choose(side, head_dim, element, target)
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    return _compile(print_generic(EMITTERS[side](head_dim, element, config)), target, options, folder)


def _compile(text: str, target: str, options: dict[str, int], folder: Path) -> Any:
    triton = pytest.importorskip("triton")
    path = folder / "kernel.ttir"
    path.write_text(text)
    return triton.compile(str(path), target=parse_target(target).for_triton(), options=options)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("side", ["keys", "queries"])
@pytest.mark.parametrize(
    ("target", "head_dim", "element"),
    [("cuda:80", 128, f16), ("cuda:120", 64, f16), ("hip:gfx942", 128, f16), ("cuda:90", 64, f32)],
)
def test_compiles_and_fits(side: Side, target: str, head_dim: int, element: AnyFloat, tmp_path: Path) -> None:
    kernel = compiled(side, head_dim, element, target, tmp_path)
    assert kernel.metadata.shared <= SHARED_MEMORY[target] * 1024
    assert len(kernel.asm["cubin" if target.startswith("cuda") else "hsaco"]) > 1000


@pytest.mark.parametrize(("side", "products"), [("keys", 4), ("queries", 3)])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_on_hopper(side: Side, products: int, head_dim: int, tmp_path: Path) -> None:
    kernel = compiled(side, head_dim, bf16, "cuda:90", tmp_path)
    assert kernel.metadata.shared <= SHARED_MEMORY["cuda:90"] * 1024
    text = kernel.asm["ttgir"]
    assert len(re.findall(r"ttng\.warp_group_dot %", text)) == 2 * products, "in partial and in full tiles"
    assert len(re.findall(r"ttg\.async_copy_global_to_local .*xbf16", text)) >= 8, "both tensors run ahead, twice"


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
def test_rows(target: str, tmp_path: Path) -> None:
    text = print_generic(emit_rows(128, bf16, aligned=True, with_grad_lse=True, clears_sums=True))
    kernel = _compile(text, target, {"num_warps": 4}, tmp_path)
    if target == "cuda:90":
        assert "ld.global.v4.b32" in kernel.asm["ptx"]
        # 32 rows of 128 numbers by 128 threads.
        assert len(re.findall(r"st\.global\.v4\.b32", kernel.asm["ptx"])) == 32 * 128 // 128 // 4
