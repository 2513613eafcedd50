"""Hugging Face Transformers: importing this module registers the attention implementation "compilemask".

    import compilemask.integrations.transformers
    model = AutoModelForCausalLM.from_config(config, attn_implementation="compilemask")

A model's own mask (causal, sliding windows, prefixes, padding, packed documents by their position_ids) is solved from
the predicate that Transformers states it as, so models train unchanged. Source: "Attention interface" in Transformers'
documentation; Transformers 5.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
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
UNKNOWN = ("sinks", "block_indices")
"""What some models hand to attention that is not done here: a sink for each position, blocks chosen at run time."""


class ModelMask(cm.Compiled):
    """A model's mask. Generation with a static cache hands it to the model, which makes its mask of what it is given:
    of this the same again, as of any mask that says that it has four dimensions.
    """

    ndim = 4

    def __init__(self, mask: cm.Compiled, shape: tuple[int, int, int, int]) -> None:
        super().__init__(mask.program, mask.parameters, mask.limits)
        self.shape = shape
        """[batch, 1, queries, keys]."""


def compiled_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int | torch.Tensor = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: torch.Tensor | ModelMask | None = None,
    **others: Any,
) -> ModelMask:
    """A model's mask, from its predicate (b, h, q, kv) and its padding, bool [B, kv_length] or more, if there is any.

    Raises MaskError if the predicate cannot be read.
    """
    if isinstance(attention_mask, ModelMask):
        return attention_mask
    # A static cache counts on in its own tensor before attention reads the mask.
    offsets: list[Any] = [x.clone() if isinstance(x, torch.Tensor) else x for x in (q_offset, kv_offset)]
    if attention_mask is not None:
        padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, offsets[1])
        assert padding is not None
        padded = cast("Any", masking_utils.padding_mask_function(padding))
        mask_function = cast("Any", masking_utils.and_masks(mask_function, padded))
    if any(isinstance(x, torch.Tensor) or x for x in offsets):
        mask_function = cast("Any", masking_utils.add_offsets_to_mask_function)(mask_function, *offsets)
    mask = cm.from_mask_mod(mask_function)
    if any(parameter.name == DOCUMENTS for parameter in mask.parameters):
        mask = cm.from_mask_mod(mask_function, sorted_tables=[DOCUMENTS])
    return ModelMask(cm.compile(mask), (batch_size, 1, q_length, kv_length))


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
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as Transformers calls it: query [B, Hq, Sq, D], key and value [B, Hkv, Skv, D]; out [B, Sq, Hq, D].

    `s_aux` [Hq] are sinks, `position_bias` [B or 1, Hq or 1, Sq, Skv or more] is added to scaled scores.

    Raises MaskError if the mask is a tensor, weights are to be dropped, or something else is asked for that is not
    done here, and what `compilemask.attention` raises.
    """
    for name in UNKNOWN:
        if others.get(name) is not None:
            raise MaskError(f"attention with {name} is not what attn_implementation={NAME!r} does")
    if dropout:
        raise MaskError(f"attention dropout is {dropout}; attn_implementation={NAME!r} has none, set it to 0")
    if isinstance(attention_mask, torch.Tensor):
        raise MaskError(f"the mask is a tensor; attn_implementation={NAME!r} takes masks of compilemask")
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        attention_mask = cm.causal(align="bottom_right") if causal else cm.full()
    score = _score(softcap, position_bias, s_aux)
    out = cm.attention(query, key, value, attention_mask, scale=scaling, score=score)
    return out.transpose(1, 2).contiguous(), None


def _score(
    softcap: float | None, position_bias: torch.Tensor | None, s_aux: torch.Tensor | None
) -> cm.score.Score | None:
    """What is done to scores, in the order in which models do it."""
    done: list[cm.score.Score] = []
    if softcap is not None:
        done.append(cm.score.softcap(softcap))
    if position_bias is not None:
        done.append(_bias(position_bias))
    if s_aux is not None:
        done.append(cm.score.sink(s_aux))
    return reduce(lambda first, second: first >> second, done) if done else None


def _bias(bias: torch.Tensor) -> cm.score.Score:
    """Entry [b, h, q, kv] added to each score; all batches or heads may share theirs."""
    batches, heads = bias.shape[:2]

    def add(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + bias[0 if batches == 1 else b, 0 if heads == 1 else h, q, kv]

    return cm.score.from_score_mod(add)


AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, compiled_mask)
