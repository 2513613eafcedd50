"""When attention splits what a query tile visits among several programs, and among how many.

Decided from sizes alone: how much a tile visits is only known on the device. Where there are few rows, as in decoding,
heads and batches are all that one program per tile could share out.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from compilemask.lowering.descriptor_layout import KEYS, ceil_div
from compilemask.lowering.tiling_to_tt.attention_config import TILE
from compilemask.lowering.tiling_to_tt.attention_split_frame import MOST_SPLITS

ROWS = 64
"""Of a program, at most."""
FEWEST_KEYS = 4096
"""Where there are fewer, little is gained."""
FEWEST_TILES = 2
"""Key tiles of a split."""
PROGRAMS_AT_ONCE = 2
"""On a processor."""
LARGE_GROUP = 4
"""Heads that share keys, from which it pays to read keys once even where all processors have work."""
SUFFICIENT = 0.95
"""Share of the best use of processors that fewer splits may be content with."""


class Split(NamedTuple):
    """How the work is split: among how many programs, each of which has the rows of so many query heads together."""

    splits: int
    together: int


def split_of(
    batch: int, heads: int, key_heads: int, queries: int, keys: int, processors: int, *, heads_differ: bool = False
) -> Split | None:
    """The split for attention of these sizes on a GPU with so many processors; None for one program per query tile.

    `heads_differ` says that query heads have masks or score modifications of their own, so that the rows of each head
    are computed apart, whatever keys it shares.
    """
    forced = _forced.get()
    if forced == 0 or not batch * heads * queries:
        return None
    if forced is not None:
        return Split(forced, 1 if heads_differ else heads // key_heads)
    if queries > TILE or keys < FEWEST_KEYS:
        return None
    return _split_of(batch, heads, key_heads, queries, keys // KEYS, processors, heads_differ)


def is_forced() -> bool:
    """Whether something else than sizes decides now."""
    return _forced.get() is not None


@contextmanager
def forced(splits: int) -> Generator[None, None, None]:
    """Attention on a GPU splits keys among so many programs in the `with`, whatever the sizes; 0 for not at all.

    For benchmarks and tests. Pointwise weights and tiles that are patches are never split.
    """
    if not 0 <= splits <= MOST_SPLITS:
        raise ValueError(f"{splits} splits; expected 0 to {MOST_SPLITS}")
    token = _forced.set(splits)
    try:
        yield
    finally:
        _forced.reset(token)


_forced: ContextVar[int | None] = ContextVar("forced", default=None)


@lru_cache(maxsize=1024)
def _split_of(
    batch: int, heads: int, key_heads: int, queries: int, key_tiles: int, processors: int, heads_differ: bool
) -> Split | None:
    together = 1 if heads_differ else heads // key_heads
    rows = together * queries
    programs = batch * (heads // together) * ceil_div(rows, ROWS)
    reads_keys_once = together >= LARGE_GROUP and rows <= ROWS
    if 2 * programs > processors and not reads_keys_once:
        return None
    splits = best_splits(programs, PROGRAMS_AT_ONCE * processors, key_tiles // FEWEST_TILES)
    return Split(splits, together)


def best_splits(programs: int, at_once: int, most: int) -> int:
    """The fewest splits, up to `most`, of each of so many programs that use a GPU well which runs `at_once` of them.

    The last round of programs may leave processors idle: more splits make it shorter.
    """

    def used(splits: int) -> float:
        rounds = programs * splits / at_once
        return rounds / ceil(rounds)

    candidates = range(1, min(most, MOST_SPLITS, max(at_once // programs, 8)) + 1)
    best = max(used(splits) for splits in candidates)
    return next(splits for splits in candidates if used(splits) >= SUFFICIENT * best)
