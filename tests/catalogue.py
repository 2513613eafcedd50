"""Every mask of the catalogue for any numbers of queries and keys, and what it means, written once more in numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import compilemask as cm

Positions = NDArray[np.int64]
Pairs = NDArray[np.bool_]


@dataclass(frozen=True)
class Entry:
    """A constructor with parameters for (queries, keys), the visible pairs [Sq, Skv] or [B, H, Sq, Skv], and how many
    intervals a row of 1024 x 1024 pairs needs at most; None if any number. `exact`: no predicate is asked at run time.
    """

    make: Callable[[int, int], cm.Mask]
    visible: Callable[[int, int], Pairs]
    intervals: int | None
    exact: bool = True


def pairs(predicate: Callable[..., Any], *more: Callable[[int, int], Any]) -> Callable[[int, int], Pairs]:
    """All pairs of predicate(q, kv, ...) for q [Sq, 1] and kv [1, Skv]; `more` are made from (queries, keys)."""

    def visible(queries: int, keys: int) -> Pairs:
        q, kv = np.arange(queries)[:, None], np.arange(keys)[None, :]
        return np.broadcast_to(predicate(q, kv, *(make(queries, keys) for make in more)), (queries, keys))

    return visible


def random(queries: int, keys: int) -> np.random.Generator:
    """The same numbers for the same sizes."""
    return np.random.default_rng((queries, keys))


def longest(queries: int, keys: int) -> int:
    """How many positions the parameters may speak of."""
    return max(queries, keys)


def offsets(queries: int, keys: int) -> list[int]:
    """Six documents, one of them empty, that leave the last positions to none."""
    end = longest(queries, keys) - longest(queries, keys) // 20
    cuts = sorted(random(queries, keys).integers(0, end + 1, 4).tolist())
    return [0, cuts[0], cuts[1], cuts[1], cuts[2], cuts[3], end]


def number_of(position: Positions, cuts: list[int]) -> Positions:
    """Which segment holds a position: the last one that begins at or before it; -1 for none."""
    found = np.searchsorted(cuts, position, side="right") - 1
    return np.where((position >= cuts[0]) & (position < cuts[-1]), found, -1)


def ids(queries: int, keys: int) -> list[int]:
    return np.sort(random(queries, keys).integers(0, 7, longest(queries, keys))).tolist()


def mixed_ids(queries: int, keys: int) -> list[int]:
    return random(queries, keys).integers(0, 3, longest(queries, keys)).tolist()


def flags(queries: int, keys: int) -> list[int]:
    found = np.zeros(longest(queries, keys), dtype=np.int64)
    found[random(queries, keys).integers(0, longest(queries, keys), 3)] = 1
    return found.tolist()


def evict(queries: int, keys: int) -> torch.Tensor:
    """[2, 3, n]: each batch and head forgets by itself."""
    n = longest(queries, keys)
    return torch.from_numpy(random(queries, keys).integers(0, n + 1, (2, 3, n)).astype(np.int32))


def evicted(queries: int, keys: int) -> Pairs:
    q, kv = np.arange(queries)[:, None], np.arange(keys)[None, :]
    times = evict(queries, keys).numpy()[:, :, None, :keys]
    return (kv <= q) & (q < times)


BLOCK = 32


def drawn(queries: int, keys: int) -> NDArray[np.int64]:
    """[blocks of queries, 3]: blocks of keys, -1 among them."""
    shape = (-(-queries // BLOCK), 3)
    return random(queries, keys).integers(-1, -(-keys // BLOCK), shape)


def bigbird(queries: int, keys: int) -> Pairs:
    table, result = drawn(queries, keys), np.zeros((queries, keys), dtype=np.bool_)
    last_query, last_key = (queries - 1) // BLOCK, (keys - 1) // BLOCK
    for i in range(last_query + 1):
        for j in range(last_key + 1):
            edge = i in (0, last_query) or j in (0, last_key)
            seen = abs(i - j) <= 1 or edge or j in table[i]
            result[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK] = seen
    return result


def topk(queries: int, keys: int) -> torch.Tensor:
    """[1, 2, blocks of queries - 1, 4]: heads choose for themselves, and the last block of queries sees nothing."""
    shape = (1, 2, max(-(-queries // BLOCK) - 1, 1), 4)
    return torch.from_numpy(random(queries, keys).integers(-1, -(-keys // BLOCK), shape).astype(np.int32))


def chosen_blocks(queries: int, keys: int) -> Pairs:
    table = topk(queries, keys).numpy()
    result = np.zeros((1, 2, queries, keys), dtype=np.bool_)
    for head in range(2):
        for i in range(table.shape[2]):
            for j in table[0, head, i]:
                if j >= 0:
                    result[0, head, i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK] = True
    return result


PARENTS = [-1, -1, 0, 0, 2, 2, 1, 4, 5, 7]


def prefix_of_tree(queries: int, keys: int) -> int:
    return max(longest(queries, keys) - len(PARENTS) - 3, 0)


def draft_tree(queries: int, keys: int) -> Pairs:
    prefix, result = prefix_of_tree(queries, keys), np.zeros((queries, keys), dtype=np.bool_)
    for q in range(queries):
        if q < prefix:
            result[q, : q + 1] = True
        elif q < prefix + len(PARENTS):
            result[q, :prefix] = True
            node = q - prefix
            while node >= 0:
                if prefix + node < keys:
                    result[q, prefix + node] = True
                node = PARENTS[node]
    return result


def images(queries: int, keys: int) -> tuple[list[int], list[int]]:
    n = longest(queries, keys)
    return [n // 10, n // 3, n // 2], [n // 5, n // 2, n - n // 10]


def transfusion(q: Positions, kv: Positions, given: tuple[list[int], list[int]]) -> Any:
    seen = kv <= q
    for begin, end in zip(*given, strict=True):
        seen = seen | ((q >= begin) & (kv < end))
    return seen


def blocks_of_tokens(queries: int, keys: int) -> NDArray[np.int64]:
    return np.cumsum(random(queries, keys).integers(0, 4, longest(queries, keys)) == 0)


def paligemma(queries: int, keys: int) -> Pairs:
    c = blocks_of_tokens(queries, keys)
    return (c[None, :keys] <= c[:queries, None]) & (np.arange(keys) < keys - keys // 9)


def image(queries: int, keys: int) -> tuple[int, int, int]:
    """Origin, height and width of an image that fits."""
    n = longest(queries, keys)
    width = max(int(n**0.5) + 2, 1)
    return n // 16, max((n - n // 16) // width, 1), width


def start(position: int, window: int, extent: int, dilation: int = 1) -> list[int]:
    """The positions that one sees along an axis: the window among those of its own remainder, moved inside."""
    own = list(range(position % dilation, extent, dilation))
    first = min(max(own.index(position) - window // 2, 0), len(own) - window)
    return own[first : first + window]


def on_image(
    queries: int,
    keys: int,
    origin: int,
    sizes: tuple[int, ...],
    sees: Callable[[int, int], list[int]],
    unit: int = 1,
) -> Pairs:
    """Pairs of a raster, whose points are `unit` tokens: sees(axis, position) lists the positions along an axis."""
    result = np.zeros((queries, keys), dtype=np.bool_)
    for point in np.ndindex(*sizes):
        rows = origin + int(np.ravel_multi_index(point, sizes)) * unit
        seen = [sees(axis, position) for axis, position in enumerate(point)]
        for other in np.stack(np.meshgrid(*seen, indexing="ij"), axis=-1).reshape(-1, len(sizes)):
            columns = origin + int(np.ravel_multi_index(tuple(other), sizes)) * unit
            result[rows : rows + unit, columns : columns + unit] = True
    return result


def natten2d(window: tuple[int, int], dilation: tuple[int, int] = (1, 1)) -> Entry:
    def make(queries: int, keys: int) -> cm.Mask:
        origin, height, width = image(queries, keys)
        return cm.natten2d(height, width, window, dilation, origin)

    def visible(queries: int, keys: int) -> Pairs:
        origin, *sizes = image(queries, keys)
        both = tuple(sizes)
        return on_image(queries, keys, origin, both, lambda a, p: start(p, window[a], both[a], dilation[a]))

    return Entry(make, visible, window[0] if dilation[1] == 1 else None, dilation[1] == 1)


VIDEO = (3, 4, 5)


def natten3d(queries: int, keys: int) -> Pairs:
    reach = (2, 3, 3)
    return on_image(queries, keys, 5, VIDEO, lambda a, p: start(p, reach[a], VIDEO[a]))


def sam(queries: int, keys: int) -> Pairs:
    origin, *sizes = image(queries, keys)
    both, size = tuple(sizes), 5
    return on_image(
        queries, keys, origin, both, lambda a, p: list(range(p // size * size, min(p // size * size + size, both[a])))
    )


def sliding_tiles(queries: int, keys: int, sizes: tuple[int, ...], unit: int, text: int) -> Pairs:
    result = on_image(queries, keys, 0, sizes, lambda a, p: start(p, 3, sizes[a]), unit)
    begin = int(np.prod(sizes)) * unit
    result[begin : begin + text, : begin + text] = True
    result[: begin + text, begin : begin + text] = True
    return result


def row_bounds(queries: int, keys: int) -> NDArray[np.int64]:
    """[5, rows], ascending in each row."""
    return np.sort(random(queries, keys).integers(0, keys + 1, (5, max(queries - 3, 1))), axis=0)


def hstu_arbitrary(queries: int, keys: int) -> Pairs:
    f, kv = row_bounds(queries, keys)[:, :, None], np.arange(keys)
    result = np.zeros((queries, keys), dtype=np.bool_)
    result[: f.shape[1]] = (kv < f[0]) | ((kv >= f[1]) & (kv < f[2])) | ((kv >= f[3]) & (kv < f[4]))
    return result


def rectangles(queries: int, keys: int) -> tuple[list[list[int]], list[list[int]], list[int]]:
    q, k = queries, keys
    rows = [[0, q // 3], [q // 3, q - q // 10], [q // 2, q]]
    return rows, [[0, k // 4], [k // 5, k // 2], [k // 2, k]], [2, 1, 3]


def slices(queries: int, keys: int, count: int) -> Pairs:
    result = np.zeros((queries, keys), dtype=np.bool_)
    for (first, end), (begin, stop), kind in list(zip(*rectangles(queries, keys), strict=True))[:count]:
        for q in range(first, end):
            for kv in range(begin, stop):
                causal, inverse = kv - stop <= q - end, kv - begin >= q - first
                result[q, kv] |= (causal or not kind & 1) and (inverse or not kind & 2)
    return result


def some_slices(count: int) -> Entry:
    def make(queries: int, keys: int) -> cm.Mask:
        rows, cols, kinds = (part[:count] for part in rectangles(queries, keys))
        return cm.slices(rows, cols, kinds)

    return Entry(make, lambda q, k: slices(q, k, count), count, count < 3)


def packs(queries: int, keys: int) -> tuple[list[int], list[int]]:
    """Two packs of a prompt and two answers; the second one has an empty prompt."""
    n = longest(queries, keys)
    cuts = [0, n // 8, n // 4, n // 2, n // 2, n // 2 + n // 8, n - n // 20]
    return cuts, [0, cuts[3], cuts[6]]


def shared_prompts(q: Positions, kv: Positions, given: tuple[list[int], list[int]]) -> Any:
    segment = [number_of(position, given[0]) for position in (q, kv)]
    pack = [number_of(position, given[1]) for position in (q, kv)]
    in_prompt = np.isin(segment[1], [0, 3])
    return (kv <= q) & (pack[0] == pack[1]) & (pack[0] >= 0) & (in_prompt | (segment[0] == segment[1]))


def hstu_groups(q: Positions, kv: Positions, n: int) -> Any:
    history, contexts, total = n // 2, n // 8, n - n // 16
    group = (q >= history) & (kv >= history) & ((q - history) // 4 == (kv - history) // 4) & (kv <= q)
    seen = ((kv < history) & ((kv <= q) | (q < contexts))) | group
    return seen & (q < total) & (kv < total)


def clear(queries: int, keys: int) -> Pairs:
    origin, height, width = image(queries, keys)
    q, kv = np.arange(queries)[:, None], np.arange(keys)[None, :]
    on_q, on_kv = ((p >= origin) & (p < origin + height * width) for p in (q, kv))
    (qy, qx), (ky, kx) = (((p - origin) // width, (p - origin) % width) for p in (q, kv))
    return (q < origin) | (kv < origin) | (on_q & on_kv & ((qy - ky) ** 2 + (qx - kx) ** 2 < (4 + 1) ** 2))


def _clear(queries: int, keys: int) -> cm.Mask:
    origin, height, width = image(queries, keys)
    return cm.clear(height, width, 4, text=origin, smallest=0)


def _natten3d(queries: int, keys: int) -> cm.Mask:
    return cm.natten3d(*VIDEO, (2, 3, 3), origin=5)


def _sam(queries: int, keys: int) -> cm.Mask:
    origin, height, width = image(queries, keys)
    return cm.sam_window(height, width, 5, origin)


def _blockwise(q: Positions, kv: Positions, cuts: list[int]) -> Any:
    own, other = number_of(q, cuts), number_of(kv, cuts)
    last = own == number_of(np.asarray(cuts[-1] - 1), cuts)
    return (kv <= q) & (own >= 0) & ((own == other) | last)


CATALOGUE: dict[str, Entry] = {
    "causal": Entry(lambda q, k: cm.causal(), pairs(lambda q, kv: kv <= q), 1),
    "causal from the end": Entry(
        lambda q, k: cm.causal("bottom_right"), lambda q, k: np.tri(q, k, k - q, dtype=np.bool_), 1
    ),
    "window of attention-gym": Entry(
        lambda q, k: cm.sliding_window(50, "attention_gym"), pairs(lambda q, kv: (q >= kv) & (q - kv <= 50)), 1
    ),
    "window of Hugging Face": Entry(
        lambda q, k: cm.sliding_window(50, "hugging_face"), pairs(lambda q, kv: (q - kv >= 0) & (q - kv < 50)), 1
    ),
    "window of FlashAttention": Entry(
        lambda q, k: cm.sliding_window((40, 9), "flash_attention"),
        pairs(lambda q, kv, n: (kv >= q + n - 40) & (kv <= q + n + 9), lambda q, k: k - q),
        1,
    ),
    "bidirectional window": Entry(lambda q, k: cm.window(20, 20), pairs(lambda q, kv: np.abs(q - kv) <= 20), 1),
    "chunked": Entry(lambda q, k: cm.chunked(48), pairs(lambda q, kv: (q // 48 == kv // 48) & (kv <= q)), 1),
    "blocks": Entry(lambda q, k: cm.blocks(48), pairs(lambda q, kv: q // 48 == kv // 48), 1),
    "prefix_lm": Entry(
        lambda q, k: cm.prefix_lm([longest(q, k) // 3] * 2),
        pairs(lambda q, kv, n: (kv < n // 3) | (kv <= q), longest),
        1,
    ),
    "document": Entry(
        lambda q, k: cm.document(offsets(q, k)),
        pairs(lambda q, kv, c: (number_of(q, c) == number_of(kv, c)) & (number_of(q, c) >= 0), offsets),
        1,
    ),
    "document_ids": Entry(
        lambda q, k: cm.document_ids(ids(q, k)),
        pairs(lambda q, kv, d: np.array(d)[q] == np.array(d)[kv], ids),
        1,
    ),
    "document_ids, unsorted": Entry(
        lambda q, k: cm.document_ids(mixed_ids(q, k)),
        pairs(lambda q, kv, d: np.array(d)[q] == np.array(d)[kv], mixed_ids),
        None,
        exact=False,
    ),
    "causal_document": Entry(
        lambda q, k: cm.causal_document(offsets(q, k)),
        pairs(lambda q, kv, c: (kv <= q) & (number_of(q, c) == number_of(kv, c)) & (number_of(q, c) >= 0), offsets),
        1,
    ),
    "shared_prompt": Entry(
        lambda q, k: cm.shared_prompt(*packs(q, k)),
        pairs(shared_prompts, packs),
        2,
    ),
    "causal_blockwise": Entry(lambda q, k: cm.causal_blockwise(offsets(q, k)), pairs(_blockwise, offsets), 1),
    "longformer": Entry(
        lambda q, k: cm.longformer(16, 4), pairs(lambda q, kv: (np.abs(q - kv) <= 16) | (q < 4) | (kv < 4)), 2
    ),
    "longformer, scattered": Entry(
        lambda q, k: cm.longformer(16, 4, flags(q, k)),
        pairs(
            lambda q, kv, f: (np.abs(q - kv) <= 16) | (q < 4) | (kv < 4) | np.array(f)[q] | np.array(f)[kv] == 1, flags
        ),
        5,
        exact=False,
    ),
    "random_eviction": Entry(lambda q, k: cm.random_eviction(evict(q, k)), evicted, None, exact=False),
    "sink_window": Entry(
        lambda q, k: cm.sink_window(40), pairs(lambda q, kv: (kv <= q) & ((q - kv < 40) | (kv < 4))), 2
    ),
    "dilated_window": Entry(
        lambda q, k: cm.dilated_window(64, 2), pairs(lambda q, kv: (np.abs(q - kv) <= 64) & ((q - kv) % 2 == 0)), 65
    ),
    "strided": Entry(
        lambda q, k: cm.strided(16),
        pairs(lambda q, kv: (kv <= q) & ((q - kv < 16) | ((q - kv) % 16 == 0))),
        1024 // 16,
    ),
    "bigbird": Entry(lambda q, k: cm.bigbird(BLOCK, drawn(q, k)), bigbird, 3 + 3),
    "draft_tree": Entry(
        lambda q, k: cm.draft_tree(PARENTS, prefix_of_tree(q, k), 4),
        draft_tree,
        5 + 1,  # levels of the tree, and the text
    ),
    "transfusion": Entry(lambda q, k: cm.transfusion(*images(q, k)), pairs(transfusion, images), 1),
    "paligemma": Entry(lambda q, k: cm.paligemma(blocks_of_tokens(q, k), k - k // 9), paligemma, 1),
    "show_o": Entry(
        lambda q, k: cm.show_o(longest(q, k) // 3, longest(q, k) // 2, 9),
        pairs(lambda q, kv, n: (kv >= 9) & ((kv <= q) | ((q >= n // 3) & (q < n // 2))), longest),
        1,
    ),
    "natten2d": natten2d((7, 5)),
    "natten2d, even": natten2d((6, 4)),
    "natten2d, dilated lines": natten2d((3, 5), (2, 1)),
    "natten2d, dilated": natten2d((3, 3), (2, 3)),
    "natten3d": Entry(_natten3d, natten3d, 2 * 3),
    "clear": Entry(_clear, clear, 2 * 5 - 1 + 1),
    "sliding_tile2d": Entry(
        lambda q, k: cm.sliding_tile2d(4, 3, 9, 3, text=11), lambda q, k: sliding_tiles(q, k, (4, 3), 9, 11), 3 + 1
    ),
    "sliding_tile3d": Entry(
        lambda q, k: cm.sliding_tile3d(3, 4, 3, 3, 3, text=7), lambda q, k: sliding_tiles(q, k, (3, 4, 3), 3, 7), 9 + 1
    ),
    "topk_blocks": Entry(lambda q, k: cm.topk_blocks(topk(q, k), BLOCK), chosen_blocks, 4),
    "hstu, groups": Entry(
        lambda q, k: cm.hstu(longest(q, k) // 2, longest(q, k) // 8, longest(q, k) - longest(q, k) // 16, group=4),
        pairs(hstu_groups, longest),
        2,
    ),
    "hstu_arbitrary": Entry(lambda q, k: cm.hstu_arbitrary(row_bounds(q, k)), hstu_arbitrary, 3),
    "slices": some_slices(2),
    "slices, three": some_slices(3),
    "gappy": Entry(
        lambda q, k: cm.gappy([3, k // 2], [k // 4, k // 3]),
        lambda q, k: np.stack(
            [np.broadcast_to((np.arange(k) >= s) & (np.arange(k) < s + n), (1, q, k)) for s, n in gaps(k)]
        ),
        1,
    ),
    "periodic": Entry(lambda q, k: cm.periodic(128), pairs(lambda q, kv: q % 128 >= kv % 128), 1024 // 128),
    "transformer_xl": Entry(
        lambda q, k: cm.transformer_xl(48),
        pairs(lambda q, kv: (kv <= q) & (q // 48 - 1 <= kv // 48) & (kv // 48 <= q // 48)),
        1,
    ),
    "sam_window": Entry(_sam, sam, 5),
    "padding": Entry(lambda q, k: cm.padding(k - k // 5), lambda q, k: np.tile(np.arange(k) < k - k // 5, (q, 1)), 1),
    "padding, leading": Entry(
        lambda q, k: cm.padding(k - k // 5, "leading"), lambda q, k: np.tile(np.arange(k) >= k // 5, (q, 1)), 1
    ),
}


def gaps(keys: int) -> list[tuple[int, int]]:
    """Start and length of each batch's keys."""
    return [(3, keys // 4), (keys // 2, keys // 3)]


SIZES = [(256, 256), (137, 137), (200, 333), (333, 200)]
"""An aligned, an odd and two rectangular sizes, at which all masks fit."""


def full_shape(visible: Pairs) -> Pairs:
    """[B, H, Sq, Skv]."""
    return visible if visible.ndim == 4 else visible[None, None]
