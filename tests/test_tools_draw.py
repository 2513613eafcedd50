"""Pictures: what they count, and that a file comes out."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from compilemask.errors import MissingDependencyError
from compilemask.tools.draw import EMPTY, FULL, PARTIAL, PIXELS, TILE, Rows, draw, mask_rows, survey
from compilemask.tools.examples import EXAMPLES, HEADLINES, answer_offsets, document_offsets, image_size


def rows_of(dense: np.ndarray) -> Rows:
    """A dense mask, a few rows at a time."""
    return lambda first, last: dense[first:last]


def expected_class(dense: np.ndarray, m: int, n: int) -> int:
    """The class of one tile, from its definition."""
    tile = dense[m * TILE : (m + 1) * TILE, n * TILE : (n + 1) * TILE]
    if tile.all() and tile.shape[1] == TILE:
        return FULL
    return PARTIAL if tile.any() else EMPTY


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (128, 128), (300, 257), (129, 1000), (2600, 700)])
def test_survey_counts_pairs_and_tiles(queries: int, keys: int) -> None:
    q, kv = np.arange(queries)[:, None], np.arange(keys)[None, :]
    dense = (kv <= q) | (q >= 256)
    seen = survey(rows_of(dense), queries, keys)
    assert seen.visible == dense.sum()
    assert seen.classes.tolist() == [
        [expected_class(dense, m, n) for n in range(-(-keys // TILE))] for m in range(-(-queries // TILE))
    ]
    assert max(seen.shade.shape) <= PIXELS
    pixel = -(-queries // seen.shade.shape[0])
    np.testing.assert_allclose(seen.shade[0, 0], dense[:pixel, :pixel].mean(), rtol=1e-6)


@pytest.mark.parametrize("name", HEADLINES)
def test_rows_are_those_of_the_dense_mask(name: str) -> None:
    mask = EXAMPLES[name].mask(300)
    rows = mask_rows(mask, 300, 300)
    dense = mask.dense(300, 300).numpy()[0, 0]
    np.testing.assert_array_equal(np.concatenate([rows(0, 100), rows(100, 300)]), dense)


def test_draw_writes_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "hstu.png"
    seen = draw(EXAMPLES["hstu"].mask(1024), 1024, path=path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert seen.classes.shape == (8, 8)


@pytest.mark.parametrize("keys", [300, 2500])
def test_draw_writes_svg(keys: int, tmp_path: Path) -> None:
    path = tmp_path / "window.svg"
    draw(EXAMPLES["window"].mask(300), 300, keys, path)
    text = path.read_text()
    assert text.startswith("<?xml")
    assert "</svg>" in text


def test_survey_knows_intervals_load_and_visits() -> None:
    q, kv = np.arange(300)[:, None], np.arange(512)[None, :]
    dense = ((kv < 128) | (kv == q + 200)) & (q < 256)
    seen = survey(rows_of(dense), 300, 512)
    assert seen.intervals.tolist() == [2] * 256 + [0] * 44
    assert [seen.visits(tile) for tile in range(3)] == [[1, 2, 0], [2, 3, 0], []]
    assert seen.load.tolist() == [2 * 11 + 10 + 15, 2 * 11 + 10 + 15, 15]


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"compilemask\[draw\]"):
        draw(EXAMPLES["causal"].mask(64), 64)


@pytest.mark.parametrize("length", [1, 2, 9, 100, 1000, 1024])
def test_example_parameters_fit_every_length(length: int) -> None:
    for offsets in (answer_offsets(length), document_offsets(length)):
        assert offsets[0] == 0
        assert offsets[-1] == length
        assert list(offsets) == sorted(offsets)
    height, width = image_size(length)
    assert height * width == length
    for example in EXAMPLES.values():
        assert example.mask(length).batch_shape == (1, 1)
