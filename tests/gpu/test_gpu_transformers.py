"""Tiny random models of Transformers on the GPU: compiled masks in 32 and 16 bits against its own eager attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compare import assert_close

pytest.importorskip("transformers", minversion="5")
pytest.importorskip("compilemask.integrations.transformers")

import test_integration_transformers as on_cpu

LENGTH = 300
SIZES = {"head_dim": 64, "hidden_size": 256, "max_position_embeddings": LENGTH}
PACKED = torch.cat([torch.arange(n) for n in (113, 1, 186)]).expand(2, -1)
KINDS = [("llama", {}), ("mistral", {"sliding_window": 70}), ("gemma", {})]


def results(kind: str, implementation: str, dtype: torch.dtype, options: dict[str, Any]) -> list[torch.Tensor]:
    """Logits and gradients of packed documents (a window of its own: of one)."""
    ids = torch.randint(0, 50, (2, LENGTH), generator=torch.Generator().manual_seed(1)).cuda()
    given = {} if kind == "mistral" else {"position_ids": PACKED.cuda()}
    model = on_cpu.model_of(kind, implementation, **SIZES, **options).cuda().to(dtype)
    return on_cpu.results_of(model, None, ids, **given)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_float32(kind: str, options: dict[str, Any]) -> None:
    expected = results(kind, "eager", torch.float32, options)
    found = results(kind, on_cpu.integration.NAME, torch.float32, options)
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, 1e-4)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_bfloat16_errs_no_more_than_eager_attention(kind: str, options: dict[str, Any]) -> None:
    exact = results(kind, "eager", torch.float32, options)
    eager = results(kind, "eager", torch.bfloat16, options)
    found = results(kind, on_cpu.integration.NAME, torch.bfloat16, options)
    for reference, theirs, ours in zip(exact, eager, found, strict=True):
        error = ((theirs.float() - reference).norm() / reference.norm()).item()
        assert_close(ours, reference, 1.5 * error + 2e-3)
