"""Attention on the CPU that follows a descriptor tile by tile, as the device's kernel does: same visits, same skips."""

from __future__ import annotations

import torch

from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.visits import Piece, key_heads, pieces, shares


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
    for b, batches in shares(layout.batch, query.shape[0]):
        for h, heads in shares(layout.heads, query.shape[1]):
            kv_heads = key_heads(heads, group)
            part = [x[batches, kv_heads] for x in (key, value)]
            for m in range(layout.query_tiles):
                rows = slice(m * layout.rows, min((m + 1) * layout.rows, layout.queries))
                found = pieces(descriptor, b, h, m, rows.stop - rows.start)
                tile_query = query[batches, heads, rows].to(work) * scale
                tile_out, tile_lse = _attend(tile_query, part[0], part[1], found)
                out[batches, heads, rows] = tile_out.to(out.dtype)
                lse[batches, heads, rows] = tile_lse
    return out, lse


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    found: list[Piece] | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One query tile [B, Hq, R, D], already scaled, with running maximum and sum over the pieces."""
    batch, heads, rows, dim = query.shape
    if found is None:
        return torch.full_like(query, torch.nan), torch.full_like(query[..., 0], torch.nan)
    kv_heads = key.shape[1]
    query = query.reshape(batch, kv_heads, -1, dim)
    top = torch.full_like(query[..., :1], -torch.inf)
    total, out = torch.zeros_like(top), torch.zeros_like(query)
    for keys, visible in found:
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
