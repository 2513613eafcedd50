"""Draws the pictures of docs/masks.md: `python docs/draw_pictures.py`. One pixel is one pair."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from compilemask.tools.examples import EXAMPLES

PICTURES = Path(__file__).parent / "pictures"
LENGTH = 256
HIDDEN, VISIBLE = (0xEE, 0xF1, 0xF4), (0x00, 0x72, 0xB2)
"""Light grey and a dark blue: they differ in lightness, whatever colours one sees."""


def main() -> None:
    """Writes a PNG for every mask that has a name."""
    from matplotlib.image import imsave

    PICTURES.mkdir(exist_ok=True)
    for name, example in EXAMPLES.items():
        visible = example.mask(LENGTH).dense(LENGTH, LENGTH)[0, 0].numpy()
        pixels = np.where(visible[:, :, None], np.uint8(VISIBLE), np.uint8(HIDDEN))
        imsave(PICTURES / f"{name}.png", pixels)


if __name__ == "__main__":
    main()
