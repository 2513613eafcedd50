"""What a descriptor must say, from the dense mask: brute force."""

from __future__ import annotations

import torch

from compilemask.lowering.patch_grid import PATCH_WORDS
from compilemask.runtime.cpu.bits import unpack
from compilemask.runtime.descriptor import Descriptor

TILE = 128


def check_against_dense(descriptor: Descriptor, dense: torch.Tensor) -> None:
    """Assert that the descriptor is exactly that of the mask `dense`, bool [B or 1, H or 1, Sq, Skv]."""
    descriptor = descriptor.check()
    layout = descriptor.layout
    assert tuple(dense.shape) == (layout.batch, layout.heads, layout.queries, layout.keys)
    for b in range(layout.batch):
        for h in range(layout.heads):
            check_mask(descriptor, b, h, dense[b, h])
    check_bookkeeping(descriptor)


def check_mask(descriptor: Descriptor, b: int, h: int, dense: torch.Tensor) -> None:
    """Classes, order and bits of one mask."""
    layout = descriptor.layout
    for visits in descriptor.tiles_of(b, h):
        rows = dense[visits.tile * layout.rows : (visits.tile + 1) * layout.rows]
        partial, full = brute_force(rows)
        assert [key_tile for key_tile, _ in visits.partial] == partial
        assert [tile for begin, end in visits.full for tile in range(begin, end)] == full
        gaps = [after[0] - before[1] for before, after in zip(visits.full, visits.full[1:], strict=False)]
        assert all(gap > 0 for gap in gaps), "runs touch"
        assert visits.cost == 11 * len(partial) + 10 * len(full) + 15
        for key_tile, pattern in visits.partial:
            check_bits(descriptor, pattern, rows[:, key_tile * TILE : (key_tile + 1) * TILE])
    cost = [visits.cost for visits in descriptor.tiles_of(b, h)]
    order = sorted(range(len(cost)), key=lambda m: (-cost[m], -m))
    own = [int(rows.diagonal(m * layout.rows).sum()) for m, rows in enumerate(dense.split(layout.rows))]
    found = descriptor.tiles[b, h, :, 7].tolist()
    assert all(mine <= exact for mine, exact in zip(found, own, strict=True))
    unseen = int(sum(found) < layout.lengths[1])
    assert descriptor.order[b, h].tolist() == [[*launch_record(descriptor, b, h, m), unseen] for m in order]


def launch_record(descriptor: Descriptor, b: int, h: int, m: int) -> list[int]:
    """What a query tile's record in launch order says, from its own record and its pairs."""
    first_pair, n_partial, n_runs, n_full = descriptor.tiles[b, h, m, :4].tolist()
    visits_any = max(n_partial, 0) + n_runs > 0
    key_tile, pattern = descriptor.visits[first_pair].tolist() if visits_any else (descriptor.layout.key_tiles, 0)
    return [m, first_pair, n_partial, n_runs, n_full, key_tile, pattern if n_partial > 0 else 0]


def brute_force(rows: torch.Tensor) -> tuple[list[int], list[int]]:
    """Partial and full key tiles of one query tile, from its existing rows."""
    partial, full = [], []
    for key_tile, columns in enumerate(rows.split(TILE, dim=1)):
        if columns.all() and columns.shape[1] == TILE:
            full.append(key_tile)
        elif columns.any():
            partial.append(key_tile)
    return partial, full


def check_bits(descriptor: Descriptor, pattern: int, block: torch.Tensor) -> None:
    """A pattern's bits for existing rows, and its columns."""
    bits = unpack(descriptor.patterns[pattern].cpu())
    expected = torch.nn.functional.pad(block, (0, TILE - block.shape[1]))
    assert torch.equal(bits[: len(block)], expected)
    for group, columns in enumerate(unpack(descriptor.columns[pattern].cpu())):
        seen = expected[64 * group : 64 * group + 64].any(dim=0)
        assert not (seen & ~columns).any(), "a visible key is missing in columns"
        if not descriptor.layout.shared:
            assert torch.equal(columns, seen)


def check_bookkeeping(descriptor: Descriptor) -> None:
    """Header, and that pairs and patterns are packed in the order of the tiles."""
    layout, header = descriptor.layout, descriptor.header.tolist()
    assert header[2:12] == [
        *(layout.batch, layout.heads, layout.queries, layout.keys, layout.rows, TILE),
        *(layout.query_tiles, layout.key_tiles, layout.pair_capacity, layout.pattern_capacity),
    ]
    assert header[15] == int(layout.shared)
    patches = [0] * PATCH_WORDS if layout.patches is None else [*layout.patches.words]
    assert header[16:] == patches + [0] * (16 - PATCH_WORDS)
    records = descriptor.tiles.reshape(-1, 8).cpu()
    pairs = records[:, 1] + records[:, 2]
    assert torch.equal(records[:, 0].long(), pairs.cumsum(0) - pairs)
    assert torch.equal(records[:, 1:4], records[:, 4:7])
    assert header[12] == int(pairs.sum())
    if not layout.shared:
        assert header[13] == int(records[:, 1].sum())
        named = torch.cat([torch.tensor([p for _, p in v.partial]) for v in all_tiles(descriptor)] or [torch.empty(0)])
        assert torch.equal(named.long(), torch.arange(header[13]))
        for t, visits in enumerate(all_tiles(descriptor)):
            for key_tile, pattern in visits.partial:
                assert descriptor.sources[pattern].tolist() == [t, key_tile]


def all_tiles(descriptor: Descriptor) -> list:
    """Visits of all masks in order."""
    layout = descriptor.layout
    return [v for b in range(layout.batch) for h in range(layout.heads) for v in descriptor.tiles_of(b, h)]
