"""Attention on the CPU that follows a descriptor tile by tile, as the device's kernel does: same visits, same skips."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from compilemask.lowering.descriptor_layout import KEYS
from compilemask.runtime.bits import unpack
from compilemask.runtime.descriptor import Descriptor

KEYS_AT_ONCE = 2048


def attention_cpu(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, descriptor: Descriptor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [B, Hq, Sq, D] in the input type and lse [B, Hq, Sq] in float32 (float64 for float64 inputs).

    Rows that see no key give 0 and -inf; rows of tiles that found no room in the descriptor give NaN. Keys that no row
    of a tile sees are not read. Arguments must have been checked.
    """
    work = torch.float64 if query.dtype == torch.float64 else torch.float32
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    lse = torch.empty(query.shape[:3], dtype=work)
    if not out.numel():
        return out, lse
    group = query.shape[1] // key.shape[1]
    layout = descriptor.layout
    for b, batches in _shares(layout.batch, query.shape[0]):
        for h, heads in _shares(layout.heads, query.shape[1]):
            kv_heads = _key_heads(heads, group)
            part = [x[batches, kv_heads] for x in (key, value)]
            for m in range(layout.query_tiles):
                rows = slice(m * layout.rows, min((m + 1) * layout.rows, layout.queries))
                pieces = _pieces(descriptor, b, h, m, rows.stop - rows.start)
                tile_query = query[batches, heads, rows].to(work) * scale
                tile_out, tile_lse = _attend(tile_query, part[0], part[1], pieces)
                out[batches, heads, rows] = tile_out.to(out.dtype)
                lse[batches, heads, rows] = tile_lse
    return out, lse


def _shares(masks: int, size: int) -> Iterator[tuple[int, slice]]:
    """Each mask index along one dimension, with the positions that use it: all of them, or one each."""
    if masks == 1:
        yield 0, slice(0, size)
    else:
        for i in range(masks):
            yield i, slice(i, i + 1)


def _key_heads(heads: slice, group: int) -> slice:
    return slice(heads.start // group, (heads.stop - 1) // group + 1)


def _pieces(
    descriptor: Descriptor, b: int, h: int, m: int, rows: int
) -> list[tuple[torch.Tensor, torch.Tensor | None]] | None:
    """What a query tile visits: (keys [n], visible [rows, n] or None where all are); None if it found no room."""
    first, n_partial, n_runs = descriptor.tiles[b, h, m, :3].tolist()
    if n_partial < 0:
        return None
    visits = descriptor.visits[first : first + n_partial + n_runs].long()
    pieces: list[tuple[torch.Tensor, torch.Tensor | None]] = []
    within = torch.arange(KEYS)
    for part in visits[:n_partial].split(KEYS_AT_ONCE // KEYS):
        visible = unpack(descriptor.patterns[part[:, 1], :rows]).transpose(0, 1).reshape(rows, -1)
        keys = (part[:, :1] * KEYS + within).reshape(-1)
        read = visible.any(dim=0)
        if read.any():
            pieces.append((keys[read], visible[:, read]))
    for begin, end in (visits[n_partial:] * KEYS).tolist():
        pieces.extend((keys, None) for keys in torch.arange(begin, end).split(KEYS_AT_ONCE))
    return pieces


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pieces: list[tuple[torch.Tensor, torch.Tensor | None]] | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One query tile [B, Hq, R, D], already scaled, with running maximum and sum over the pieces."""
    batch, heads, rows, dim = query.shape
    if pieces is None:
        return torch.full_like(query, torch.nan), torch.full_like(query[..., 0], torch.nan)
    kv_heads = key.shape[1]
    query = query.reshape(batch, kv_heads, -1, dim)
    top = torch.full_like(query[..., :1], -torch.inf)
    total, out = torch.zeros_like(top), torch.zeros_like(query)
    for keys, visible in pieces:
        scores = query @ key[:, :, keys].to(query.dtype).transpose(-1, -2)
        if visible is not None:
            scores = scores.view(batch, kv_heads, -1, rows, len(keys)).masked_fill(~visible, -torch.inf).view_as(scores)
        new_top = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
        shift = new_top.masked_fill(new_top == -torch.inf, 0.0)
        weights = torch.exp(scores - shift)
        fade = torch.exp(top - shift)
        total = total * fade + weights.sum(dim=-1, keepdim=True)
        out = out * fade + weights @ value[:, :, keys].to(query.dtype)
        top = new_top
    lse = top + torch.log(total)
    out = out / total.masked_fill(total == 0, 1.0)
    return out.view(batch, heads, rows, dim), lse.view(batch, heads, rows)
