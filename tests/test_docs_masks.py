"""docs/masks.md has a section, a true picture and an example that runs for every constructor of the catalogue."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import compilemask as cm
from compilemask import language
from compilemask.tools.examples import EXAMPLES

DOCS = Path(__file__).parent.parent / "docs"
SECTIONS = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", (DOCS / "masks.md").read_text(), re.MULTILINE | re.DOTALL))
BUILDING_BLOCKS = {"band", "cols", "concatenate", "from_mask_mod", "load", "parse", "rows", "where"}
"""What makes masks and is none of the catalogue."""
VISIBLE = (0x00, 0x72, 0xB2)


def test_every_constructor_is_in_the_catalogue() -> None:
    constructors = {name for name in language.__all__ if name[0].islower()} - BUILDING_BLOCKS
    assert set(EXAMPLES) == constructors
    assert set(SECTIONS) == constructors


@pytest.mark.parametrize("name", EXAMPLES)
def test_section_says_everything(name: str) -> None:
    text = SECTIONS[name]
    assert f"![{name}](pictures/{name}.png)" in text
    for item in ("Visible", "Source", "Intervals", "Data"):
        assert re.search(rf"^- {item}: \S", text, re.MULTILINE), f"{name} lacks {item}"
    assert re.search(rf"\bcm\.{name}\(", text), f"{name} has no example"


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_masks(name: str) -> None:
    scope: dict[str, object] = {}
    exec("import torch\nimport compilemask as cm", scope)
    before = set(scope)
    (code,) = re.findall(r"^```python\n(.*?)^```", SECTIONS[name], re.MULTILINE | re.DOTALL)
    exec(code, scope)
    masks = [value for key, value in scope.items() if key not in before and isinstance(value, cm.Mask)]
    assert masks
    for mask in masks:
        mask.check_lengths(2**17, 2**17)


@pytest.mark.parametrize("name", EXAMPLES)
def test_picture_shows_the_mask(name: str) -> None:
    image = pytest.importorskip("matplotlib.image")
    pixels = np.round(image.imread(DOCS / "pictures" / f"{name}.png")[:, :, :3] * 255).astype(int)
    shown = (pixels == VISIBLE).all(axis=-1)
    expected = EXAMPLES[name].mask(len(shown)).dense(*shown.shape)[0, 0].numpy()
    assert np.array_equal(shown, expected), "run `python docs/draw_pictures.py`"
