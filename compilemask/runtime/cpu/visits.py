"""What a tile of a descriptor visits, on the CPU: positions, and which pairs are visible."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch

from compilemask.lowering.descriptor_layout import KEYS
from compilemask.runtime.cpu.bits import unpack
from compilemask.runtime.descriptor import Descriptor

KEYS_AT_ONCE = 2048

Piece = tuple[torch.Tensor, torch.Tensor | None]
"""Keys [n], and which of them each row sees, [rows, n], or None where all are."""


def pieces(descriptor: Descriptor, b: int, h: int, m: int, rows: int) -> list[Piece] | None:
    """What tile `m` of `rows` rows of one mask visits; None if it found no room. Keys that no row sees are left out."""
    first, n_partial, n_runs = cast("list[int]", descriptor.tiles[b, h, m, :3].tolist())
    if n_partial < 0:
        return None
    visits = descriptor.visits[first : first + n_partial + n_runs].long()
    found: list[Piece] = []
    within = torch.arange(KEYS)
    for part in cast("tuple[torch.Tensor, ...]", visits[:n_partial].split(KEYS_AT_ONCE // KEYS)):
        visible = unpack(descriptor.patterns[part[:, 1], :rows]).transpose(0, 1).reshape(rows, -1)
        keys = (part[:, :1] * KEYS + within).reshape(-1)
        read = visible.any(dim=0)
        if read.any():
            found.append((keys[read], visible[:, read]))
    for begin, end in cast("list[list[int]]", (visits[n_partial:] * KEYS).tolist()):
        runs = cast("tuple[torch.Tensor, ...]", torch.arange(begin, end).split(KEYS_AT_ONCE))
        found.extend((keys, None) for keys in runs)
    return found


def shares(masks: int, size: int) -> Iterator[tuple[int, slice]]:
    """Each mask index along one dimension, with the positions that use it: all of them, or one each."""
    if masks == 1:
        yield 0, slice(0, size)
    else:
        for i in range(masks):
            yield i, slice(i, i + 1)


def key_heads(heads: slice, group: int) -> slice:
    """The key heads that query heads read."""
    return slice(heads.start // group, (heads.stop - 1) // group + 1)
