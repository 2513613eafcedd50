"""Which shape the tiles of an image get: counts against descriptors, and when there is no choice."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import compilemask as cm
from compilemask.lowering import patch_choice
from compilemask.lowering.patch_grid import Patches
from compilemask.runtime import Descriptor


def visits(descriptor: Descriptor) -> float:
    """Key tiles that a query tile visits on average."""
    return float((descriptor.tiles[..., 4] + descriptor.tiles[..., 6]).float().mean())


@pytest.mark.parametrize(
    ("mask", "length"),
    [
        (cm.clear(40, 48, 6, text=70), 70 + 40 * 48),
        (cm.clear(37, 51, 4), 37 * 51 + 100),
        (cm.natten2d(40, 40, 7), 1600),
        (cm.natten3d(8, 12, 16, (3, 5, 5)), 8 * 12 * 16),
        (cm.box2d(60, 30, 3, origin=5) | cm.causal(), 2000),
    ],
    ids=["clear", "ragged", "natten2d", "natten3d", "box"],
)
def test_counts_are_those_of_descriptors(mask: cm.Mask, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch_choice, "COUNTED_TILES", 10**6)
    compiled = cm.compile(mask)
    choice = compiled.patches_for(length, length)
    assert choice is not None
    assert choice.by_runs == pytest.approx(visits(compiled.descriptor(length, length)))
    for patches, count in choice.by_patches.items():
        assert count >= visits(compiled.descriptor(length, length, patches=patches)) - 1e-6
        assert count <= 1.1 * visits(compiled.descriptor(length, length, patches=patches))


def test_a_large_disk_is_worth_patches() -> None:
    mask = cm.clear(168, 192, 16, text=512)
    length = 512 + 168 * 192
    choice = cm.compile(mask).patches_for(length, length)
    assert choice is not None
    assert choice.patches is not None
    assert choice.patches == Patches(512, (168, 192), length, (8, 16), (8, 16))
    assert choice.by_patches[choice.patches] < 0.5 * choice.by_runs


def test_more_query_tiles_are_not_overlooked() -> None:
    """One tile is visited in either order; on average patches visit less, as there are more of them."""
    choice = cm.compile(cm.clear(1, 1, 1)).patches_for(640, 640)
    assert choice is not None
    assert min(choice.by_patches.values()) < 0.9 * choice.by_runs
    assert choice.patches is None


@pytest.mark.parametrize("wrong", ["a", None, [1], True, 1.5, -1, 2**40, torch.tensor(640)], ids=repr)
def test_impossible_lengths(wrong: Any) -> None:
    for lengths in ((wrong, wrong), (640, wrong)):
        with pytest.raises((cm.DTypeError, cm.ShapeError), match="expected"):
            cm.compile(DISK).patches_for(*lengths)


DISK = cm.disk2d(20, 32, 5)
NO_CHOICE = {
    "other lengths": (cm.natten2d(20, 32, 5), 700, "640 queries, but 700 keys"),
    "per batch": (cm.natten2d(torch.tensor([20, 10]), 32, 5), 640, "sizes of the image are tables"),
    "two images": (cm.natten2d(20, 32, 5) | cm.natten2d(10, 32, 5), 640, "several images"),
    "tables": (cm.natten2d(20, 32, 5) & cm.document([0, 100, 640]), 640, r"in tables \(offsets\)"),
    "moved": (DISK.shift(100, 100), 740, "part of the sequence"),
    "placed": (DISK.place((0, 640), (0, 640)), 640, "part of the sequence"),
    "one behind the other": (cm.concatenate([DISK, DISK], [0, 640, 1280]), 1280, "part of the sequence"),
    "a function": (cm.from_mask_mod(lambda b, h, q, kv: abs(q % 32 - kv % 32) < 3), 640, "which image"),
    "tokens in tiles": (cm.sliding_tile2d(5, 8, 16, 3), 640, "which image"),
    "other lines": (cm.sliding_tile2d(5, 8, 16, 3) | DISK, 640, "another raster"),
}


@pytest.mark.parametrize("name", NO_CHOICE)
def test_no_choice(name: str) -> None:
    mask, keys, why = NO_CHOICE[name]
    choice = cm.compile(mask).patches_for(640 if name == "other lengths" else keys, keys)
    assert choice is not None
    assert choice.patches is None
    assert re.search(why, choice.no_choice)
    if name != "other lengths":
        assert re.search(f"patches +none: {re.escape(choice.no_choice)}", str(cm.explain(mask, keys)))


@pytest.mark.parametrize("mask", [cm.causal(), cm.window(30), cm.document([0, 100, 640])])
def test_nothing_is_said_of_masks_without_lines(mask: cm.Mask) -> None:
    assert cm.compile(mask).patches_for(640, 640) is None
    assert "patches" not in str(cm.explain(mask, 640))


def test_it_is_explained() -> None:
    found = cm.explain(cm.disk2d(128, 128, 12), 128 * 128)
    assert found.patches is not None
    assert found.visited is not None
    shape = "x".join(map(str, found.patches))
    assert f"patches     {shape} on a GPU: a query tile visits {found.visited['runs']:.1f} (runs)" in str(found)
    assert cm.explain(cm.causal()).visited is None
