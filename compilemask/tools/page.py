"""A mask as one HTML page that needs nothing else: moving over it shows row, intervals, tile and descriptor entry.

compilemask draw hstu --seq 1024 -o hstu.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from compilemask.errors import ShapeError
from compilemask.tools.draw import FULL, PARTIAL, TILE, Survey, mask_rows, survey, title_of

if TYPE_CHECKING:
    from compilemask.language.mask import Mask

MOST_POSITIONS = 4096
"""Most queries and keys of a page: it holds the intervals of every row."""
TEMPLATE = Path(__file__).parent / "page.html"


def write_page(mask: Mask, queries: int, keys: int, path: str | Path, title: str | None = None) -> Survey:
    """Write the page of a mask (of its first batch and head); what it shows.

    Raises:
        ShapeError: there are more than 4,096 queries or keys, or none.
        MaskError: the mask does not fit so many queries and keys.
    """
    for name, length in (("queries", queries), ("keys", keys)):
        if not 1 <= length <= MOST_POSITIONS:
            raise ShapeError(f"{name} is {length}, a page shows 1 to {MOST_POSITIONS}")
    mask.check_lengths(queries, keys)
    visible = mask_rows(mask, queries, keys)
    seen = survey(visible, queries, keys)
    summary = (
        f"{seen.visible:,} of {queries:,} x {keys:,} pairs visible ({seen.density:.1%}); "
        f"{seen.count(FULL):,} full and {seen.count(PARTIAL):,} partial of {seen.classes.size:,} tiles"
    )
    content = {
        "title": title or title_of(mask),
        "summary": summary,
        "queries": queries,
        "keys": keys,
        "tile": TILE,
        "rows": list(_intervals(visible(0, queries))),
        **_descriptor(mask, queries, keys),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    # `</` must not end the script element that holds the data.
    data = json.dumps(content, separators=(",", ":")).replace("</", "<\\/")
    page = text.replace("@TITLE@", mask.name).replace("@DATA@", data)
    Path(path).write_text(page, encoding="utf-8")
    return seen


def _intervals(dense: npt.NDArray[np.bool_]) -> Iterator[list[int]]:
    """The visible keys of each row as [lo, hi, lo, hi, ...]."""
    padded = np.pad(dense.astype(np.int8), ((0, 0), (1, 1)))
    for row in np.diff(padded, axis=1):
        yield np.flatnonzero(row).tolist()


def _descriptor(mask: Mask, queries: int, keys: int) -> dict[str, Any]:
    """The query tiles of a descriptor and the order in which they are launched."""
    import compilemask as cm

    descriptor = cm.compile(mask).descriptor(queries, keys).check()
    records = cast("list[list[int]]", descriptor.tiles[0, 0].tolist())
    tiles = [
        {"first": record[0], "partial": tile.partial, "full": tile.full, "cost": tile.cost}
        for record, tile in zip(records, descriptor.tiles_of(0, 0), strict=True)
    ]
    return {"tiles": tiles, "order": descriptor.order[0, 0, :, 0].tolist()}


__all__ = ["write_page"]
