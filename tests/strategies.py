"""Random masks for properties that hold for every mask: all leaves, combined to a small depth, with small odd sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from hypothesis import strategies as st

import compilemask as cm

LONGEST = 300


@dataclass(frozen=True)
class Case:
    """A mask and the numbers of queries and keys to use it with."""

    mask: cm.Mask
    queries: int
    keys: int

    def __repr__(self) -> str:
        values = ", ".join(
            f"{p.name}={p.value if isinstance(p.value, int) else p.value.tolist()}" for p in self.mask.parameters
        )
        return f"Case({self.queries} x {self.keys}, {values}\n{self.mask})"


Leaf = Callable[[int], st.SearchStrategy[cm.Mask]]
"""A strategy of leaves for positions below a limit."""


def position(limit: int) -> st.SearchStrategy[int]:
    """A position, often near an end or a tile boundary, sometimes outside."""
    near = st.sampled_from(sorted({0, 1, 127, 128, 129, limit - 1, limit, limit + 1} - {-1}))
    return st.integers(0, limit + 40) | near


def offsets(limit: int) -> st.SearchStrategy[list[int]]:
    """Ascending offsets from 0; some segments are empty, and the last may end before or behind the sequence."""
    return st.lists(position(limit), min_size=1, max_size=7).map(lambda cuts: [0, *sorted(cuts)])


def documents(limit: int) -> st.SearchStrategy[list[int]]:
    """As `offsets`, but sometimes nothing lies at the front."""
    return st.lists(position(limit), min_size=2, max_size=8).map(sorted) | offsets(limit)


aligns = st.sampled_from(["top_left", "bottom_right"])


def windows(limit: int) -> st.SearchStrategy[cm.Mask]:
    """Windows with one or two bounds."""
    two = st.builds(cm.window, position(limit), position(limit), align=aligns)
    one = st.builds(lambda left, align: cm.window(left, None, align=align), position(limit), aligns)
    other = st.builds(lambda right, align: cm.window(None, right, align=align), position(limit), aligns)
    return st.one_of(two, one, other)


def bands(limit: int) -> st.SearchStrategy[cm.Mask]:
    """Bands of any sign, also empty ones."""
    distance = st.integers(-limit - 5, limit + 5)
    return st.builds(cm.band, distance, st.none() | distance) | st.builds(cm.band, st.none(), distance)


@st.composite
def hstu(draw: st.DrawFn, limit: int) -> cm.Mask:
    """Contexts <= history <= total."""
    contexts, history, total = sorted(draw(st.tuples(position(limit), position(limit), position(limit))))
    return cm.hstu(history, contexts, draw(st.sampled_from([None, total])))


@st.composite
def images(draw: st.DrawFn, limit: int) -> cm.Mask:
    """Disks, boxes and CLEAR on images that may end before or behind the sequence."""
    width = draw(st.integers(1, 40))
    height = draw(st.integers(1, max(1, limit // width + 2)))
    origin = draw(st.integers(0, limit))
    radius = draw(st.integers(1, 9))
    match draw(st.sampled_from(["disk", "box", "clear"])):
        case "disk":
            return cm.disk2d(height, width, radius, origin)
        case "box":
            return cm.box2d(height, width, draw(st.integers(0, 5)), draw(st.integers(0, 5)), origin)
        case _:
            return cm.clear(height, width, radius, origin)


@st.composite
def predicates(draw: st.DrawFn, limit: int) -> cm.Mask:
    """Masks that only a predicate says."""
    step = draw(st.integers(1, 9))
    labels = draw(st.lists(st.integers(0, 3), min_size=1, max_size=limit))
    match draw(st.sampled_from(["label", "dilated", "chunk", "mixed"])):
        case "label":
            return cm.where(lambda q, kv, label: label[q] == label[kv], label=labels)
        case "dilated":
            return cm.where(lambda q, kv, step: (q - kv) % step == 0, step=step)
        case "chunk":
            return cm.where(lambda q, kv: (q // step == kv // step) | ~(kv <= q))
        case _:
            return cm.where(lambda q, kv, label: (label[kv] > 1) & (abs(q - 2 * kv) < 50) | (q == kv), label=labels)


LEAVES: tuple[Leaf, ...] = (
    lambda limit: st.builds(cm.full),
    lambda limit: st.builds(cm.causal, aligns),
    windows,
    bands,
    lambda limit: st.builds(cm.rows, position(limit), position(limit)),
    lambda limit: st.builds(cm.cols, position(limit), position(limit)),
    lambda limit: st.builds(cm.padding, position(limit)),
    lambda limit: st.builds(cm.document, documents(limit)),
    lambda limit: st.builds(cm.shared_prompt, offsets(limit)),
    hstu,
    images,
    predicates,
)


@st.composite
def parts(draw: st.DrawFn, inner: st.SearchStrategy[cm.Mask], limit: int) -> cm.Mask:
    """Masks that are moved, cut off, or stand on parts of the sequence."""
    spans = st.tuples(position(limit), position(limit))
    match draw(st.sampled_from(["place", "shift", "crop", "concatenate"])):
        case "place":
            return draw(inner).place(draw(spans), draw(spans))
        case "shift":
            distance = st.integers(-limit - 5, limit + 5)
            return draw(inner).shift(draw(distance), draw(distance))
        case "crop":
            return draw(inner).crop(draw(st.none() | spans), draw(st.none() | spans))
        case _:
            several = draw(st.lists(inner, min_size=1, max_size=3))
            cuts = st.lists(position(limit), min_size=len(several) + 1, max_size=len(several) + 1).map(sorted)
            return cm.concatenate(several, draw(cuts), draw(st.none() | cuts))


@cache
def masks(limit: int, depth: int = 3, leaves: tuple[Leaf, ...] = LEAVES) -> st.SearchStrategy[cm.Mask]:
    """Masks of at most `depth` operations above each other, over positions below `limit`."""
    leaf = st.one_of([strategy(limit) for strategy in leaves])
    if depth == 0:
        return leaf
    inner = masks(limit, depth - 1, leaves)
    return st.one_of(
        leaf,
        parts(inner, limit),
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a, b: a - b, inner, inner),
        st.builds(lambda a: ~a, inner),
    )


@st.composite
def cases(draw: st.DrawFn, depth: int = 3, leaves: tuple[Leaf, ...] = LEAVES) -> Case:
    """Masks with numbers of queries and keys from 1 to `LONGEST`, often unequal."""
    queries = draw(st.integers(1, LONGEST))
    keys = draw(st.just(queries) | st.integers(1, LONGEST))
    return Case(draw(masks(max(queries, keys), depth, leaves)), queries, keys)
