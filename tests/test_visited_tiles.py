"""How many partial tiles a mask may have: the bound holds (test_levels_agree), and it is tight where it can be."""

from __future__ import annotations

import pytest
import torch

import compilemask as cm
from compilemask.lowering import pipeline
from compilemask.lowering.visited_tiles import most_partial_tiles

LABELS = torch.randint(0, 3, (4096,), generator=torch.Generator().manual_seed(1))
ODD = cm.where(lambda q, kv: (q - kv) % 2 == 0)
SAME = cm.where(lambda q, kv, label: label[q] == label[kv], label=LABELS)


def bound(mask: cm.Mask, queries: int, keys: int) -> int:
    """The bound, with integers known and tables not."""
    func = pipeline.interval_of(pipeline.lower(mask.module(), "interval"))
    known = [parameter.value if isinstance(parameter.value, int) else None for parameter in mask.parameters]
    return most_partial_tiles(func, known, queries, keys, 128)


@pytest.mark.parametrize(
    ("mask", "most"),
    [
        (ODD, 32 * 32),
        (ODD & cm.causal(), 32 * 33 // 2),
        (ODD & cm.window(128, 128), 32 * 3),
        (ODD & cm.rows(128, 256), 32),
        (ODD & cm.cols(100, 400), 32 * 4),
        (ODD.place((1024, 2048), (2048, 3072)), 8 * 8),
        (SAME & cm.causal() & cm.document([0, 5, 4096]), 32 * 33 // 2),
        ((ODD & cm.window(64, 64)) | cm.cols(0, 2048), 32 * 16),
    ],
    ids=["everything", "past", "window", "rows", "columns", "part", "tables are not looked at", "full columns"],
)
def test_the_bound(mask: cm.Mask, most: int) -> None:
    assert bound(mask, 4096, 4096) <= most


def test_a_descriptor_takes_no_more_room() -> None:
    small = cm.explain(ODD & cm.window(128, 128), 4096)
    assert small.partial_tiles <= small.pattern_capacity <= 96
    assert small.descriptor_bytes < 300 * 1024


def test_values_on_the_host_count_and_the_room_is_worked_out_once_per_value() -> None:
    narrow, wide = (cm.compile(ODD & cm.window(size)) for size in (128, 1024))
    assert narrow.program is wide.program
    rooms = [compiled.descriptor(4096).layout.pattern_capacity for compiled in (narrow, wide, narrow)]
    assert rooms[0] == rooms[2] < rooms[1]
