"""Which descriptors are kept, and for how long."""

from __future__ import annotations

import gc
import weakref

import pytest

import compilemask as cm
from compilemask.runtime import compiled
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.kept_descriptors import KeptDescriptors


def descriptor(length: int) -> Descriptor:
    return cm.compile(cm.causal()).descriptor(length).clone()


@pytest.fixture
def kept() -> KeptDescriptors:
    return KeptDescriptors(3)


def test_the_oldest_go(kept: KeptDescriptors) -> None:
    given = {number: descriptor(10 + number) for number in range(5)}
    for number, each in given.items():
        kept.keep((number,), each)
    assert [kept.find((number,)) for number in range(5)] == [None, None, given[2], given[3], given[4]]


def test_those_that_are_asked_for_stay(kept: KeptDescriptors) -> None:
    wanted = descriptor(10)
    kept.keep(("wanted",), wanted)
    entry = kept.entry_of(wanted)
    assert entry is not None
    for number in range(20):
        assert (kept.find(("wanted",)) if number % 2 else entry.use()) is wanted
        kept.keep((number,), descriptor(11 + number))
    for number in range(20, 23):
        kept.keep((number,), descriptor(11 + number))
    assert kept.find(("wanted",)) is None


def test_where_all_are_asked_for_the_oldest_goes(kept: KeptDescriptors) -> None:
    for number in range(3):
        kept.keep((number,), descriptor(10 + number))
    assert all(kept.find((number,)) for number in range(3))
    kept.keep((3,), descriptor(20))
    assert [kept.find((number,)) is None for number in range(4)] == [True, False, False, False]


def test_what_is_dropped_is_not_remembered(kept: KeptDescriptors) -> None:
    each = descriptor(10)
    kept.keep((0,), each)
    entry = kept.entry_of(each)
    assert entry is not None
    assert entry.use() is each
    memory = weakref.ref(each.buffer)
    del each
    for number in range(1, 6):
        kept.keep((number,), descriptor(10 + number))
    gc.collect()
    assert entry.use() is None
    assert memory() is None
    assert kept.entry_of(descriptor(10)) is None


def test_the_same_key_again(kept: KeptDescriptors) -> None:
    old, new = descriptor(10), descriptor(10)
    kept.keep((0,), old)
    entry = kept.entry_of(old)
    kept.keep((0,), new)
    assert entry is not None
    assert entry.use() is None
    assert kept.find((0,)) is new


@pytest.mark.parametrize("first", [0, 1])
def test_a_transpose_goes_with_either(first: int, kept: KeptDescriptors) -> None:
    parts = [descriptor(10), descriptor(10)]
    for number in (first, 1 - first):
        kept.keep((number,), parts[number])
    pair = kept.with_transpose(*parts)
    assert (pair.buffer, pair.transposed) == (parts[0].buffer, parts[1])
    assert kept.with_transpose(*parts) is pair
    assert kept.with_transpose(*reversed(parts)) is not pair
    entry = kept.entry_of(pair)
    assert entry is not None
    for number in range(2, 6):  # to ask for the pair is to ask for both
        assert entry.use() is pair
        kept.keep((number,), descriptor(10 + number))
    assert kept.find((0,)) is parts[0]
    for number in (6, 7, 8):
        kept.find((first,))
        kept.keep((number,), descriptor(10 + number))
    assert kept.find((1 - first,)) is None
    assert kept.find((first,)) is parts[first]
    assert entry.use() is None
    again = kept.with_transpose(*parts)
    assert again is not pair
    assert kept.entry_of(again) is None


def test_of_masks() -> None:
    constant, moving = cm.compile(cm.causal()), cm.compile(cm.document([0, 10, 40]))
    assert constant.descriptor(40) is constant.descriptor(40)
    assert constant.descriptor(40, gradient=True) is constant.descriptor(40, gradient=True)
    assert moving.descriptor(40) is not moving.descriptor(40)
    assert compiled.kept_by(constant.descriptor(40, gradient=True)) is not None
    assert compiled.kept_by(moving.descriptor(40)) is None
