"""The CPU build against brute force, from hand-written interval functions."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from descriptor_checks import check_against_dense
from interval_samples import SAMPLES

from compilemask.errors import DescriptorError
from compilemask.lowering.descriptor_layout import Layout, ceil_div
from compilemask.runtime.cpu import build_cpu
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.program import rows_of_mask

LENGTHS = [(1, 1), (17, 300), (128, 128), (137, 137), (400, 256), (300, 1000), (1025, 640)]


def roomy(queries: int, keys: int, masks: int = 1, rows: int = 128) -> Layout:
    every = ceil_div(queries, rows) * ceil_div(keys, 128)
    return Layout(1, masks, queries, keys, rows, masks * 2 * every, masks * every, shared=False)


def built(name: str, queries: int, keys: int, rows: int = 128) -> Descriptor:
    sample = SAMPLES[name]
    layout = roomy(queries, keys, rows=rows)
    return build_cpu.build(layout, [rows_of_mask(sample.func, sample.parameters(queries, keys), layout)])


def dense(name: str, queries: int, keys: int) -> torch.Tensor:
    sample = SAMPLES[name]
    q, kv = np.arange(queries)[:, None], np.arange(keys)[None, :]
    visible = sample.dense(q, kv, *sample.parameters(queries, keys))
    return torch.from_numpy(np.array(np.broadcast_to(visible, (queries, keys))))[None, None]


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("rows", [64, 128, 192])
@pytest.mark.parametrize("name", SAMPLES)
def test_exact(name: str, rows: int, queries: int, keys: int) -> None:
    check_against_dense(built(name, queries, keys, rows), dense(name, queries, keys))


@pytest.mark.parametrize("name", SAMPLES)
def test_buffer_round_trip(name: str) -> None:
    descriptor = built(name, 300, 500)
    again = Descriptor.from_buffer(descriptor.buffer.clone())
    assert again.layout == descriptor.layout
    assert again == descriptor


def test_damaged_buffers_are_refused() -> None:
    buffer = built("causal", 300, 300).buffer
    for word, value in ((0, 7), (1, 99), (4, -1), (6, 0), (7, 64), (10, 3), (15, 1), (15, 2)):
        damaged = buffer.clone()
        damaged[word] = value
        with pytest.raises(DescriptorError):
            Descriptor.from_buffer(damaged)
    with pytest.raises(DescriptorError, match="int32"):
        Descriptor.from_buffer(buffer.long())
    with pytest.raises(DescriptorError):
        Descriptor.from_buffer(buffer[:-64])


def test_too_little_room_is_loud() -> None:
    sample = SAMPLES["causal"]
    layout = Layout(1, 1, 1000, 1000, 128, 5, 3, shared=False)
    descriptor = build_cpu.build(layout, [rows_of_mask(sample.func, (), layout)])
    with pytest.raises(DescriptorError, match="reserved"):
        descriptor.check()
    n_partial = descriptor.tiles[0, 0, :, 1].tolist()
    assert n_partial[:3] == [1, 1, 1]
    assert n_partial[3:] == [-1] * 5


@pytest.mark.parametrize("name", ["causal", "shared prompt", "dilated"])
def test_long_sequences_build_fast(name: str) -> None:
    length = 32768
    sample = SAMPLES[name]
    tiles = length // 128
    layout = Layout(1, 1, length, length, 128, 40 * tiles, 20 * tiles, shared=False)
    begin = time.perf_counter()
    build_cpu.build(layout, [rows_of_mask(sample.func, sample.parameters(length, length), layout)]).check()
    assert time.perf_counter() - begin < 5
