"""The printed IR of the four headline masks. UPDATE_GOLDEN=1 writes the files anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import compilemask as cm

GOLDEN = Path(__file__).parent / "golden"
HEADLINES: dict[str, cm.Mask] = {
    "causal": cm.causal(),
    "hstu": cm.hstu(896, 100),
    "shared_prompt": cm.shared_prompt([0, 128, 256, 1024]),
    "clear": cm.clear(16, 32, 16, 512),
}


@pytest.mark.parametrize("name", HEADLINES)
def test_printed_ir(name: str) -> None:
    path, text = GOLDEN / f"{name}.mlir", f"{HEADLINES[name]}\n"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", HEADLINES)
def test_printed_ir_reads_back(name: str) -> None:
    mask = HEADLINES[name]
    values = {parameter.name: parameter.value for parameter in mask.parameters}
    again = cm.load(GOLDEN / f"{name}.mlir", **values)
    assert str(again) == str(mask)
    assert (again.dense(600, 700) == mask.dense(600, 700)).all()
