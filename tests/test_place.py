"""Masks that are moved, cut off and put behind one another: each equals a picture that is put together by hand."""

from __future__ import annotations

import pytest
import torch
from test_descriptor_kernels import check_equal
from test_levels_agree import check_levels

import compilemask as cm
from compilemask.dialects import interval
from compilemask.lowering import pipeline

CAUSAL_DOCUMENTS = cm.causal() & cm.document([0, 10, 30])


def arity(mask: cm.Mask) -> int | None:
    """How many intervals a row has at most; None if a predicate decides."""
    func = pipeline.interval_of(pipeline.lower(mask.module(), "interval"))
    end = func.body.block.last_op
    assert isinstance(end, interval.ReturnOp)
    return None if isinstance(end.value.owner, interval.BetweenOp) else interval.set_of(end.value).count


def picture(mask: cm.Mask, queries: int, keys: int) -> torch.Tensor:
    """The visible pairs, after a look at all levels."""
    check_levels(mask, queries, keys)
    return mask.dense(queries, keys)[0, 0]


def test_a_part_counts_from_its_begin_and_has_its_own_size() -> None:
    mask = cm.causal("bottom_right").place((5, 9), (20, 40))
    expected = torch.zeros(50, 60, dtype=torch.bool)
    expected[5:9, 20:40] = cm.causal("bottom_right").dense(4, 20)[0, 0]
    assert torch.equal(picture(mask, 50, 60), expected)
    assert arity(mask) == 1


@pytest.mark.parametrize(("rows", "cols"), [(3, 4), (-3, 4), (3, -4), (-3, -4), (0, 100), (-100, 0)])
def test_a_shifted_mask_is_the_picture_moved(rows: int, cols: int) -> None:
    size = 25
    before = CAUSAL_DOCUMENTS.dense(size + 100, size + 100)[0, 0]
    expected = torch.zeros(size, size, dtype=torch.bool)
    for q in range(max(rows, 0), size):
        for kv in range(max(cols, 0), size):
            expected[q, kv] = before[q - rows, kv - cols]
    mask = CAUSAL_DOCUMENTS.shift(rows, cols)
    assert torch.equal(picture(mask, size, size), expected)
    assert arity(mask) == 1


def test_what_moves_in_is_invisible_also_for_a_complement() -> None:
    expected = torch.zeros(20, 20, dtype=torch.bool)
    expected[4:, 3:] = (~cm.causal()).dense(16, 17)[0, 0]
    assert torch.equal(picture((~cm.causal()).shift(4, 3), 20, 20), expected)


def test_a_cropped_mask_keeps_its_place_and_can_be_moved_to_the_origin() -> None:
    mask = CAUSAL_DOCUMENTS.crop((8, 25), (5, 21))
    expected = torch.zeros(40, 40, dtype=torch.bool)
    expected[8:25, 5:21] = CAUSAL_DOCUMENTS.dense(40, 40)[0, 0, 8:25, 5:21]
    assert torch.equal(picture(mask, 40, 40), expected)
    assert torch.equal(picture(mask.shift(-8, -5), 17, 16), expected[8:25, 5:21])
    assert torch.equal(picture(CAUSAL_DOCUMENTS.crop(cols=(5, 21)), 40, 40)[:, 21:], expected[:, 21:])


PARTS = (cm.causal(), ~cm.window(5, 3), cm.full(), CAUSAL_DOCUMENTS, cm.where(lambda q, kv: (q + kv) % 3 == 0))


def test_concatenated_sequences_are_blocks_on_the_diagonal() -> None:
    offsets = [2, 22, 62, 62, 92, 99]
    expected = torch.zeros(110, 110, dtype=torch.bool)
    for part, begin, end in zip(PARTS, offsets, offsets[1:], strict=False):
        expected[begin:end, begin:end] = part.dense(end - begin, end - begin)[0, 0]
    assert torch.equal(picture(cm.concatenate(PARTS, offsets), 110, 110), expected)
    assert arity(cm.concatenate(PARTS[:4], offsets[:5])) == 2, "as many as the part that needs most"
    assert arity(cm.concatenate([cm.causal()] * 4, offsets[:5])) == 1


def test_concatenated_sequences_of_more_keys_than_queries() -> None:
    expected = torch.zeros(25, 40, dtype=torch.bool)
    expected[:5, :10] = cm.causal("bottom_right").dense(5, 10)[0, 0]
    expected[5:, 10:] = cm.hstu(10, 3).dense(20, 30)[0, 0]
    mask = cm.concatenate([cm.causal("bottom_right"), cm.hstu(10, 3)], [0, 5, 25], [0, 10, 40])
    assert torch.equal(picture(mask, 25, 40), expected)
    mask.check_lengths(25, 40)


def test_many_parts_work_through_the_predicate() -> None:
    mask = cm.concatenate([cm.causal()] * 20, list(range(0, 147, 7)))
    assert torch.equal(
        picture(mask, 150, 150), (cm.causal() & cm.document(list(range(0, 147, 7)))).dense(150, 150)[0, 0]
    )


def test_parts_per_batch() -> None:
    offsets = torch.tensor([[0, 10, 30], [5, 25, 40]])
    mask = cm.concatenate([cm.causal(), cm.full()], offsets)
    for batch in range(2):
        alone = cm.concatenate([cm.causal(), cm.full()], offsets[batch])
        assert torch.equal(mask.dense(40, 40)[batch], alone.dense(40, 40)[0])


@pytest.mark.parametrize(
    "mask",
    [
        cm.concatenate(PARTS[:4], [0, 150, 200, 250, 290]),
        cm.concatenate([cm.disk2d(10, 12, 4), cm.causal()], [0, 120, 300]),
        CAUSAL_DOCUMENTS.shift(torch.tensor([7, -5]), 3),
        PARTS[4].place((20, 280), (100, 300)),
    ],
    ids=["blocks", "image and text", "moved per batch", "predicate"],
)
def test_kernels_build_the_same_descriptor(mask: cm.Mask) -> None:
    check_equal(mask, 300, 310)


def test_one_program_for_all_values() -> None:
    def make(cut: int, size: int) -> cm.Mask:
        return cm.concatenate([cm.window(cut), cm.causal()], [0, cut, size]).shift(cut, size)

    assert make(3, 9).key == make(4, 90).key
    assert make(4, 90).arguments()[0] == 4


def test_text_of_a_mask_with_parts() -> None:
    mask = cm.concatenate([cm.causal(), cm.full()], [0, 7, 20])
    read = cm.parse(str(mask), offsets=[0, 7, 20])
    assert torch.equal(read.dense(25, 25), mask.dense(25, 25))
    both = cm.document([0, 3, 25]) & read
    assert torch.equal(picture(both, 25, 25), (cm.document([0, 3, 25]) & mask).dense(25, 25)[0, 0])


def test_ascending_tables_of_text_keep_their_parameter() -> None:
    ids = torch.arange(30) // 7
    text = str(cm.from_mask_mod(lambda b, h, q, kv: ids[q] == ids[kv]))
    mask = cm.where(lambda q, kv, t: t[kv] == 1, t=[0, 1, 0, 1]) & cm.parse(text, ids=ids)
    assert "ascending = [1 : i64]" in str(mask), "the table of the first mask is number 0, and need not ascend"
    check_levels(mask, 30, 30)


# ---- lengths ----


def test_parts_must_fit() -> None:
    cm.document([0, 9]).shift(-3, -3).check_lengths(6, 6)
    with pytest.raises(cm.MaskError, match="last offset is 9; for 8 queries and 8 keys expected at most 8"):
        cm.document([0, 9]).shift(-3, -3).check_lengths(5, 5)
    with pytest.raises(cm.MaskError, match="for 8 queries and 8 keys"):
        cm.document([0, 9]).shift(-3, -3).place((1, 6), (1, 6)).check_lengths(50, 50)
    cm.document([0, 9]).place((1, 10), (1, 10)).check_lengths(10, 10)
    with pytest.raises(cm.MaskError, match="last offset is 9; for 8 queries and 8 keys expected at most 8"):
        cm.concatenate([cm.document([0, 9]), cm.causal()], [0, 8, 20]).check_lengths(20, 20)
    with pytest.raises(cm.MaskError, match="concatenate: the last offset is 20"):
        cm.concatenate([cm.full(), cm.causal()], [0, 8, 20]).check_lengths(19, 19)
    with pytest.raises(cm.MaskError, match="the last key offset is 20; for 30 queries and 19 keys"):
        cm.concatenate([cm.full()], [0, 8], [0, 20]).check_lengths(30, 19)
    with pytest.raises(cm.MaskError, match="place: the end of the columns is 9"):
        cm.full().place((0, 5), (0, 9)).check_lengths(20, 8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cm.concatenate([cm.full()], [0, 1, 2]), "offsets of 1 masks must have 2 entries, got 3"),
        (lambda: cm.concatenate([cm.full(), cm.full()], [0, 5, 4]), "must ascend, but entry 1 is 5"),
        (lambda: cm.concatenate([], [0, 1]), "at least one mask"),
        (lambda: cm.concatenate([3], [0, 1]), "takes masks, got int"),  # pyright: ignore
        (lambda: cm.concatenate(cm.full(), [0, 1]), "takes a list of masks, got _Full"),  # pyright: ignore
        (lambda: cm.full().place(3, (1, 2)), "place: rows must be a pair .begin, end., got 3"),  # pyright: ignore
        (lambda: cm.full().place((0, 3), (-1, 2)), "place: cols, begin must be at least 0, got -1"),
        (lambda: cm.full().shift(1.5), "shift: rows must be an int"),  # pyright: ignore
        (lambda: cm.full().crop((1, 2, 3)), "crop: rows must be a pair"),  # pyright: ignore
        (lambda: cm.full().crop(cols=(0, "x")), "crop: cols, end must be an int"),  # pyright: ignore
    ],
)
def test_errors(make: object, message: str) -> None:
    with pytest.raises(cm.MaskError, match=message):
        make()  # type: ignore[operator]
