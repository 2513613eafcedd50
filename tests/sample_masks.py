"""Masks of every kind for lengths of every size, for tests that compare with the dense oracle."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

import compilemask
from compilemask.language.mask import Mask


def random_offsets(length: int, segments: int, batch: int | None = None) -> torch.Tensor:
    """Offsets from 0 to length with an empty segment among them: int32 [segments + 1], or [batch, segments + 1]."""
    random = np.random.default_rng(length + segments)
    rows = []
    for _ in range(batch or 1):
        cuts = np.sort(random.integers(0, length + 1, segments - 1))
        cuts[len(cuts) // 2] = cuts[max(len(cuts) // 2 - 1, 0)]
        rows.append([0, *cuts.tolist(), length])
    offsets = torch.tensor(rows, dtype=torch.int32)
    return offsets if batch else offsets[0]


def _clear(queries: int, keys: int) -> Mask:
    text = min(queries // 8, 512)
    width = max(int((queries - text) ** 0.5), 1)
    return compilemask.clear(max((queries - text) // width, 1), width, 5, text=text)


def _labels(queries: int, keys: int) -> Mask:
    values = np.random.default_rng(queries).integers(0, 4, 1 + max(queries, keys) // 150).repeat(150)
    label = torch.from_numpy(values.astype(np.int32))
    return compilemask.causal() & compilemask.where(lambda q, kv, label: label[q] == label[kv], label=label)


MASKS: dict[str, Callable[[int, int], Mask]] = {
    "full": lambda queries, keys: compilemask.full(),
    "causal": lambda queries, keys: compilemask.causal(),
    "causal from the end": lambda queries, keys: compilemask.causal(align="bottom_right"),
    "window": lambda queries, keys: compilemask.window(200, 70),
    "sink and window": lambda queries, keys: compilemask.causal() & (compilemask.cols(0, 4) | compilemask.window(130)),
    "outside a window": lambda queries, keys: ~compilemask.window(128, 128),
    "hstu": lambda queries, keys: compilemask.hstu(queries - queries // 8, min(100, queries // 2)),
    "hstu per batch": lambda queries, keys: compilemask.hstu(torch.tensor([queries // 2, queries]), queries // 4),
    "documents": lambda queries, keys: compilemask.document(random_offsets(queries, 6)),
    "causal documents per batch": lambda queries, keys: (
        compilemask.causal() & compilemask.document(random_offsets(queries, 5, batch=2))
    ),
    "shared prompt": lambda queries, keys: compilemask.shared_prompt(random_offsets(queries, 5)),
    "clear": _clear,
    "labels": _labels,
    "scattered": lambda queries, keys: compilemask.where(lambda q, kv: (q * 7 + kv * 13) % 11 < 2),
    "padding per head": lambda queries, keys: compilemask.padding(
        torch.tensor([[keys, keys // 2, 0, keys // 3]], dtype=torch.int32)
    ),
}
"""By name: (queries, keys) -> mask. Masks per batch have 2 batches, masks per head 4 heads."""
