"""Masks refuse lengths that hold fewer positions than they speak of, before anything is built."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, random_inputs

import compilemask as cm
from compilemask.errors import MaskError

N = 100
SPEAKS_OF_100: dict[str, tuple[cm.Mask, str]] = {
    "document": (cm.document([0, 40, N]), "document: the last offset is 100"),
    "document per batch": (cm.document([[0, 5, 9], [0, 40, N]]), "document: the last offset is 100"),
    "shared prompt": (cm.shared_prompt([0, 40, N]), "shared_prompt: the last offset is 100"),
    "hstu history": (cm.hstu(N, 3), "hstu: history is 100"),
    "hstu history in memory": (cm.hstu([[7], [N]], 3), "hstu: history is 100"),
    "hstu total": (cm.hstu(40, 3, total=N), "hstu: total is 100"),
    "disk2d": (cm.disk2d(9, 10, 3, origin=10), "disk2d: the end of the image is 100"),
    "box2d": (cm.box2d(10, 10, 3), "box2d: the end of the image is 100"),
    "clear": (cm.clear(8, 10, 3, text=20), "clear: the end of the image is 100"),
    "clear per batch and head": (
        cm.clear([[1, 2], [8, 3]], torch.tensor(10), 3, text=[20, 20]),
        "clear: the end of the image is 100",
    ),
    "intersection": (cm.causal() & cm.document([0, 40, N]), "document: the last offset is 100"),
    "union": (cm.window(3) | cm.hstu(N), "hstu: history is 100"),
    "difference": (cm.causal() - cm.document([0, N]), "document: the last offset is 100"),
    "complement": (~cm.disk2d(10, 10, 2), "disk2d: the end of the image is 100"),
    "named": (cm.document([0, N]).named("mine"), "document: the last offset is 100"),
}


@pytest.mark.parametrize("name", SPEAKS_OF_100)
def test_too_short(name: str) -> None:
    mask, message = SPEAKS_OF_100[name]
    compiled = cm.compile(mask)
    for queries, keys in ((N, N), (1, N), (N, 1), (N + 50, N + 50)):
        mask.check_lengths(queries, keys)
        compiled.descriptor(queries, keys)
    for queries, keys in ((N - 1, N - 1), (1, N - 1), (N - 1, 50), (0, 0)):
        expected = f"{message}; for {queries} queries and {keys} keys expected at most {max(queries, keys)}"
        for use in (mask.check_lengths, compiled.descriptor):
            with pytest.raises(cm.MaskError) as raised:
                use(queries, keys)
            assert str(raised.value) == expected
    batch, heads = mask.batch_shape
    with pytest.raises(cm.MaskError, match=message):
        cm.attention(*random_inputs(batch, heads, heads, N - 1, N - 1, 16), mask)


def test_each_batch_fits_its_own_part() -> None:
    """A part that is long enough in one batch does not make up for one that is too short in another."""
    sizes = torch.tensor([10, 3])
    cm.document([[0, 10], [0, 3]]).place((0, sizes), (0, sizes)).check_lengths(10, 10)
    with pytest.raises(MaskError, match="last offset is 10; for 3 queries and 3 keys"):
        cm.document([[0, 10], [0, 10]]).place((0, sizes), (0, sizes)).check_lengths(10, 10)
    offsets = [[0, 5, 10], [0, 2, 10]]
    cm.concatenate([cm.hstu(2), cm.full()], offsets).check_lengths(10, 10)
    with pytest.raises(MaskError, match="history is 5; for 2 queries"):
        cm.concatenate([cm.hstu(5), cm.full()], offsets).check_lengths(10, 10)
    moved = [cm.document([0, 2]).shift(by, by) for by in (torch.tensor([1, 0]), torch.tensor([1, 1]))]
    cm.concatenate([moved[0], cm.full()], [[0, 3, 10], [0, 2, 10]]).check_lengths(10, 10)
    with pytest.raises(MaskError, match="last offset is 2; for 1 queries"):
        cm.concatenate([moved[1], cm.full()], [[0, 3, 10], [0, 2, 10]]).check_lengths(10, 10)


@pytest.mark.parametrize("mask", [cm.padding([0]), cm.hstu(0), cm.document([0, 0]), cm.window(3)])
def test_what_is_moved_behind_the_end_is_gone(mask: cm.Mask) -> None:
    moved = mask.shift(20, 20)
    moved.check_lengths(4, 4)
    assert not moved.dense(4, 4).any()


def test_padding_counts_keys() -> None:
    mask = cm.padding([N, 3])
    mask.check_lengths(1, N)
    with pytest.raises(cm.MaskError, match=r"padding: the greatest length is 100; .* at most 99"):
        mask.check_lengths(N, N - 1)


UNLIMITED: dict[str, Callable[[], cm.Mask]] = {
    "full": cm.full,
    "causal": cm.causal,
    "causal from the end": lambda: cm.causal("bottom_right"),
    "window": lambda: cm.window(5000, 3000),
    "band": lambda: cm.band(-4000, 4000),
    "sinks": lambda: cm.causal() & (cm.cols(0, 4) | cm.window(64)),
    "rows": lambda: cm.rows(3, 2**30),
    "predicate": lambda: cm.where(lambda q, kv, label: label[q] == label[kv], label=list(range(50))),
}


@pytest.mark.parametrize("name", UNLIMITED)
def test_windows_bands_and_strips_fit_any_lengths(name: str) -> None:
    mask = UNLIMITED[name]()
    assert mask.limits == ()
    for queries, keys in ((1, 1), (1, 3), (3, 1), (0, 0)):
        cm.compile(mask).descriptor(queries, keys)


def test_decoding_with_fewer_queries_than_keys() -> None:
    mask = cm.causal("bottom_right") & cm.document([0, 40, N])
    q, k, v = random_inputs(1, 2, 1, 1, N, 16)
    expected, _ = dense_attention(q, k, v, mask.dense(1, N))
    assert_close(cm.attention(q, k, v, mask), expected, TOLERANCE[torch.float32])


def test_bound_values_are_checked_as_well() -> None:
    compiled = cm.compile(cm.causal() & cm.document([0, 5]))
    compiled.bind(offsets=[0, 40, N]).descriptor(N)
    for bound in (compiled.bind(offsets=[0, 40, N]), compiled.bind(cm.causal() & cm.document([0, 40, N]))):
        with pytest.raises(cm.MaskError, match="the last offset is 100"):
            bound.descriptor(N - 1)
    image = cm.compile(cm.clear([1, 1], 1, 2, text=torch.tensor(4)))
    with pytest.raises(cm.MaskError, match="clear: the end of the image is 104"):
        image.bind(height=torch.tensor([[50], [100]])).descriptor(N)


def test_values_are_those_of_the_moment() -> None:
    offsets = torch.tensor([0, 40, 60], dtype=torch.int32)
    compiled = cm.compile(cm.document(offsets))
    compiled.descriptor(60)
    offsets[2] = 61
    with pytest.raises(cm.MaskError, match="the last offset is 61"):
        compiled.descriptor(60)


def test_values_in_device_memory_are_not_read() -> None:
    offsets = torch.empty(3, dtype=torch.int32, device="meta")
    cm.document(offsets).check_lengths(5, 5)


def test_a_tensor_that_is_used_twice_is_one_parameter() -> None:
    offsets = torch.tensor([0, 40, N])
    for _ in range(2):  # the second time from the known structure
        mask = cm.document(offsets) & cm.shared_prompt(offsets) | cm.hstu(3) & cm.hstu(N)
        assert [limit.names for limit in mask.limits] == [("offsets",), ("offsets",), ("history",), ("history_1",)]
        with pytest.raises(cm.MaskError, match="hstu: history is 100"):
            (cm.hstu(3) | cm.hstu(N)).check_lengths(9, 9)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (cm.document([0, N]), "@document: the last offset is 100"),
        (cm.shared_prompt([0, 40, N]), "@shared_prompt: the last offset is 100"),
        (cm.box2d(10, 10, 3), "@box2d: the end of the image is 100"),
        (cm.clear(8, 10, 3, text=20), "@clear: the end of the image is 100"),
    ],
)
def test_masks_from_text_are_checked_as_well(mask: cm.Mask, message: str) -> None:
    again = cm.parse(str(mask), **{parameter.name: parameter.value for parameter in mask.parameters})
    cm.compile(again).descriptor(N)
    with pytest.raises(cm.MaskError, match=message):
        cm.compile(again).descriptor(N - 1)
