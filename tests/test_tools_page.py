"""The HTML page, in a real headless browser: what it says of a pair is what the mask and its descriptor say."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import compilemask as cm
from compilemask.errors import MaskError, ShapeError
from compilemask.tools import cli
from compilemask.tools.examples import EXAMPLES, HEADLINES
from compilemask.tools.page import write_page

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt-get install chromium")


def test_a_page_needs_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hstu.html"
    assert cli.main(["draw", "hstu", "--seq", "300", "-o", str(path)]) == 0
    assert "pairs visible" in capsys.readouterr().out
    text = path.read_text()
    assert not re.search(r"@\w+@", text)
    assert not re.search(r"""(?:src|href)\s*=|https?:|@import|fetch\(""", text)


def test_names_cannot_leave_the_data(tmp_path: Path) -> None:
    write_page(cm.causal(), 8, 8, tmp_path / "x.html", title="</script><script>alert(1)</script>")
    assert (tmp_path / "x.html").read_text().count("</script>") == 2


def test_bad_sizes(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match="keys is 4097"):
        write_page(cm.causal(), 4096, 4097, tmp_path / "x.html")
    with pytest.raises(MaskError):
        write_page(cm.hstu(300, 5), 100, 100, tmp_path / "x.html")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=options)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        yield page
        browser.close()


def open_page(page: Any, path: Path) -> list[str]:
    """Open a page; the errors of its scripts, which grow as they happen."""
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    return errors


@needs_browser
@pytest.mark.parametrize("name", HEADLINES)
def test_moving_over_a_mask_shows_what_is_there(name: str, page: Any, tmp_path: Path) -> None:
    queries = keys = 700
    mask, path = EXAMPLES[name].mask(queries), tmp_path / f"{name}.html"
    write_page(mask, queries, keys, path)
    errors = open_page(page, path)
    dense = mask.dense(queries, keys)[0, 0]
    descriptor = cm.compile(mask).descriptor(queries, keys)
    box = page.locator("#plane").bounding_box()
    for x, y in ((5, 5), (360, 358), (700, 20), (20, 700), (710, 712), (500, 613)):
        page.mouse.move(box["x"] + x, box["y"] + y)
        found = re.fullmatch(r"query (\d+), key (\d+): (visible|not visible)", page.inner_text("#pair"))
        assert found
        q, kv = int(found[1]), int(found[2])
        assert abs(q - y * queries / 720) < 3
        assert abs(kv - x * keys / 720) < 3
        assert (found[3] == "visible") == bool(dense[q, kv])
        assert page.inner_text("#row").startswith(f"query {q} sees {int(dense[q].sum())} of {keys} keys, in ")
        visits = descriptor.tiles_of(0, 0)[q // 128]
        expected = "empty"
        if kv // 128 in dict(visits.partial):
            expected = "partial"
            assert f"pattern {dict(visits.partial)[kv // 128]}" in page.inner_text("#visit")
        elif any(begin <= kv // 128 < end for begin, end in visits.full):
            expected = "full"
        assert page.inner_text("#tile") == f"query tile {q // 128}, key tile {kv // 128}: {expected}"
        entry = page.inner_text("#entry")
        assert f"{len(visits.partial)} partial, runs of full ones: {len(visits.full)}, cost {visits.cost}" in entry
        assert re.match(r"[1-6] of 6 query tiles", page.inner_text("#launch"))
    assert not errors


@needs_browser
def test_keys_move_and_tiles_have_their_colours(page: Any, tmp_path: Path) -> None:
    write_page(cm.causal(), 512, 512, tmp_path / "causal.html")
    errors = open_page(page, tmp_path / "causal.html")
    page.focus("#plane")
    for key in ("Shift+ArrowDown", "Shift+ArrowDown", "ArrowRight", "ArrowUp", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
    assert page.inner_text("#pair") == "query 255, key 0: visible"
    page.check("#order")

    def pixel(x: int, y: int) -> list[int]:
        return page.evaluate(f"[...picture.getContext('2d').getImageData({x}, {y}, 1, 1).data].slice(0, 3)")

    full, empty = pixel(20, 300), pixel(600, 100)
    assert full == [0x1F, 0x4E, 0x79]
    assert empty == [0xEC, 0xEF, 0xF4]
    seam = {tuple(pixel(20, y)) for y in range(40, 170)}
    assert seam == {tuple(full)}, "rows leave no seams"
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert not errors
