"""The Hopper attention kernel compiled by Triton for sm_90a: it fits, spills nothing, and uses the hardware's units."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from xdsl.dialects.builtin import AnyFloat, bf16, f16

from compilemask.dialects.triton.printing import print_generic
from compilemask.lowering.tiling_to_tt.attention import attention_module, attention_op
from compilemask.lowering.tiling_to_ttg.attention import HopperConfig, Schedule, emit
from compilemask.lowering.tiling_to_ttg.attention_config import SHARED_MEMORY, TILE
from compilemask.lowering.tiling_to_ttg.attention_frame import kernel_arguments
from compilemask.passes.legalize_triton import legalize
from compilemask.runtime.gpu.hopper import hopper_binary
from compilemask.runtime.gpu.tensor_map import MAP_BYTES

pytest.importorskip("triton")
ELEMENT: dict[torch.dtype, AnyFloat] = {torch.float16: f16, torch.bfloat16: bf16}
CASES = [
    (128, torch.bfloat16, HopperConfig.choose(128, bf16, keeps_peaks=False)),
    (64, torch.float16, HopperConfig.choose(64, f16)),
    (128, torch.bfloat16, HopperConfig(schedule=Schedule.ATOMIC)),
    (64, torch.bfloat16, HopperConfig.choose(64, bf16, 192, keeps_peaks=False)),
    (64, torch.bfloat16, HopperConfig.choose(64, bf16, 64, keeps_peaks=False)),
    (128, torch.float16, HopperConfig.choose(128, f16, 64)),
    (64, torch.float16, replace(HopperConfig.choose(64, f16, 192), schedule=Schedule.ATOMIC)),
]
DUMP_TIMEOUT = 60
INSTRUCTION_BYTES = 16


def tool(name: str) -> Path:
    from triton.backends import nvidia

    path = Path(nvidia.__path__[0]) / "bin" / name
    if not path.exists():
        pytest.skip(f"Triton has come without {name}")
    return path


def assembler() -> Path:
    """The one of those that Triton has come with that it uses for Hopper itself."""
    from triton.backends.nvidia.compiler import get_ptxas

    return Path(get_ptxas(90).path)


def machine_code(cubin: bytes, folder: Path) -> list[str]:
    """Instructions of the kernel."""
    path = folder / "attention.cubin"
    path.write_bytes(cubin)
    text = subprocess.run(
        [tool("cuobjdump"), "-sass", path], capture_output=True, text=True, check=True, timeout=DUMP_TIMEOUT
    ).stdout
    return re.findall(r"/\*[0-9a-f]{4,5}\*/\s+(.*?);", text)


def innermost_loops(code: list[str]) -> list[list[str]]:
    """Bodies of the innermost loops with products."""
    loops: list[range] = []
    for end, instruction in enumerate(code):
        branch = re.search(r"BRA\S* .*0x([0-9a-f]+)", instruction)
        # Behind everything lie the ends of waits: they try once more, branch back to that, or to where the wait was.
        if branch and "BRA" not in code[end - 1]:
            loops.append(range(int(branch[1], 16) // INSTRUCTION_BYTES, end))
    innermost: list[range] = []
    for loop in sorted((x for x in loops if _count(code[x.start : x.stop], "HGMMA")), key=len):
        if not any(loop.start < other.stop and other.start < loop.stop for other in innermost):
            innermost.append(loop)
    return [code[loop.start : loop.stop] for loop in sorted(innermost, key=lambda loop: loop.start)]


def visits(code: list[str], head_dim: int) -> list[list[str]]:
    """Bodies of the loops over tiles of keys: those that start both products, which are 16 deep, and wait for both."""
    products = head_dim // 16 + TILE // 16
    return [
        body
        for body in innermost_loops(code)
        if _count(body, "HGMMA") == products and _count(body, "WARPGROUP.DEPBAR") == 2
    ]


def _count(code: list[str], name: str) -> int:
    return sum(name in line for line in code)


@pytest.mark.parametrize(("head_dim", "dtype", "config"), CASES)
def test_kernel(
    head_dim: int, dtype: torch.dtype, config: HopperConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    hopper_binary.cache_clear()
    binary = hopper_binary(head_dim, dtype, config)
    assert binary.shared_bytes <= config.shared_bytes(head_dim) <= SHARED_MEMORY
    # The consumers, and one warpgroup that holds the producer and the cleaner.
    assert binary.threads == 128 * (config.consumers + 1)
    arguments = kernel_arguments(config)
    assert binary.format == "=" + "128s" * 4 + "Q" * (len(arguments) - 15) + "i" * 10 + "f" + "Q" * len(binary.scratch)
    assert binary.offsets[:5] == tuple(MAP_BYTES * index for index in range(5))
    code = machine_code(binary.cubin, tmp_path)
    assert any("UTMALDG.4D" in line for line in code)
    assert any("UTMASTG.4D" in line for line in code)
    bodies = visits(code, head_dim)
    # Partial and full tiles, in each of the consumers.
    assert len(bodies) == 2 * config.consumers
    # Three consumers need all registers of a multiprocessor: a number that a tile needs once may lie in memory.
    spills = [sum("LDL" in line or "STL" in line for line in body) for body in (code, *bodies)]
    assert spills[0] <= (0 if config.consumers == 2 else 8), "registers are spilled"
    assert not any(spills[1:]), "registers are spilled in a visit"
    for body in bodies:
        # With one consumer ptxas waits for the output first: the other program of the processor computes meanwhile.
        if config.hold_softmax and config.consumers > 1:
            _check_overlap(body)


def _check_overlap(body: list[str]) -> None:
    """The softmax lies between the wait for scores and the wait for the output, so that a product runs beside it."""
    waits = [index for index, line in enumerate(body) if "WARPGROUP.DEPBAR" in line]
    assert len(waits) == 2
    exponentials = [index for index, line in enumerate(body) if "MUFU.EX2" in line]
    beside = [index for index in exponentials if waits[0] < index < waits[1]]
    # 64 weights a thread, and two factors by which sums fade.
    assert len(beside) == len(exponentials) == 66


@pytest.mark.parametrize("schedule", [Schedule.GRID, Schedule.ATOMIC])
@pytest.mark.parametrize(("head_dim", "rows"), [(128, 128), (128, 64), (64, 192), (64, 64)])
def test_visits_that_keep_peaks_look_for_none(
    head_dim: int, rows: int, schedule: Schedule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    config = HopperConfig.choose(head_dim, bf16, rows, schedule)
    if not config.keeps_peaks:
        assert (head_dim, rows, schedule) == (128, 64, Schedule.ATOMIC)
        return
    hopper_binary.cache_clear()
    bodies = visits(machine_code(hopper_binary(head_dim, torch.bfloat16, config).cubin, tmp_path), head_dim)
    assert not any("LDL" in line or "STL" in line for body in bodies for line in body), "registers are spilled"
    keeping = [body for body in bodies if not _count(body, "FMNMX")]
    # Partial and full tiles, in each of the consumers; where tiles are computed again, they are not told apart.
    assert len(keeping) == 2 * config.consumers
    for body in keeping:
        assert not _count(body, "SHFL")
        assert _count(body, "MUFU.EX2") == 64
    # The full ones of D = 128 have 476 instructions where peaks are looked for.
    assert min(map(len, keeping)) < 400


@pytest.mark.parametrize(
    ("head_dim", "config", "registers"), [(128, HopperConfig(), 168), (64, HopperConfig.choose(64, bf16, 192), 128)]
)
def test_ptxas_serializes_nothing(
    head_dim: int, config: HopperConfig, registers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It warns with C7510 to C7515 where it gives up asynchronous products."""
    import triton

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    module = emit(attention_op(attention_module(head_dim, bf16)), config)
    path = tmp_path / "attention.ttgir"
    path.write_text(print_generic(legalize(module, triton.__version__)))
    from compilemask.runtime.gpu.target import parse_target

    kernel = triton.compile(str(path), target=parse_target("cuda:90").for_triton())
    ptx = tmp_path / "attention.ptx"
    ptx.write_text(kernel.asm["ptx"])
    said = subprocess.run(
        [assembler(), "-v", "-arch=sm_90a", ptx, "-o", tmp_path / "out"], capture_output=True, text=True, check=True
    )
    assert f"Used {registers} registers" in said.stderr
    assert not re.search(r"C75\d\d", said.stdout + said.stderr)


@pytest.mark.parametrize("version", ["3.6.0", "3.7.1", "3.8.0", "3.9.0"])
def test_text_for_all_versions(version: str) -> None:
    module = emit(attention_op(attention_module(64, bf16)), HopperConfig(schedule=Schedule.ATOMIC))
    assert print_generic(legalize(module, version)).startswith('"builtin.module"')
