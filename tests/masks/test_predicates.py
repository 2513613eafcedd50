"""Each constructor against its predicate, written once more in numpy, at aligned, odd and rectangular sizes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

import compilemask as cm

Positions = NDArray[np.int64]
Predicate = Callable[[Positions, Positions], NDArray[np.bool_]]
SIZES = [(256, 256), (137, 137), (1000, 1000), (200, 333), (333, 200), (1, 1)]


@dataclass(frozen=True)
class Specification:
    """A mask for (queries, keys), and what it means."""

    make: Callable[[int, int], cm.Mask]
    predicate: Callable[[int, int], Predicate]


def cuts(length: int, parts: int, seed: int = 0) -> list[int]:
    """Offsets of random segments of 0 to `length`; one is empty."""
    inner = sorted(random.Random(seed).choices(range(length + 1), k=parts - 2))
    return [0, *inner, inner[-1], length]


def segment(offsets: list[int]) -> Callable[[Positions], Positions]:
    """The number of the segment that holds a position."""
    return lambda position: np.searchsorted(offsets, position, side="right") - 1


def hstu(history: int, contexts: int) -> Predicate:
    return lambda q, kv: ((kv < history) & ((kv <= q) | (q < contexts))) | (kv == q)


def shared_prompt(offsets: list[int]) -> Predicate:
    answer = segment(offsets)
    return lambda q, kv: (kv <= q) & ((answer(kv) == 0) | (answer(kv) == answer(q)))


def near(width: int, origin: int, distance: Callable[[Positions, Positions], NDArray[np.bool_]]) -> Predicate:
    def predicate(q: Positions, kv: Positions) -> NDArray[np.bool_]:
        (qy, qx), (ky, kx) = np.divmod(q - origin, width), np.divmod(kv - origin, width)
        return distance(qy - ky, qx - kx)

    return predicate


def on_image(predicate: Predicate, height: int, width: int, origin: int) -> Predicate:
    def inside(position: Positions) -> NDArray[np.bool_]:
        return (origin <= position) & (position < origin + height * width)

    return lambda q, kv: inside(q) & inside(kv) & predicate(q, kv)


def disk(height: int, width: int, radius: int, origin: int) -> Predicate:
    return on_image(near(width, origin, lambda dy, dx: dy * dy + dx * dx < radius * radius), height, width, origin)


def box(height: int, width: int, reach_y: int, reach_x: int, origin: int) -> Predicate:
    distance = near(width, origin, lambda dy, dx: (np.abs(dy) <= reach_y) & (np.abs(dx) <= reach_x))
    return on_image(distance, height, width, origin)


def clear(height: int, width: int, radius: int, text: int) -> Predicate:
    image = disk(height, width, radius, text)
    return lambda q, kv: (q < text) | (kv < text) | image(q, kv)


SPECIFICATIONS: dict[str, Specification] = {
    "full": Specification(lambda nq, nk: cm.full(), lambda nq, nk: lambda q, kv: (q >= 0) & (kv >= 0)),
    "causal": Specification(lambda nq, nk: cm.causal(), lambda nq, nk: lambda q, kv: kv <= q),
    "causal bottom right": Specification(
        lambda nq, nk: cm.causal("bottom_right"), lambda nq, nk: lambda q, kv: kv <= q + nk - nq
    ),
    "window": Specification(
        lambda nq, nk: cm.window(30, 7), lambda nq, nk: lambda q, kv: (q - kv <= 30) & (kv - q <= 7)
    ),
    "window default": Specification(
        lambda nq, nk: cm.window(30), lambda nq, nk: lambda q, kv: (kv <= q) & (q - kv <= 30)
    ),
    "window left only": Specification(lambda nq, nk: cm.window(12, None), lambda nq, nk: lambda q, kv: q - kv <= 12),
    "window right only": Specification(lambda nq, nk: cm.window(None, 12), lambda nq, nk: lambda q, kv: kv - q <= 12),
    "window bottom right": Specification(
        lambda nq, nk: cm.window(30, 7, align="bottom_right"),
        lambda nq, nk: lambda q, kv: (kv - q - nk + nq >= -30) & (kv - q - nk + nq <= 7),
    ),
    "band": Specification(
        lambda nq, nk: cm.band(-40, -3), lambda nq, nk: lambda q, kv: (kv - q >= -40) & (kv - q <= -3)
    ),
    "band empty": Specification(lambda nq, nk: cm.band(3, 2), lambda nq, nk: lambda q, kv: (kv < 0) & (q < 0)),
    "rows": Specification(
        lambda nq, nk: cm.rows(5, 140), lambda nq, nk: lambda q, kv: (q >= 5) & (q < 140) & (kv >= 0)
    ),
    "cols": Specification(
        lambda nq, nk: cm.cols(5, 140), lambda nq, nk: lambda q, kv: (kv >= 5) & (kv < 140) & (q >= 0)
    ),
    "padding": Specification(
        lambda nq, nk: cm.padding(nk // 2), lambda nq, nk: lambda q, kv: (kv < nk // 2) & (q >= 0)
    ),
    "document": Specification(
        lambda nq, nk: cm.document(cuts(max(nq, nk), 6)),
        lambda nq, nk: lambda q, kv: segment(cuts(max(nq, nk), 6))(q) == segment(cuts(max(nq, nk), 6))(kv),
    ),
    "shared_prompt": Specification(
        lambda nq, nk: cm.shared_prompt(cuts(max(nq, nk), 9)), lambda nq, nk: shared_prompt(cuts(max(nq, nk), 9))
    ),
    "hstu": Specification(lambda nq, nk: cm.hstu(nk - nk // 8, nk // 10), lambda nq, nk: hstu(nk - nk // 8, nk // 10)),
    "hstu without contexts": Specification(lambda nq, nk: cm.hstu(nk // 2), lambda nq, nk: hstu(nk // 2, 0)),
    "hstu with padding": Specification(
        lambda nq, nk: cm.hstu(nk // 2, nk // 4, nk // 2 + 20),
        lambda nq, nk: lambda q, kv: hstu(nk // 2, nk // 4)(q, kv) & (q < nk // 2 + 20) & (kv < nk // 2 + 20),
    ),
    "disk2d": Specification(lambda nq, nk: cm.disk2d(9, 13, 4, 20), lambda nq, nk: disk(9, 13, 4, 20)),
    "box2d": Specification(lambda nq, nk: cm.box2d(9, 13, 2, 3, 20), lambda nq, nk: box(9, 13, 2, 3, 20)),
    "box2d square": Specification(lambda nq, nk: cm.box2d(9, 13, 2), lambda nq, nk: box(9, 13, 2, 2, 0)),
    "clear": Specification(lambda nq, nk: cm.clear(8, 16, 5, 64), lambda nq, nk: clear(8, 16, 5, 64)),
    "where": Specification(
        lambda nq, nk: cm.where(lambda q, kv: ((q - kv) % 7 == 0) & (kv // 16 <= q // 16)),
        lambda nq, nk: lambda q, kv: ((q - kv) % 7 == 0) & (kv // 16 <= q // 16),
    ),
}


def plane(queries: int, keys: int, predicate: Predicate) -> NDArray[np.bool_]:
    """A predicate on all pairs."""
    return np.broadcast_to(predicate(np.arange(queries)[:, None], np.arange(keys)[None, :]), (queries, keys))


@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_mask_is_its_predicate(name: str, queries: int, keys: int) -> None:
    specification = SPECIFICATIONS[name]
    dense = specification.make(queries, keys).dense(queries, keys)
    assert dense.shape == (1, 1, queries, keys)
    expected = plane(queries, keys, specification.predicate(queries, keys))
    np.testing.assert_array_equal(dense[0, 0].numpy(), expected)


def test_algebra_is_that_of_sets() -> None:
    a, b = cm.window(20, 5), cm.hstu(150, 30)
    first, second = (mask.dense(200, 177)[0, 0] for mask in (a, b))
    for mask, expected in (
        (a & b, first & second),
        (a | b, first | second),
        (a - b, first & ~second),
        (~a, ~first),
        (a - ~(b | ~a), first & second),
    ):
        assert (mask.dense(200, 177)[0, 0] == expected).all()


def test_each_mask_of_a_batch_reads_its_own_parameters() -> None:
    history = [[100, 40], [7, 0]]
    mask = cm.hstu(history, [[3], [0]]) & cm.padding([90, 60])
    assert mask.batch_shape == (2, 2)
    dense = mask.dense(120, 120)
    for b in range(2):
        for h in range(2):
            alone = cm.hstu(history[b][h], [3, 0][b]) & cm.padding([90, 60][b])
            assert (dense[b, h] == alone.dense(120, 120)[0, 0]).all()
