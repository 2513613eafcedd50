"""Tiny random models of Transformers with compiled masks, against its own eager attention: outputs and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compare import assert_close, dense_attention, random_inputs

import compilemask as cm
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


def model_of(kind: str, implementation: str, **options: Any) -> Any:
    """A random model, the same for every implementation of attention."""
    sizes = SIZES | options
    if kind == "llama":
        config, model = transformers.LlamaConfig(**sizes), transformers.LlamaForCausalLM
    elif kind == "mistral":
        config, model = transformers.MistralConfig(**sizes), transformers.MistralForCausalLM
    elif kind == "gpt_oss":
        experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 9}
        config, model = transformers.GptOssConfig(**sizes, **experts), transformers.GptOssForCausalLM
    else:
        layers = ["sliding_attention", "full_attention"]
        config = transformers.Gemma3TextConfig(**sizes, layer_types=layers, sliding_window=9)
        model = transformers.Gemma3ForCausalLM
    torch.manual_seed(0)
    config._attn_implementation = implementation
    return model._from_config(config, attn_implementation=implementation)


def results_of(model: Any, seen: torch.Tensor | None, ids: torch.Tensor, **given: Any) -> list[torch.Tensor]:
    """Logits at positions that are `seen`, and gradients of all weights."""
    logits = model(input_ids=ids, use_cache=False, **given).logits
    logits = logits if seen is None else logits[seen]
    logits.square().mean().backward()
    return [logits, *(parameter.grad for parameter in model.parameters())]


def compare(kind: str, seen: torch.Tensor | None = None, config: dict[str, Any] | None = None, **given: Any) -> None:
    """Results with eager and with compiled attention."""
    models = [model_of(kind, name, **(config or {})).double() for name in ("eager", integration.NAME)]
    for expected, found in zip(*(results_of(model, seen, IDS, **given) for model in models), strict=True):
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
    there[1, 35:] = 0  # a window of 9 leaves each row a key: eager attention makes NaN of a row without one
    compare(kind, seen=there.bool(), attention_mask=there)


def test_decoding() -> None:
    eager, compiled = (model_of("llama", name).double() for name in ("eager", integration.NAME))
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(compiled.generate(IDS, **options), eager.generate(IDS, **options))


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_decoding_with_a_static_cache(kind: str) -> None:
    """The model is given a mask that was made for it before, and counts on in what the mask has its offset from."""
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "cache_implementation": "static"}
    options |= {"return_dict_in_generate": True, "output_logits": True}
    eager, compiled = (
        model_of(kind, name, **({"sliding_window": 7} if kind == "mistral" else {})).double().eval()
        for name in ("eager", integration.NAME)
    )
    found, expected = (model.generate(IDS, **options) for model in (compiled, eager))
    assert torch.equal(found.sequences, expected.sequences)
    for a, b in zip(found.logits, expected.logits, strict=True):
        assert_close(a, b, 1e-5)


def test_sinks() -> None:
    """In float32: the experts of the model take nothing else."""
    models = [model_of("gpt_oss", name) for name in ("eager", integration.NAME)]
    for model in models:
        for layer in model.model.layers:
            torch.nn.init.constant_(layer.self_attn.sinks, 2.0)
    for expected, found in zip(*(results_of(model, None, IDS) for model in models), strict=True):
        assert_close(found, expected, 1e-3)


def test_position_bias() -> None:
    """T5 adds what it has learned to scores, of its decoder and of its encoder, with padding."""
    sizes = {"vocab_size": 50, "d_model": 32, "d_kv": 8, "num_layers": 2, "num_heads": 4, "d_ff": 48}
    there = torch.ones(2, LENGTH, dtype=torch.long)
    there[1, 35:] = 0
    found = []
    for name in ("eager", integration.NAME):
        torch.manual_seed(0)
        config = transformers.T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0)
        model = transformers.T5ForConditionalGeneration._from_config(config, attn_implementation=name).double()
        logits = model(input_ids=IDS, attention_mask=there, decoder_input_ids=IDS[:, :17]).logits
        logits.square().mean().backward()
        found.append([logits, *(x.grad for x in model.parameters())])
    for a, b in zip(*found, strict=True):
        assert_close(a, b, 1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (2, 4)])
def test_bias_softcap_and_sinks_together(shape: tuple[int, int]) -> None:
    q, k, v = random_inputs(2, 4, 2, 9, 11, 8, torch.float64)
    bias, sinks = torch.randn(*shape, 9, 11, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    out, _ = integration.attention_forward(
        torch.nn.Module(), q, k, v, cm.full(), softcap=1.5, position_bias=bias, s_aux=sinks
    )
    scores = 1.5 * torch.tanh(q @ k.repeat_interleave(2, 1).mT / 8**0.5 / 1.5) + bias
    scores = torch.cat([scores, sinks.view(1, 4, 1, 1).expand(2, 4, 9, 1)], dim=-1)
    expected = scores.softmax(dim=-1)[..., :-1] @ v.repeat_interleave(2, 1)
    assert_close(out.transpose(1, 2), expected, 1e-6)


@pytest.mark.parametrize(
    ("said", "of_module", "causal"), [(None, True, True), (None, False, False), (False, True, False)]
)
def test_without_a_mask(said: bool | None, of_module: bool, causal: bool) -> None:
    """Attention that a model leaves without a mask is causal if the call or else the module says so."""
    module: Any = torch.nn.Module()
    module.is_causal = of_module
    q, k, v = random_inputs(1, 2, 2, 5, 9, 8, torch.float64)
    out, weights = integration.attention_forward(module, q, k, v, None, is_causal=said)
    visible = (cm.causal(align="bottom_right") if causal else cm.full()).dense(5, 9)
    assert weights is None
    assert_close(out.transpose(1, 2), dense_attention(q, k, v, visible)[0], 1e-12)


def test_scale_and_softcap() -> None:
    q, k, v = random_inputs(1, 2, 2, 9, 9, 8, torch.float64)
    out, _ = integration.attention_forward(torch.nn.Module(), q, k, v, cm.causal(), scaling=0.7, softcap=1.5)
    scores = 1.5 * torch.tanh(0.7 * q @ k.mT / 1.5)
    weights = scores.masked_fill(~cm.causal().dense(9, 9), -torch.inf).softmax(dim=-1)
    assert_close(out.transpose(1, 2), weights @ v, 1e-12)


def test_what_is_refused() -> None:
    q = torch.randn(1, 2, 5, 8)
    with pytest.raises(MaskError, match="dropout"):
        integration.attention_forward(torch.nn.Module(), q, q, q, None, dropout=0.1)
    for name in ("sinks", "block_indices"):
        with pytest.raises(MaskError, match=name):
            integration.attention_forward(torch.nn.Module(), q, q, q, None, **{name: torch.zeros(1)})
    with pytest.raises(MaskError, match="tensor"):
        integration.attention_forward(torch.nn.Module(), q, q, q, torch.ones(1, 1, 5, 5))
