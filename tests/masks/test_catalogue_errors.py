"""Bad parameters of the catalogue's constructors: each is refused where it is given, in words that help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import compilemask as cm

make: Any = cm
"""The constructors, for arguments that their types forbid."""

BAD: dict[str, tuple[Callable[[], object], str]] = {
    "no convention": (lambda: cm.sliding_window(50), "50 means different windows; pass convention=, one of 'attention"),
    "unknown convention": (lambda: make.sliding_window(50, "cudnn"), "convention must be one of .* got 'cudnn'"),
    "one size for two sides": (lambda: cm.sliding_window(50, "flash_attention"), "takes a pair .left, right., got 50"),
    "two sides for one size": (lambda: cm.sliding_window((5, 5), "hugging_face"), r"counts one size, got \(5, 5\)"),
    "side below -1": (lambda: cm.sliding_window((-2, 0), "flash_attention"), "left must be at least -1, got -2"),
    "empty window": (lambda: cm.sliding_window(0, "hugging_face"), "size must be at least 1, got 0"),
    "negative window": (lambda: cm.sliding_window(-1, "attention_gym"), "got -1"),
    "chunked": (lambda: cm.chunked(0), "chunked: size must be at least 1, got 0"),
    "chunked tensor": (lambda: make.chunked(torch.tensor(8)), "chunked: size must be an int"),
    "blocks": (lambda: make.blocks(2.0), "blocks: size must be an int, got 2.0 .float."),
    "prefix_lm": (lambda: cm.prefix_lm(-1), "prefix_lm: prefix must be at least 0, got -1"),
    "prefix too long": (lambda: cm.prefix_lm(9).check_lengths(8, 8), "the prefix is 9; .* expected at most 8"),
    "ids scalar": (lambda: make.document_ids(3), "document_ids: ids must be integers of shape"),
    "ids unsorted": (lambda: cm.document_ids([1, 0], ascending=True), "do not ascend, but ascending=True says so"),
    "ids maybe": (
        lambda: make.document_ids([0, 1], ascending="yes"),
        "ascending must be True, False or None, got 'yes'",
    ),
    "ids too many": (lambda: cm.document_ids([0, 1]).check_lengths(1, 1), "the number of ids is 2"),
    "causal_document": (lambda: cm.causal_document([0, 5, 3]), "must ascend, but entry 1 is 5 and entry 2 is 3"),
    "causal_blockwise": (lambda: cm.causal_blockwise([0]), "at least 2 entries"),
    "packs": (lambda: cm.shared_prompt([0, 5, 9], [0, 4, 9]), "packs must be offsets, but 4 is none"),
    "packs end early": (lambda: cm.shared_prompt([0, 5, 9], [0, 5]), "must begin with the first offset and end with"),
    "longformer": (lambda: cm.longformer(-1), "longformer: reach must be at least 0"),
    "longformer leading": (lambda: cm.longformer(1, -1), "longformer: leading must be at least 0"),
    "longformer flags": (lambda: make.longformer(1, 0, [True]), "flags must be integers of shape"),
    "random_eviction": (lambda: cm.random_eviction(torch.zeros(2)), "evict must be int32 or int64, got torch.float32"),
    "sink_window": (lambda: cm.sink_window(0), "sink_window: size must be at least 1"),
    "sink_window sinks": (lambda: cm.sink_window(4, -1), "sink_window: sinks must be at least 0"),
    "dilated_window": (lambda: cm.dilated_window(8, 0), "dilated_window: step must be at least 1"),
    "dilated_window reach": (lambda: cm.dilated_window(-8, 1), "dilated_window: reach must be at least 0"),
    "strided": (lambda: cm.strided(0), "strided: stride must be at least 1"),
    "periodic": (lambda: cm.periodic(0), "periodic: period must be at least 1"),
    "transformer_xl": (lambda: make.transformer_xl("8"), "transformer_xl: size must be an int, got '8'"),
    "bigbird block": (lambda: cm.bigbird(0, [[1]]), "bigbird: block must be at least 1"),
    "bigbird reach": (lambda: cm.bigbird(8, [[1]], reach=-1), "bigbird: reach must be at least 0"),
    "bigbird table": (lambda: cm.bigbird(8, [1, 2]), r"random must be integers of shape \[n, r\], .* got \[2\]"),
    "topk_blocks": (lambda: cm.topk_blocks(torch.zeros(1, 2, 0, 4, dtype=torch.int32), 8), "indices must have entries"),
    "topk_blocks rank": (lambda: cm.topk_blocks(torch.zeros(1, 1, 1, 1, 1).int(), 8), r"\[B, H, n, k\], got \[1, 1, 1"),
    "topk_blocks type": (lambda: cm.topk_blocks(torch.zeros(2, 4), 8), "must be int32 or int64"),
    "tree cycle": (lambda: cm.draft_tree([-1, 1], 4, 3), r"parents\[1\] is 1"),
    "tree root": (lambda: cm.draft_tree([-2], 4, 3), "parents must be at least -1"),
    "tree depth": (lambda: cm.draft_tree([-1, 0, 1], 4, 1), "has 2 ancestors, more than depth=1"),
    "tree prefix": (lambda: cm.draft_tree([-1], -4, 1), "prefix must be at least 0"),
    "tree too long": (lambda: cm.draft_tree([-1, 0], 4, 1).check_lengths(5, 5), "the end of the tree is 6"),
    "transfusion shapes": (lambda: cm.transfusion([0], [1, 2]), "must have one shape"),
    "transfusion backwards": (lambda: cm.transfusion([5], [2]), "ends before it begins"),
    "transfusion overlap": (lambda: cm.transfusion([0, 5], [7, 9]), "must ascend and not overlap"),
    "paligemma": (lambda: cm.paligemma([1, 0]), "paligemma: blocks must ascend"),
    "paligemma lengths": (lambda: cm.paligemma([0, 1], -1), "lengths must be at least 0"),
    "show_o": (lambda: cm.show_o(5, 3), "begin must be at most end"),
    "show_o padding": (lambda: cm.show_o(0, 3, -1), "padding must be at least 0"),
    "natten too large": (lambda: cm.natten2d(8, 5, 7), "a window of 7 does not fit width 5"),
    "natten dilated": (lambda: cm.natten2d(8, 8, 3, 3), "a window of 9 does not fit height 8"),
    "natten window": (lambda: make.natten2d(8, 8, (3, 3, 3)), "must be an int, or 2 ints for height, width"),
    "natten dilation": (lambda: cm.natten3d(4, 8, 8, 3, 0), "natten3d: dilation must be at least 1"),
    "natten size": (lambda: cm.natten3d(0, 8, 8, 3), "natten3d: frames must be at least 1"),
    "natten too long": (lambda: cm.natten2d(8, 8, 3).check_lengths(60, 60), "natten2d: the end of the image is 64"),
    "sliding_tile": (lambda: cm.sliding_tile2d(2, 8, 16, 3), "a window of 3 does not fit height 2"),
    "sliding_tile tile": (lambda: cm.sliding_tile3d(4, 4, 4, 0, 3), "tile must be at least 1"),
    "sliding_tile text": (lambda: cm.sliding_tile2d(4, 4, 8, 3, -1), "text must be at least 0"),
    "sliding_tile too long": (lambda: cm.sliding_tile2d(4, 4, 8, 3, 2).check_lengths(129, 9), "end of the text is 130"),
    "sam_window": (lambda: cm.sam_window(8, 8, 0), "sam_window: size must be at least 1"),
    "hstu group": (lambda: cm.hstu(5, group=0), "hstu: group must be at least 1"),
    "hstu_arbitrary even": (lambda: cm.hstu_arbitrary([[1], [2]]), "an odd number for each row, got 2"),
    "hstu_arbitrary order": (lambda: cm.hstu_arbitrary([[3], [2], [5]]), "the bounds of each row must ascend"),
    "slices counts": (lambda: cm.slices([[0, 1]], [[0, 1], [1, 2]], [0]), "must be of equally many slices"),
    "slices pairs": (lambda: cm.slices([[0, 1, 2]], [[0, 1]], [0]), "a begin and an end for each slice, got 3"),
    "slices kinds": (lambda: cm.slices([[0, 1]], [[0, 1]], [4]), "3 both, got 4"),
    "gappy": (lambda: cm.gappy(-1, 5), "gappy: starts must be at least 0"),
    "gappy too long": (lambda: cm.gappy(4, 5).check_lengths(20, 8), "the end of the keys is 9"),
    "padding side": (lambda: make.padding(3, "left"), "side must be 'trailing' or 'leading', got 'left'"),
    "radius convention": (lambda: cm.clear(4, 4, 2, smallest=2), "smallest must be 0 or 1"),
    "radius": (lambda: cm.disk2d(4, 4, -1, smallest=0), "disk2d: radius must be at least 0, got -1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_parameters_are_refused(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(cm.MaskError, match=message):
        call()


@pytest.mark.parametrize("make", [cm.document_ids, cm.paligemma, lambda table: cm.transfusion(table, table)])
def test_tables_that_no_longer_ascend_are_noticed(make: Callable[[torch.Tensor], cm.Mask]) -> None:
    table = torch.tensor([0, 0, 1, 2], dtype=torch.int32)
    mask, q = make(table), torch.randn(1, 1, 4, 8)
    cm.attention(q, q, q, mask)
    table[1] = 3
    with pytest.raises(cm.MaskError, match="must ascend, but entry 1 is 3 and entry 2 is 1"):
        cm.attention(q, q, q, mask)


def test_lines_bound_later_are_not_empty() -> None:
    with pytest.raises(cm.MaskError, match="width must be at least 1, got 0"):
        cm.compile(cm.natten2d(4, 4, 3)).bind(width=0)


def test_radii_from_0_and_from_1_are_one_mask() -> None:
    assert (cm.disk2d(6, 7, 3).dense(42, 42) == cm.disk2d(6, 7, 2, smallest=0).dense(42, 42)).all()
    itself = cm.disk2d(6, 7, 0, smallest=0).dense(42, 42)[0, 0]
    assert (itself == torch.eye(42, dtype=torch.bool)).all()


def test_sizes_and_tables_in_memory_are_run_time_data() -> None:
    height, parents = torch.tensor([4, 5], dtype=torch.int32), torch.tensor([[-1, 0, 0], [-1, 0, 1]])
    mask, tree = cm.natten2d(height, 4, 3), cm.draft_tree(parents, 4, 2)
    assert mask.batch_shape == tree.batch_shape == (2, 1)
    for b in range(2):
        assert (mask.dense(20, 20)[b, 0] == cm.natten2d(int(height[b]), 4, 3).dense(20, 20)[0, 0]).all()
        assert (tree.dense(9, 9)[b, 0] == cm.draft_tree(parents[b], 4, 2).dense(9, 9)[0, 0]).all()
    assert tree.key == cm.draft_tree([[-1, 0, 0]], 4, 2).key


def test_new_values_of_one_structure_share_their_ir() -> None:
    assert cm.bigbird(8, [[1, 2]]).key == cm.bigbird(8, [[0, 3], [1, 1]]).key
    assert cm.sliding_tile2d(4, 4, 8, 3, 5).key == cm.sliding_tile2d(5, 6, 8, 3, 7).key
    assert cm.natten2d(4, 4, 3).key != cm.natten2d(4, 4, 1).key
    assert cm.sam_window(4, 4, 3).key != cm.natten2d(4, 4, 3).key
