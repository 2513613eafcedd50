"""The Hopper kernel for gradients of queries compiled by Triton for sm_90a: it fits, spills nothing, and its products
stay asynchronous.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch
from test_hopper_backward_compile import steps
from test_hopper_compile import ELEMENT, assembler, machine_code

from compilemask.dialects.triton.printing import print_generic
from compilemask.lowering.tiling_to_ttg.attention_backward_queries import HopperQueriesConfig, emit_backward_queries
from compilemask.lowering.tiling_to_ttg.attention_config import SHARED_MEMORY
from compilemask.passes.legalize_triton import legalize
from compilemask.runtime.gpu.hopper_backward_queries import queries_binary
from compilemask.runtime.gpu.target import parse_target

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize(("head_dim", "dtype"), [(128, torch.bfloat16), (64, torch.float16)])
def test_kernel(head_dim: int, dtype: torch.dtype, tmp_path: Path) -> None:
    config = HopperQueriesConfig.choose(head_dim, ELEMENT[dtype])
    queries_binary.cache_clear()
    binary = queries_binary(head_dim, dtype, config)
    assert binary.shared_bytes <= config.shared_bytes(head_dim) <= SHARED_MEMORY
    # Two warpgroups, and one that holds the producer.
    assert binary.threads == 384
    assert binary.format == "=" + "128s" * 5 + "Q" * 6 + "i" * 9 + "f" + "Q" * len(binary.scratch)
    code = machine_code(binary.cubin, tmp_path)
    assert any("UTMALDG.4D" in line for line in code)
    assert any("UTMASTG.4D" in line for line in code)
    assert not any("RED" in line and "UTMARED" in line for line in code)
    # Scores and rises are products over D, queries one over the keys; each 16 deep. Masked and full, in two warpgroups;
    # warpgroups that pass by a masked step may begin the next step's scores.
    full = 2 * head_dim // 16 + config.keys // 16
    found = steps(code)
    assert {count: len(some) for count, some in found.items()} == (
        {full: 2, full + head_dim // 16: 2} if config.scores_ahead else {full: 4}
    )
    bodies = [body for some in found.values() for body in some]
    # A number that a tile needs once may lie in memory.
    spills = [sum("LDL" in line or "STL" in line for line in body) for body in (code, *bodies)]
    assert spills[0] <= 4
    assert not any(spills[1:])


@pytest.mark.parametrize("head_dim", [64, 128])
def test_ptxas_serializes_nothing(head_dim: int, tmp_path: Path) -> None:
    """It warns with C7510 to C7515 where it gives up asynchronous products."""
    import triton

    element = ELEMENT[torch.bfloat16]
    module = emit_backward_queries(head_dim, element, HopperQueriesConfig.choose(head_dim, element))
    path, ptx = tmp_path / "kernel.ttgir", tmp_path / "kernel.ptx"
    path.write_text(print_generic(legalize(module, triton.__version__)))
    ptx.write_text(triton.compile(str(path), target=parse_target("cuda:90").for_triton()).asm["ptx"])
    command = [assembler(), "-v", "-arch=sm_90a", ptx, "-o", tmp_path / "out"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Used 168 registers" in said.stderr
    assert not re.search(r"C75\d\d", said.stdout + said.stderr)


@pytest.mark.parametrize("version", ["3.6.0", "3.7.1", "3.8.0", "3.9.0"])
def test_text_for_all_versions(version: str) -> None:
    element = ELEMENT[torch.bfloat16]
    module = emit_backward_queries(64, element, HopperQueriesConfig.choose(64, element))
    assert print_generic(legalize(module, version)).startswith('"builtin.module"')
