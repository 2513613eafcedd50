"""Hugging Face Transformers: importing this module registers the attention implementation "compilemask".

    import compilemask.integrations.transformers
    model = AutoModelForCausalLM.from_config(config, attn_implementation="compilemask")

A model's own mask (causal, sliding windows, prefixes, padding, packed documents by their position_ids) is solved from
the predicate that Transformers states it as, so models train unchanged. Source: "Attention interface" in Transformers'
documentation; Transformers 5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

import compilemask as cm
from compilemask.errors import MaskError, MissingDependencyError

try:
    from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
except ImportError as error:
    raise MissingDependencyError(f"compilemask.integrations.transformers needs transformers 5: {error}") from None

NAME = "compilemask"
"""The name of the attention implementation."""
DOCUMENTS = "packed_sequence_mask"
"""Transformers' name for which document each position belongs to: numbers that ascend."""


def compiled_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    **others: Any,
) -> cm.Compiled:
    """A model's mask, from its predicate (b, h, q, kv) and its padding, bool [B, kv_length] or more, if there is any.

    Raises MaskError if the predicate cannot be read.
    """
    if attention_mask is not None:
        padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
        assert padding is not None
        padded = cast("Any", masking_utils.padding_mask_function(padding))
        mask_function = cast("Any", masking_utils.and_masks(mask_function, padded))
    if q_offset or kv_offset:
        mask_function = cast("Any", masking_utils.add_offsets_to_mask_function(mask_function, q_offset, kv_offset))
    mask = cm.from_mask_mod(mask_function)
    if any(parameter.name == DOCUMENTS for parameter in mask.parameters):
        mask = cm.from_mask_mod(mask_function, sorted_tables=[DOCUMENTS])
    return cm.compile(mask)


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: cm.Compiled | cm.Mask | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as Transformers calls it: query [B, Hq, Sq, D], key and value [B, Hkv, Skv, D]; out [B, Sq, Hq, D].

    Raises MaskError if the mask is a tensor or weights are to be dropped, and what `compilemask.attention` raises.
    """
    if dropout:
        raise MaskError(f"attention dropout is {dropout}; attn_implementation={NAME!r} has none, set it to 0")
    if isinstance(attention_mask, torch.Tensor):
        raise MaskError(f"the mask is a tensor; attn_implementation={NAME!r} takes masks of compilemask")
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        attention_mask = cm.causal(align="bottom_right") if causal else cm.full()
    score = None if softcap is None else cm.score.softcap(softcap)
    out = cm.attention(query, key, value, attention_mask, scale=scaling, score=score)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, compiled_mask)
