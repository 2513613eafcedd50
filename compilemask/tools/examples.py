"""Masks by name, with example parameters for any length: what the command line, the demo and the pictures show."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import compilemask as cm
from compilemask.errors import MaskError

if TYPE_CHECKING:
    from compilemask.language.mask import Mask

Parameter = int | tuple[int, ...]
SAMPLES = Path(__file__).parent.parent / "samples"
"""Masks written out in the mask dialect."""


@dataclass(frozen=True)
class Example:
    """A public constructor and the parameters that show it well in a sequence of `length` tokens."""

    name: str
    summary: str
    parameters: Callable[[int], dict[str, Parameter]]

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


def _image(length: int) -> dict[str, Parameter]:
    height, width = image_size(length)
    return {"height": height, "width": width}


def _clear(length: int) -> dict[str, Parameter]:
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
        Example("disk2d", "an image, each token sees a disk around it", lambda length: {**_image(length), "radius": 8}),
        Example("box2d", "an image, each token sees a box around it", lambda length: {**_image(length), "reach_y": 4}),
        Example("clear", "text, and an image whose tokens see a disk around them and the text", _clear),
    )
}
