"""The Hopper kernel with modified scores: executed in numpy against dense attention, and compiled without spills."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest
import torch
from compare import TOLERANCE, assert_close, random_inputs
from sample_masks import MASKS
from score_cases import Case, cases, dense_scored, kernel_values
from test_hopper_compile import machine_code, visits
from test_hopper_kernel import ELEMENT, run
from xdsl.dialects.builtin import ModuleOp, bf16

import compilemask as cm
from compilemask.dialects.triton.printing import print_generic
from compilemask.language.mask import Mask
from compilemask.lowering.tiling_to_tt.attention import attention_module, attention_op
from compilemask.lowering.tiling_to_ttg.attention import HopperConfig, Schedule, emit
from compilemask.passes.legalize_triton import legalize
from compilemask.runtime.gpu.target import parse_target
from compilemask.runtime.scoring import score_op

NAMES = list(cases(1, 1))


@lru_cache(maxsize=64)
def kernel_of(text: str, head_dim: int, dtype: torch.dtype, config: HopperConfig) -> ModuleOp:
    return emit(attention_op(attention_module(head_dim, ELEMENT[dtype], score=score_op(text))), config)


def check(
    case: Case,
    mask: Mask,
    queries: int,
    keys: int,
    *,
    dtype: torch.dtype = torch.float16,
    head_dim: int = 64,
    scale: float = 0.125,
    config: HopperConfig | None = None,
) -> None:
    """Random inputs, NaN in all keys and values that nobody sees, against the oracle."""
    config = HopperConfig.choose(head_dim, ELEMENT[dtype], keeps_peaks=False) if config is None else config
    q, k, v = random_inputs(2, 2, 1, queries, keys, head_dim, dtype)
    visible = mask.dense(queries, keys)
    unseen = ~visible.flatten(0, 2).any(dim=0)
    k[:, :, unseen], v[:, :, unseen] = torch.nan, torch.nan
    text = case.score.plan.text
    values = kernel_values(case.score, attention_op(attention_module(head_dim, ELEMENT[dtype], score=score_op(text))))
    descriptor = cm.compile(mask).descriptor(queries, keys).check()
    kernel = kernel_of(text, head_dim, dtype, config)
    out, lse = run(config, descriptor, q, k, v, scale, kernel=kernel, **values)
    expected, expected_lse = dense_scored(case, q, k.nan_to_num(), v.nan_to_num(), visible, scale)
    assert_close(out, expected, TOLERANCE[dtype], "out")
    if not case.pointwise:
        assert_close(lse, expected_lse, 1e-4, "lse")


@pytest.mark.parametrize("mask", ["causal", "hstu", "shared prompt", "clear"])
@pytest.mark.parametrize("name", NAMES)
def test_masks(name: str, mask: str) -> None:
    check(cases(2, 2)[name], MASKS[mask](200, 200), 200, 200)


@pytest.mark.parametrize("schedule", Schedule)
def test_a_sink_beside_peaks_that_are_kept(schedule: Schedule) -> None:
    config = HopperConfig.choose(64, bf16, schedule=schedule)
    assert config.keeps_peaks
    for name in ("causal", "scattered"):
        check(cases(2, 2)["sink"], MASKS[name](300, 300), 300, 300, dtype=torch.bfloat16, config=config)


@pytest.mark.parametrize("name", NAMES)
def test_runs_of_full_tiles(name: str) -> None:
    check(cases(2, 2)[name], cm.full() - cm.cols(260, 390), 130, 700, head_dim=128, dtype=torch.bfloat16)


@pytest.mark.parametrize("name", ["softcap of alibi, and a sink", "silu over lengths, of a relative bias"])
def test_persistent_programs(name: str) -> None:
    config = HopperConfig(stages=2, schedule=Schedule.ATOMIC)
    check(cases(2, 2)[name], cm.causal(), 300, 300, config=config)


@pytest.mark.parametrize("name", ["sink", "softcap", "silu over a length"])
def test_rows_that_see_nothing(name: str) -> None:
    check(cases(2, 2)[name], cm.where(lambda q, kv: (q % 3 == 0) & (kv < 100)), 140, 140)
    check(cases(2, 2)[name], cm.padding(torch.zeros(1, dtype=torch.int32)), 140, 140)


def test_a_negative_scale() -> None:
    check(cases(2, 2)["alibi"], cm.causal(), 140, 140, scale=-0.125)


COMPILED = [
    (name, head_dim)
    for head_dim in (64, 128)
    for name in ("softcap", "alibi", "sink", "silu over a length", "softcap of alibi, and a sink")
]


@pytest.mark.parametrize(("name", "head_dim"), [*COMPILED, ("relative bias", 64)])
def test_loops_spill_no_registers(name: str, head_dim: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype = torch.bfloat16
    triton = pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    config = HopperConfig.choose(head_dim, ELEMENT[dtype], keeps_peaks=False)
    module = kernel_of(cases(2, 2)[name].score.plan.text, head_dim, dtype, config)
    path = tmp_path / "attention.ttgir"
    path.write_text(print_generic(legalize(module.clone(), triton.__version__)))
    options = {"enable_fp_fusion": True}
    kernel = triton.compile(str(path), target=parse_target("cuda:90").for_triton(), options=options)
    code = machine_code(kernel.asm["cubin"], tmp_path)
    bodies = visits(code, head_dim)
    assert len(bodies) >= 4
    for body in bodies:
        assert not any("LDL" in line or "STL" in line for line in body), "registers are spilled"
    if "softcap" in name or "silu" in name:
        assert any("MUFU.TANH" in line for line in code)
