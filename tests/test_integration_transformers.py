"""Tiny random models of Transformers with compiled masks, against its own eager attention: outputs and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compare import assert_close

from compilemask.errors import MaskError

transformers: Any = pytest.importorskip("transformers")
integration: Any = pytest.importorskip("compilemask.integrations.transformers")

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}
LENGTH = 40
IDS = torch.randint(0, 50, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def models(kind: str, **options: Any) -> list[Any]:
    """The same random model with eager and with compiled attention."""
    if kind == "llama":
        config, model = transformers.LlamaConfig(**SIZES, **options), transformers.LlamaForCausalLM
    elif kind == "mistral":
        config, model = transformers.MistralConfig(**SIZES, **options), transformers.MistralForCausalLM
    else:
        layers = ["sliding_attention", "full_attention"]
        config = transformers.Gemma3TextConfig(**SIZES, layer_types=layers, sliding_window=9, **options)
        model = transformers.Gemma3ForCausalLM
    found = []
    for implementation in ("eager", integration.NAME):
        torch.manual_seed(0)
        config._attn_implementation = implementation
        found.append(model._from_config(config, attn_implementation=implementation).double())
    return found


def compare(kind: str, seen: torch.Tensor | None = None, config: dict[str, Any] | None = None, **given: Any) -> None:
    """Logits at positions that are `seen`, and gradients of all weights."""
    results = []
    for model in models(kind, **(config or {})):
        logits = model(input_ids=IDS, use_cache=False, **given).logits
        logits = logits if seen is None else logits[seen]
        logits.square().mean().backward()
        results.append([logits, *(parameter.grad for parameter in model.parameters())])
    for expected, found in zip(*results, strict=True):
        assert_close(found, expected, 1e-6)


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma"])
def test_causal_and_windows(kind: str) -> None:
    compare(kind, config={"sliding_window": 7} if kind == "mistral" else None)


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_packed_documents(kind: str) -> None:
    positions = torch.cat([torch.arange(n) for n in (13, 1, 26)])
    compare(kind, position_ids=positions.expand(2, -1))


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_padding(kind: str) -> None:
    there = torch.ones(2, LENGTH, dtype=torch.long)
    there[1, 25:] = 0
    compare(kind, seen=there.bool(), attention_mask=there)


def test_decoding() -> None:
    eager, compiled = models("llama")
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(compiled.generate(IDS, **options), eager.generate(IDS, **options))


def test_what_is_refused() -> None:
    q = torch.randn(1, 2, 5, 8)
    with pytest.raises(MaskError, match="dropout"):
        integration.attention_forward(torch.nn.Module(), q, q, q, None, dropout=0.1)
    with pytest.raises(MaskError, match="tensor"):
        integration.attention_forward(torch.nn.Module(), q, q, q, torch.ones(1, 1, 5, 5))
