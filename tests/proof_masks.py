"""The masks whose lowerings are proved: leaves, the catalogue, and combinations that lower in unusual ways."""

from __future__ import annotations

import compilemask as cm

OFFSETS = [0, 5, 9]

MASKS: dict[str, cm.Mask] = {
    "full": cm.full(),
    "causal": cm.causal(),
    "causal from the end": cm.causal(align="bottom_right"),
    "window": cm.window(20, 7),
    "window from the end": cm.window(20, None, align="bottom_right"),
    "band": cm.band(-3, 5),
    "rows": cm.rows(3, 9),
    "columns": cm.cols(3, 9),
    "document": cm.document(OFFSETS),
    "causal document": cm.causal() & cm.document(OFFSETS),
    "shared prompt": cm.shared_prompt(OFFSETS),
    "hstu": cm.hstu(100, 5),
    "hstu with padding": cm.hstu(100, 5, 150),
    "padding": cm.padding(50),
    "sink and window": cm.causal() & (cm.cols(0, 4) | cm.window(13)),
    "prefix": cm.causal() | cm.cols(0, 7),
    "longformer": cm.window(16, 16) | cm.rows(0, 4) | cm.cols(0, 4),
    "chunked": cm.causal() & cm.where(lambda q, kv, size: q // size == kv // size, size=64),
    "moved": (cm.causal() & cm.document(OFFSETS)).shift(3, -2),
    "disk in a part": cm.disk2d(5, 8, 3, 2).place((3, 60), (9, 70)),
    "predicate in a part": cm.where(lambda q, kv: (kv % 16 < q) & (kv > 3)).place((3, 60), (9, 70)),
    "concatenated": cm.concatenate(
        [cm.causal(), ~cm.window(5, 3), cm.full(), cm.document(OFFSETS)], [0, 20, 60, 90, 120]
    ),
    "concatenated keys": cm.concatenate([cm.causal("bottom_right"), cm.hstu(10, 3)], [0, 5, 25], [0, 10, 40]),
    "labels": cm.causal() & cm.where(lambda q, kv, label: label[q] == label[kv], label=[1, 2, 1]),
    "disk": cm.disk2d(4, 5, 3),
    "disk behind text": cm.disk2d(40, 50, 8, origin=4),
    "box": cm.box2d(4, 5, 2, 3),
    "clear": cm.clear(4, 5, 16, text=7),
    "outside a window": ~cm.window(12, 12),
    "far in the document": cm.document(OFFSETS) - cm.window(4),
    "outside a disk": ~cm.disk2d(4, 5, 3),
    "causal clear": cm.clear(4, 5, 3, text=7) & cm.causal(),
}

SORTED_LABELS = """
mask.func @sorted_labels(%label: memref<?xi32>) -> !mask.region {
  %near = mask.where {
  ^bb0(%q: i32, %kv: i32):
    %own = mask.read %label[%q] : memref<?xi32>
    %other = mask.read %label[%kv] : memref<?xi32>
    %same = arith.cmpi eq, %own, %other : i32
    mask.yield %same
  } {ascending = [0]}
  mask.return %near
}
"""
"""Intervals by search in an ascending table."""

MASKS["sorted labels"] = cm.parse(SORTED_LABELS, label=[0, 0, 1, 4])

UNKNOWN: dict[tuple[str, str], str] = {}
"""Claims that the solver does not decide in time, by mask and name, and why."""
