"""Masks that people really use, as compositions of the language, against their predicates in the literature."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import reduce

import numpy as np
import pytest
from numpy.typing import NDArray

import compilemask as cm

N = 263
RANDOM = random.Random(0)
EVICT = [RANDOM.randint(0, N) for _ in range(N)]
PARENT = [-1, 0, 0, 1, 1, 2, 4, 4]
OFFSETS = [0, 60, 60, 131, 200, N]
STARTS = np.cumsum([i % 37 == 0 for i in range(N)])

Predicate = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.bool_]]


def document_of(position: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.searchsorted(OFFSETS, position, side="right") - 1


def union(masks: list[cm.Mask]) -> cm.Mask:
    return reduce(lambda a, b: a | b, masks)


def draft_tree() -> cm.Mask:
    """Bit a of ancestors[i] says that draft token i sees draft token a."""
    ancestors: list[int] = []
    for i, parent in enumerate(PARENT):
        ancestors.append(1 << i | (ancestors[parent] if parent >= 0 else 0))
    prefix = N - len(PARENT)

    def sees(q, kv, ancestors):
        return (kv < prefix) & (kv <= q) | (q >= prefix) & (kv >= prefix) & (
            (ancestors[q - prefix] >> abs(kv - prefix) % 31) & 1 == 1
        )

    return cm.where(sees, ancestors=ancestors)


def draft_predicate(q: NDArray[np.int64], kv: NDArray[np.int64]) -> NDArray[np.bool_]:
    prefix = N - len(PARENT)
    tree = np.eye(len(PARENT), dtype=bool)
    for i, parent in enumerate(PARENT):
        if parent >= 0:
            tree[i] |= tree[parent]
    drafts = tree[np.clip(q - prefix, 0, None), np.clip(kv - prefix, 0, None)]
    return np.where((q >= prefix) & (kv >= prefix), drafts, (kv < prefix) & (kv <= q))


CATALOGUE: dict[str, tuple[cm.Mask, Predicate]] = {
    "attention-gym sliding window": (cm.window(50), lambda q, kv: (q >= kv) & (q - kv <= 50)),
    "Hugging Face sliding window": (cm.window(50 - 1), lambda q, kv: (q - kv >= 0) & (q - kv < 50)),
    "bidirectional window": (cm.window(20, 20), lambda q, kv: np.abs(q - kv) <= 20),
    "chunked local (Llama 4)": (
        cm.causal() & cm.document([*range(0, N, 64), N]),
        lambda q, kv: (q // 64 == kv // 64) & (kv <= q),
    ),
    "fixed blocks": (cm.document([*range(0, N, 32), N]), lambda q, kv: q // 32 == kv // 32),
    "prefix-LM": (cm.causal() | cm.cols(0, 77), lambda q, kv: (kv < 77) | (kv <= q)),
    "causal document": (
        cm.causal() & cm.document(OFFSETS),
        lambda q, kv: (document_of(q) == document_of(kv)) & (kv <= q),
    ),
    "causal blockwise": (
        cm.causal() & (cm.document(OFFSETS) | cm.rows(OFFSETS[-2], N)),
        lambda q, kv: (kv <= q) & ((document_of(q) == document_of(kv)) | (q >= OFFSETS[-2])),
    ),
    "Longformer": (
        cm.window(16, 16) | cm.rows(0, 4) | cm.cols(0, 4),
        lambda q, kv: (np.abs(q - kv) <= 16) | (q < 4) | (kv < 4),
    ),
    "random eviction": (
        cm.causal() & cm.where(lambda q, kv, evict: q < evict[kv], evict=EVICT),
        lambda q, kv: (kv <= q) & (q < np.array(EVICT)[kv]),
    ),
    "sink and window (StreamingLLM)": (
        cm.causal() & (cm.window(39) | cm.cols(0, 4)),
        lambda q, kv: (kv <= q) & ((q - kv < 40) | (kv < 4)),
    ),
    "dilated window": (
        cm.window(64, 64) & cm.where(lambda q, kv: (q - kv) % 2 == 0),
        lambda q, kv: (np.abs(q - kv) <= 64) & ((q - kv) % 2 == 0),
    ),
    "strided sparse": (
        cm.window(15) | cm.causal() & cm.where(lambda q, kv, step: (q - kv) % step == 0, step=16),
        lambda q, kv: (kv <= q) & ((q - kv < 16) | ((q - kv) % 16 == 0)),
    ),
    "draft tree (Medusa)": (draft_tree(), draft_predicate),
    "Transfusion": (
        cm.causal() | union([cm.rows(o, N) & cm.cols(0, o + length) for o, length in ((20, 30), (120, 64))]),
        lambda q, kv: (kv <= q) | ((q >= 20) & (kv < 50)) | ((q >= 120) & (kv < 184)),
    ),
    "PaliGemma": (
        cm.where(lambda q, kv, c: c[kv] <= c[q], c=STARTS.tolist()) & cm.padding(N - 9),
        lambda q, kv: (STARTS[kv] <= STARTS[q]) & (kv < N - 9),
    ),
    "slices (MagiAttention)": (
        (cm.rows(0, 90) & cm.cols(0, 50)) | (cm.rows(90, 200) & cm.cols(60, 170) & cm.band(upper=-30)),
        lambda q, kv: (q < 90) & (kv < 50) | (q >= 90) & (q < 200) & (kv >= 60) & (kv < 170) & (kv <= q - 30),
    ),
    "padded keys (xFormers)": (cm.cols(11, 11 + 90), lambda q, kv: (kv >= 11) & (kv < 101) & (q >= 0)),
    "periodic": (cm.where(lambda q, kv: q % 128 >= kv % 128), lambda q, kv: q % 128 >= kv % 128),
    "Transformer-XL chunks": (
        cm.causal() & cm.where(lambda q, kv: (q // 48 - 1 <= kv // 48) & (kv // 48 <= q // 48)),
        lambda q, kv: (kv <= q) & (q // 48 - kv // 48 <= 1) & (kv // 48 <= q // 48),
    ),
}


@pytest.mark.parametrize("name", CATALOGUE)
def test_composition_is_the_published_predicate(name: str) -> None:
    mask, predicate = CATALOGUE[name]
    q, kv = np.arange(N)[:, None], np.arange(N)[None, :]
    np.testing.assert_array_equal(mask.dense(N, N)[0, 0].numpy(), np.broadcast_to(predicate(q, kv), (N, N)))
