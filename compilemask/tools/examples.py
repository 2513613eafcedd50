"""Masks by name, with example parameters for any length: what the command line, the demo and the pictures show."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import compilemask as cm
from compilemask.errors import MaskError

if TYPE_CHECKING:
    from compilemask.language.mask import Mask

Parameter = int | tuple[int, ...]
"""What the command line gives a parameter."""
SAMPLES = Path(__file__).parent.parent / "samples"
"""Masks written out in the mask dialect."""


@dataclass(frozen=True)
class Example:
    """A public constructor and the parameters that show it well in a sequence of `length` tokens."""

    name: str
    summary: str
    parameters: Callable[[int], dict[str, Any]]

    def mask(self, length: int, given: Mapping[str, Parameter] | None = None) -> Mask:
        """The mask for `length` tokens; parameters in `given` replace the example's.

        Raises:
            MaskError: the constructor has no parameter of that name, or rejects a value.
        """
        constructor = getattr(cm, self.name)
        known = inspect.signature(constructor).parameters
        for name in given or {}:
            if name not in known:
                raise MaskError(f"{self.name} has no parameter {name!r}; it takes {', '.join(known) or 'none'}")
        return constructor(**{**self.parameters(length), **(given or {})})


def answer_offsets(length: int, answers: int = 8, seed: int = 0) -> tuple[int, ...]:
    """Offsets of a prompt of length / 8 tokens and then `answers` answers of random, uneven lengths."""
    prompt = length // 8
    rng = random.Random(seed)
    weights = [0.5 + rng.random() for _ in range(answers)]
    offsets = [0, prompt]
    for weight in weights[:-1]:
        offsets.append(offsets[-1] + int((length - prompt) * weight / sum(weights)))
    return (*offsets, length)


def document_offsets(length: int, documents: int = 6, seed: int = 1) -> tuple[int, ...]:
    """Offsets of `documents` documents of random lengths that fill the sequence."""
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(1, length), documents - 1)) if length > documents else []
    return (0, *cuts, length)


def image_size(tokens: int) -> tuple[int, int]:
    """Height and width of an image with exactly so many tokens, as near to a square as they divide."""
    height = max((h for h in range(1, int(tokens**0.5) + 1) if tokens % h == 0), default=0)
    return (height, tokens // height) if height else (0, 0)


def _image(length: int) -> dict[str, Any]:
    height, width = image_size(length)
    return {"height": height, "width": width}


def _natten2d(length: int) -> dict[str, Any]:
    image = _image(length)
    return {**image, "window": min(7, *image.values())}


def _natten3d(length: int) -> dict[str, Any]:
    frames = 4 if length % 4 == 0 else 1
    height, width = image_size(length // frames)
    sizes = {"frames": frames, "height": height, "width": width}
    return {**sizes, "window": tuple(min(3, size) for size in sizes.values())}


def _sliding_tile2d(length: int) -> dict[str, Any]:
    tile, text = min(16, length), length // 16
    rows, columns = image_size((length - text) // tile)
    return {"rows": rows, "columns": columns, "tile": tile, "window": (min(3, rows), min(3, columns)), "text": text}


def _sliding_tile3d(length: int) -> dict[str, Any]:
    tile = min(16, length)
    tiles = length // tile
    frames = 4 if tiles % 4 == 0 else 1
    rows, columns = image_size(tiles // frames)
    sizes = {"frames": frames, "rows": rows, "columns": columns}
    return {**sizes, "tile": tile, "window": tuple(min(3, size) for size in sizes.values())}


def _images(length: int) -> dict[str, Any]:
    begins = [length // 8, length // 2]
    return {"begins": begins, "ends": [begin + length // 4 for begin in begins]}


def _draft_tree(length: int) -> dict[str, Any]:
    """A tree in which every draft has two children."""
    drafts = min(63, length)
    parents = [(draft - 1) // 2 if draft else -1 for draft in range(drafts)]
    return {"parents": parents, "prefix": length - drafts, "depth": 6}


def _blocks(length: int, size: int, count: int) -> list[list[int]]:
    """`count` random blocks of keys for each block of queries."""
    rng, blocks = random.Random(2), -(-length // size)
    return [[rng.randrange(blocks) for _ in range(count)] for _ in range(blocks)]


def _paligemma(length: int) -> dict[str, Any]:
    """An image and a prompt that see themselves, then an answer that is causal."""
    prefix = length // 3
    return {"blocks": [max(position - prefix + 1, 0) for position in range(length)]}


def _hstu_arbitrary(length: int) -> dict[str, Any]:
    """The first eighth, and a window before each row."""
    first = [min(length // 8, row + 1) for row in range(length)]
    begin = [max(end, row - length // 8) for row, end in enumerate(first)]
    return {"bounds": [first, begin, [max(b, row + 1) for row, b in enumerate(begin)]]}


def _slices(length: int) -> dict[str, Any]:
    half = length // 2
    return {"queries": [[0, half], [half, length]], "keys": [[0, half], [half // 2, length]], "kinds": [1, 3]}


def _evict(length: int) -> dict[str, Any]:
    rng = random.Random(3)
    return {"evict": [rng.randint(key, length) for key in range(length)]}


def _clear(length: int) -> dict[str, Any]:
    text = 512 if length >= 1000 else length // 2
    return {**_image(length - text), "radius": 16, "text": text}


HEADLINES = ("causal", "hstu", "shared_prompt", "clear")
"""The four masks that the README and the demo show."""

EXAMPLES: dict[str, Example] = {
    example.name: example
    for example in (
        Example("full", "every token sees every token", lambda length: {}),
        Example("causal", "each token sees itself and everything before it", lambda length: {}),
        Example("window", "each token sees itself and the tokens shortly before", lambda length: {"left": length // 8}),
        Example(
            "padding", "every token sees all but the padding at the end", lambda length: {"lengths": 3 * length // 4}
        ),
        Example("document", "packed documents, each sees itself", lambda length: {"offsets": document_offsets(length)}),
        Example(
            "hstu",
            "recommender: contexts and history, candidates see both and themselves",
            lambda length: {"history": length - length // 8, "contexts": min(100, length // 8)},
        ),
        Example(
            "shared_prompt",
            "one prompt, several answers that do not see each other",
            lambda length: {"offsets": answer_offsets(length)},
        ),
        Example(
            "sliding_window",
            "a window as a library counts it",
            lambda length: {"size": max(length // 8, 1), "convention": "hugging_face"},
        ),
        Example("chunked", "causal inside chunks", lambda length: {"size": max(length // 8, 1)}),
        Example("blocks", "blocks that see themselves", lambda length: {"size": max(length // 8, 1)}),
        Example("prefix_lm", "a prefix sees itself, what follows is causal", lambda length: {"prefix": length // 4}),
        Example(
            "document_ids",
            "packed documents, by the number of each token's document",
            lambda length: {"ids": [8 * position // length for position in range(length)]},
        ),
        Example(
            "causal_document",
            "packed documents, each sees itself, causally",
            lambda length: {"offsets": document_offsets(length)},
        ),
        Example(
            "causal_blockwise",
            "documents that do not see each other, and a last one that sees them all",
            lambda length: {"offsets": document_offsets(length)},
        ),
        Example(
            "longformer",
            "a window, and leading tokens that see and are seen by everything",
            lambda length: {"reach": length // 16, "leading": length // 32},
        ),
        Example("random_eviction", "causal, and each key is forgotten some time", _evict),
        Example(
            "sink_window",
            "the last tokens and the very first ones",
            lambda length: {"size": length // 8 + 1, "sinks": length // 64},
        ),
        Example("dilated_window", "every second key near the query", lambda length: {"reach": length // 8, "step": 2}),
        Example("strided", "the last keys, and every n-th before them", lambda length: {"stride": 32}),
        Example(
            "bigbird",
            "blocks that see their neighbours, the ends and random ones",
            lambda length: {"block": 64, "random": _blocks(length, 64, 2)},
        ),
        Example("draft_tree", "speculative decoding: drafts see the text and their ancestors", _draft_tree),
        Example("transfusion", "causal text, and images that see themselves", _images),
        Example("paligemma", "blocks that see themselves and what is before them", _paligemma),
        Example(
            "show_o",
            "causal text, an image that sees everything, padding in front",
            lambda length: {"begin": length // 2, "end": 3 * length // 4, "padding": length // 16},
        ),
        Example("natten2d", "an image, each token sees a window moved inside at the edges", _natten2d),
        Example("natten3d", "a video, each token sees a window moved inside at the edges", _natten3d),
        Example("sliding_tile2d", "an image of tiles, each sees a window of tiles; text", _sliding_tile2d),
        Example("sliding_tile3d", "a video of tiles, each sees a window of tiles", _sliding_tile3d),
        Example("sam_window", "an image cut into windows", lambda length: {**_image(length), "size": 7}),
        Example(
            "topk_blocks",
            "each block of queries sees some blocks of keys",
            lambda length: {"block": 64, "indices": _blocks(length, 64, 3)},
        ),
        Example("hstu_arbitrary", "recommender: intervals of keys for each row", _hstu_arbitrary),
        Example("slices", "rectangles of the plane, with triangles cut off", _slices),
        Example(
            "gappy",
            "keys that lie somewhere in a buffer",
            lambda length: {"starts": length // 8, "lengths": length // 2},
        ),
        Example("periodic", "causal, again in every period", lambda length: {}),
        Example("transformer_xl", "chunks that see the one before", lambda length: {"size": max(length // 8, 1)}),
        Example("disk2d", "an image, each token sees a disk around it", lambda length: {**_image(length), "radius": 8}),
        Example("box2d", "an image, each token sees a box around it", lambda length: {**_image(length), "reach_y": 4}),
        Example("clear", "text, and an image whose tokens see a disk around them and the text", _clear),
    )
}
