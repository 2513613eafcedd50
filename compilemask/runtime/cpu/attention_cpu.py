"""Attention on the CPU that follows a descriptor tile by tile, as the device's kernel does: same visits, same skips.

By a compiled function where there is one, else by operations of PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from compilemask.dialects.semantics.score import Pairs
from compilemask.runtime.cpu.attention_cpu_jit import attention_cpu_jit, takes
from compilemask.runtime.cpu.visits import Piece, key_heads, pieces, shares
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.patched import attend_in_patched_order
from compilemask.runtime.scoring import UNMODIFIED, Scoring


def attention_cpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    descriptor: Descriptor,
    scale: float,
    scoring: Scoring = UNMODIFIED,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [B, Hq, Sq, D] in the input type and lse [B, Hq, Sq] in float32 (float64 for float64 inputs).

    Rows that see no key give 0 and -inf; rows of tiles that found no room in the descriptor give NaN. Keys that no row
    of a tile sees are not read. Pointwise weights leave lse 0. Arguments must have been checked.
    """
    if descriptor.layout.patches is not None:
        return attend_in_patched_order(attention_cpu, query, key, value, descriptor, scale)
    if query.numel() and takes(query, scoring):
        return attention_cpu_jit(query, key, value, descriptor, scale)
    return attention_by_tiles(query, key, value, descriptor, scale, scoring)


def attention_by_tiles(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    descriptor: Descriptor,
    scale: float,
    scoring: Scoring = UNMODIFIED,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `attention_cpu`, by operations of PyTorch: of any type, with any score modification."""
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
                tile = _Tile(scoring, batches, heads, rows)
                tile_out, tile_lse = _attend(tile_query, part[0], part[1], found, tile)
                out[batches, heads, rows] = tile_out.to(out.dtype)
                lse[batches, heads, rows] = tile_lse
    return out, lse


@dataclass(frozen=True)
class _Tile:
    """Which rows a query tile has, and what is done to their scores."""

    scoring: Scoring
    batches: slice
    heads: slice
    rows: slice

    def scored(self, scores: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Scores [B, Hq, R, n] of keys [n], modified."""
        batch, head, row = (np.arange(int(x.start), int(x.stop)) for x in (self.batches, self.heads, self.rows))
        pairs = Pairs(batch[:, None, None, None], head[:, None, None], row[:, None], keys.numpy())
        return self.scoring.apply(scores, pairs)

    def sink(self, like: torch.Tensor) -> torch.Tensor:
        """Logits of the sink for rows [B, Hq, R]; -inf without one."""
        logits = self.scoring.sink
        if logits is None:
            return torch.full_like(like, -torch.inf)
        batches, heads = (
            part if size > 1 else slice(0, 1)
            for part, size in zip((self.batches, self.heads), logits.shape[:2], strict=True)
        )
        return logits.detach()[batches, heads].to(like.dtype).expand_as(like).clone()


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    found: list[Piece] | None,
    tile: _Tile,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One query tile [B, Hq, R, D], already scaled: what its scores over the pieces make of the values."""
    batch, heads, rows, dim = query.shape
    if found is None:
        return torch.full_like(query, torch.nan), torch.full_like(query[..., 0], torch.nan)
    groups = (batch, key.shape[1], -1)
    grouped = query.reshape(*groups, dim)

    def scores_and_values() -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
        for keys, visible in found:
            scores = grouped @ key[:, :, keys].to(query.dtype).transpose(-1, -2)
            scores = tile.scored(scores.view(batch, heads, rows, len(keys)), keys)
            yield scores, value[:, :, keys].to(query.dtype), visible

    def weigh(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return (weights.view(*groups, weights.shape[-1]) @ values).view(batch, heads, rows, dim)

    if tile.scoring.is_pointwise:
        out = torch.zeros_like(query)
        for scores, values, visible in scores_and_values():
            out += weigh(scores if visible is None else scores.masked_fill(~visible, 0.0), values)
        return out, torch.zeros_like(query[..., 0])
    top = tile.sink(query[..., 0])[..., None]
    total, out = (top > -torch.inf).to(query.dtype), torch.zeros_like(query)
    for scores, values, visible in scores_and_values():
        if visible is not None:
            scores = scores.masked_fill(~visible, -torch.inf)
        new_top = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
        shift = new_top.masked_fill(new_top == -torch.inf, 0.0)
        weights = torch.exp(scores - shift)
        fade = torch.exp(top - shift)
        total = total * fade + weights.sum(dim=-1, keepdim=True)
        out = out * fade + weigh(weights, values)
        top = new_top
    lse = top + torch.log(total)
    return out / total.masked_fill(total == 0, 1.0), lse[..., 0]
