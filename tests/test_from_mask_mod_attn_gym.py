"""The mask_mods of attention-gym, unchanged: equal to their own dense masks, and as tight as intervals can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from test_levels_agree import check_levels
from torch.nn.attention.flex_attention import create_mask, noop_mask

import compilemask as cm
from compilemask.dialects import interval
from compilemask.lowering import pipeline

gym = pytest.importorskip("attn_gym.masks", reason="attn-gym is not installed")

PREDICATE = None
"""Decided by the predicate, between an inner and an outer set."""
MANY = interval.UNBOUNDED
"""As many intervals as fit the sequence."""


def offsets(length: int, documents: int = 5) -> torch.Tensor:
    """Offsets of documents of random lengths, one of them empty: int32 [documents + 1]."""
    generator = torch.Generator().manual_seed(length)
    cuts = torch.randint(0, length + 1, (documents - 1,), generator=generator).sort().values
    cuts[1:2] = cuts[0]
    return torch.tensor([0, *cuts.tolist(), length], dtype=torch.int32)


def shared_prefix(length: int) -> Any:
    """Two prompts with two answers each."""
    cuts = [length * part // 20 for part in (0, 3, 7, 10, 12, 16, 20)]
    documents = torch.tensor(cuts, dtype=torch.int32)
    return gym.generate_shared_prefix_mask_mod(documents, torch.tensor([0, 0, 0, 3, 3, 3], dtype=torch.int32))


def is_global(length: int) -> torch.Tensor:
    """A few global tokens."""
    return torch.arange(length) % 97 == 5


def vision(queries: int, keys: int) -> Any:
    """Images of 20 tokens, each seen by some rows."""
    images = -(-keys // 20)
    starts = torch.arange(images) * queries // images
    return gym.generate_vision_cross_attention_mask_mod(torch.stack([starts, starts + queries // 3], 1).int(), 20)


def tree(queries: int, keys: int) -> Any:
    """A draft tree behind a prefix."""
    from attn_gym.masks.jetspec import build_tree_ancestor_matrix

    parents = [-1, *[(node - 1) // 2 for node in range(1, queries)]]
    return gym.generate_jetspec_tree_causal_mask_mod(max(keys - queries, 0), build_tree_ancestor_matrix(parents, "cpu"))


def vsa(queries: int, keys: int) -> Any:
    """Two heads that choose 3 tiles of 16 keys each."""
    tiles = -(-queries // 16), -(-keys // 16)
    generator = torch.Generator().manual_seed(queries)
    chosen = torch.randint(0, tiles[1], (1, 2, tiles[0], 3), generator=generator)
    return gym.generate_vsa_mask_mod(chosen, 16)


def vsa_padding(keys: int) -> Any:
    """Tiles of 16 keys, of which the last ones are padding."""
    from attn_gym.masks.vsa import generate_vsa_padding_mask_mod

    sizes = torch.randint(0, 17, (-(-keys // 16),), generator=torch.Generator().manual_seed(keys))
    return generate_vsa_padding_mask_mod(sizes, 16)


class Expected(NamedTuple):
    """A mask_mod for lengths, and how many intervals a row has at most."""

    make: Callable[[int, int], Any]
    arity: int | None
    sizes: tuple[tuple[int, int], ...] = ((1, 1), (257, 257), (300, 130), (130, 300))


SQUARE = ((16, 16), (256, 256), (400, 400))

MASKS: dict[str, Expected] = {
    "noop": Expected(lambda q, k: noop_mask, 1),
    "causal": Expected(lambda q, k: gym.causal_mask, 1),
    "sliding window": Expected(lambda q, k: gym.generate_sliding_window(100), 1),
    "prefix lm": Expected(lambda q, k: gym.generate_prefix_lm_mask(70), 1),
    "document": Expected(lambda q, k: gym.generate_doc_mask_mod(noop_mask, offsets(max(q, k))), 1),
    "document causal": Expected(lambda q, k: gym.generate_doc_mask_mod(gym.causal_mask, offsets(max(q, k))), 1),
    "document window": Expected(
        lambda q, k: gym.generate_doc_mask_mod(gym.generate_sliding_window(20), offsets(max(q, k))), 1
    ),
    "document prefix lm": Expected(
        lambda q, k: gym.generate_doc_mask_mod(gym.generate_prefix_lm_mask(20), offsets(max(q, k))), 1
    ),
    "packed causal document": Expected(lambda q, k: gym.generate_packed_causal_doc_mask_mod(offsets(max(q, k))), 1),
    "shared prefix": Expected(lambda q, k: shared_prefix(max(q, k)), 2),
    "batchified causal": Expected(lambda q, k: gym.batchify_mask_mod(gym.causal_mask, 48), 1),
    "block diffusion": Expected(lambda q, k: gym.generate_block_diffusion_mask(160, 32), MANY),
    "natten": Expected(lambda q, k: gym.generate_natten(20, 20, 7, 5), 7),
    "tiled natten": Expected(lambda q, k: gym.generate_tiled_natten(16, 16, 5, 5, 4, 4), PREDICATE),
    "morton natten": Expected(lambda q, k: gym.generate_morton_natten(16, 16, 5, 5), PREDICATE, SQUARE[:2]),
    "sta 2d": Expected(lambda q, k: gym.generate_sta_mask_mod_2d((24, 16), (12, 12), (4, 4), 20), 7),
    "sta 3d": Expected(lambda q, k: gym.generate_sta_mask_mod_3d((4, 8, 12), (2, 4, 4), (2, 2, 2), 16), 9),
    "dilated window": Expected(lambda q, k: gym.generate_dilated_sliding_window(40, 2), PREDICATE),
    "global window": Expected(lambda q, k: gym.generate_global_sliding_window(20, is_global(max(q, k))), PREDICATE),
    "svg spatial": Expected(lambda q, k: gym.generate_spatial_head_mask_mod(30, 6, 64, 2), 2),
    "svg temporal": Expected(lambda q, k: gym.generate_temporal_head_mask_mod(30, 6, 64, 2), MANY),
    "vision": Expected(vision, PREDICATE),
    "jetspec training": Expected(lambda q, k: gym.generate_jetspec_training_mask_mod(50, 32), 2),
    "jetspec tree": Expected(tree, PREDICATE, ((7, 7), (31, 131))),
    "vsa": Expected(vsa, PREDICATE),
    "vsa padding": Expected(lambda q, k: vsa_padding(k), PREDICATE),
}


def arity(mask: cm.Mask) -> int | None:
    """How many intervals a row has at most; None if a predicate decides."""
    func = pipeline.interval_of(pipeline.lower(mask.module(), "interval"))
    end = func.body.block.last_op
    assert isinstance(end, interval.ReturnOp)
    return None if isinstance(end.value.owner, interval.BetweenOp) else interval.set_of(end.value).count


@pytest.mark.parametrize(("name", "size"), [(name, size) for name, case in MASKS.items() for size in case.sizes])
def test_equals_its_dense_mask(name: str, size: tuple[int, int]) -> None:
    mask_mod = MASKS[name].make(*size)
    heads = 2 if name == "vsa" else None
    mask = cm.from_mask_mod(mask_mod, H=heads)
    expected = create_mask(mask_mod, None, heads, *size, device="cpu")
    assert torch.equal(mask.dense(*size), expected.expand(mask.dense(*size).shape))
    check_levels(mask, *size)


@pytest.mark.parametrize("name", MASKS)
def test_arity(name: str) -> None:
    assert arity(cm.from_mask_mod(MASKS[name].make(300, 300))) == MASKS[name].arity


def test_block_masks() -> None:
    from attn_gym.masks.causal import create_causal_block_mask_fast
    from attn_gym.masks.vsa import create_vsa_block_mask

    fast = cm.from_block_mask(create_causal_block_mask_fast(1, 1, 300, 300, torch.device("cpu")))
    assert torch.equal(fast.dense(300, 300), cm.causal().dense(300, 300))
    check_levels(fast, 300, 300)
    chosen = torch.tensor([[[[0, 2], [1, 2], [0, 1]]]], dtype=torch.int32)
    seen = torch.zeros(3, 3, dtype=torch.bool).scatter(1, chosen[0, 0].long(), True)
    expected = seen.repeat_interleave(128, 0).repeat_interleave(128, 1)
    whole = cm.from_block_mask(create_vsa_block_mask(chosen, 128, 3))
    assert torch.equal(whole.dense(384, 384)[0, 0], expected)
    sizes = torch.tensor([128, 50, 128], dtype=torch.int32)
    padded = cm.from_block_mask(create_vsa_block_mask(chosen, 128, 3, sizes), blocks=True)
    expected[:, 128 + 50 : 256] = False
    assert torch.equal(padded.dense(384, 384)[0, 0], expected)
    check_levels(padded, 384, 384)
