"""The masks that benchmarks time, said twice: in CompileMask's language and as a FlexAttention predicate."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch

import compilemask as cm

Predicate = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

TEXT = 512
CONTEXTS = 100
RADIUS = 16
IMAGES = {1024: (16, 32), 4096: (56, 64), 8192: (80, 96), 16384: (124, 128), 32768: (168, 192)}
IMAGES |= {16756: (124, 131), 32732: (180, 179)}
"""Height and width of CLEAR's image, so that text and image fill the sequence; the last two go into patches badly."""
NATTEN2D, NATTEN2D_WINDOW = (128, 128), 13
NATTEN3D_WINDOW = (5, 9, 9)
VIDEOS = {16384: (16, 32, 32), 108000: (30, 45, 80)}
"""Frames, height and width of NATTEN's video; only the larger one is visited in fewer tiles by patches."""


@dataclass(frozen=True)
class Case:
    """One mask at one length: our mask, the same as a predicate (b, h, q, kv), and how many pairs it shows."""

    name: str
    length: int
    mask: cm.Mask
    predicate: Predicate
    visible_pairs: int

    def flops(self, batch: int, heads: int, head_dim: int) -> int:
        """Of the forward pass, on visible pairs only: two products of 2 D operations each."""
        return 4 * self.visible_pairs * head_dim * heads * batch


def _count(predicate: Predicate, length: int, device: str) -> int:
    """Visible pairs, counted in blocks of rows."""
    keys = torch.arange(length, device=device)[None]
    zero = torch.zeros((), dtype=torch.int64, device=device)
    total = 0
    for start in range(0, length, 1024):
        rows = torch.arange(start, min(start + 1024, length), device=device)[:, None]
        total += int(predicate(zero, zero, rows, keys).expand(len(rows), length).sum())
    return total


def answer_offsets(length: int, seed: int = 0) -> list[int]:
    """A prompt of an eighth of the tokens, then 8 answers of random lengths (weights 0.5 + U)."""
    rng = random.Random(seed)
    weights = [0.5 + rng.random() for _ in range(8)]
    prompt = length // 8
    lengths = [int((length - prompt) * weight / sum(weights)) for weight in weights]
    lengths[-1] += length - prompt - sum(lengths)
    return list(accumulate([0, prompt, *lengths]))


def document_offsets(length: int, seed: int = 0) -> list[int]:
    """8 documents of random lengths."""
    rng = random.Random(seed)
    weights = [0.5 + rng.random() for _ in range(8)]
    lengths = [int(length * weight / sum(weights)) for weight in weights]
    lengths[-1] += length - sum(lengths)
    return list(accumulate([0, *lengths]))


def _ids(offsets: list[int], device: str) -> torch.Tensor:
    lengths = torch.tensor(offsets, device=device).diff()
    return torch.repeat_interleave(torch.arange(len(lengths), dtype=torch.int32, device=device), lengths)


def _table(offsets: list[int], device: str) -> torch.Tensor:
    return torch.tensor(offsets, dtype=torch.int32, device=device)


def _causal(length: int, device: str) -> tuple[cm.Mask, Predicate]:
    return cm.causal(), lambda b, h, q, kv: kv <= q


def _hstu(length: int, device: str) -> tuple[cm.Mask, Predicate]:
    history = length - length // 8
    return cm.hstu(history, CONTEXTS), lambda b, h, q, kv: ((kv < history) & ((kv <= q) | (q < CONTEXTS))) | (kv == q)


def _shared_prompt(length: int, device: str) -> tuple[cm.Mask, Predicate]:
    offsets = answer_offsets(length)
    ids = _ids(offsets, device)
    mask = cm.shared_prompt(_table(offsets, device))
    return mask, lambda b, h, q, kv: (kv <= q) & ((ids[kv] == 0) | (ids[kv] == ids[q]))


def _clear(length: int, device: str, radius: int = RADIUS) -> tuple[cm.Mask, Predicate]:
    height, width = IMAGES[length]

    def predicate(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        qy, qx, ky, kx = (q - TEXT) // width, (q - TEXT) % width, (kv - TEXT) // width, (kv - TEXT) % width
        return (q < TEXT) | (kv < TEXT) | ((qy - ky) ** 2 + (qx - kx) ** 2 < radius * radius)

    return cm.clear(height, width, radius, TEXT), predicate


def _near(sizes: tuple[int, ...], window: tuple[int, ...], q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    """Whether a key lies in the window around a query along each axis, which moves inward at the borders.

    In comparisons alone: FlexAttention's backends do not come to an end over a clamp, or refuse it.
    """
    found, stride = kv >= 0, math.prod(sizes)
    for size, width in zip(sizes, window, strict=True):
        stride //= size
        first, at = q // stride % size - width // 2, kv // stride % size
        found = found & ((at >= first) | (at >= size - width)) & ((at < first + width) | (at < width))
    return found


def _natten2d(length: int, device: str) -> tuple[cm.Mask, Predicate]:
    window = (NATTEN2D_WINDOW, NATTEN2D_WINDOW)
    return cm.natten2d(*NATTEN2D, NATTEN2D_WINDOW), lambda b, h, q, kv: _near(NATTEN2D, window, q, kv)


def _natten3d(length: int, device: str) -> tuple[cm.Mask, Predicate]:
    video = VIDEOS[length]
    return cm.natten3d(*video, NATTEN3D_WINDOW), lambda b, h, q, kv: _near(video, NATTEN3D_WINDOW, q, kv)


def _window(length: int, device: str) -> tuple[cm.Mask, Predicate]:
    return cm.window(1023, 0), lambda b, h, q, kv: (kv <= q) & (q - kv < 1024)


def _documents(length: int, device: str) -> tuple[cm.Mask, Predicate]:
    offsets = document_offsets(length)
    ids = _ids(offsets, device)
    mask = cm.document(_table(offsets, device)) & cm.causal()
    return mask, lambda b, h, q, kv: (kv <= q) & (ids[kv] == ids[q])


MASKS: dict[str, Callable[[int, str], tuple[cm.Mask, Predicate]]] = {
    "causal": _causal,
    "hstu": _hstu,
    "rm": _shared_prompt,
    "clear": _clear,
    "clear8": partial(_clear, radius=8),
    "clear32": partial(_clear, radius=32),
    "natten2d": _natten2d,
    "natten3d": _natten3d,
    "window": _window,
    "documents": _documents,
}


def case(name: str, length: int, device: str) -> Case:
    """A mask by name, for a length."""
    mask, predicate = MASKS[name](length, device)
    return Case(name, length, mask, predicate, _count(predicate, length, device))
