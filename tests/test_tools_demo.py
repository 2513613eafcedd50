"""The demo, on one mask."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilemask.tools import demo


def test_demo_shows_levels_and_checks_attention(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["hstu", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for level in ("mask.func", "interval.func", "tiling.func", "largest error"):
        assert level in out
    names = {path.name for path in tmp_path.iterdir()}
    assert {"hstu_1024.png", "hstu_1000.png", "hstu.tiling.mlir", "hstu.ttir", "attention.ptx"} <= names


def test_headlines_have_the_sizes_of_their_definition() -> None:
    assert demo.EXAMPLES["clear"].parameters(1024) == {"height": 16, "width": 32, "radius": 16, "text": 512}
    assert demo.EXAMPLES["clear"].parameters(1000) == {"height": 8, "width": 61, "radius": 16, "text": 512}
    assert demo.EXAMPLES["hstu"].parameters(1024) == {"history": 896, "contexts": 100}
    offsets = demo.EXAMPLES["shared_prompt"].parameters(1024)["offsets"]
    assert isinstance(offsets, tuple)
    assert offsets[:2] == (0, 128)
    assert len(offsets) == 10


def test_unknown_mask_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        demo.main(["casual"])
    assert refused.value.code == 2
    assert "no mask is named 'casual'" in capsys.readouterr().err
