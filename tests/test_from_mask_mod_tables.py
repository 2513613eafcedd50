"""Tables that mask_mods capture: read where they lie, whatever their strides, and within what they hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import TOLERANCE, assert_close, dense_attention, random_inputs
from test_levels_agree import check_levels
from torch.nn.attention.flex_attention import create_mask

import compilemask as cm

SIZE = (150, 130)
N = max(SIZE)


def random_bits(*shape: int) -> torch.Tensor:
    """A table of zeros and ones."""
    return torch.randint(0, 2, shape, dtype=torch.int32)


VIEWS: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], Any]]] = {
    "transposed": ((N, N), lambda t: lambda b, h, q, kv: t.T[q, kv] == 1),
    "transposed truth values": ((N, N), lambda t: lambda b, h, q, kv: t.T[kv, q] != 0),
    "batch in the middle": ((N, 2, N), lambda t: lambda b, h, q, kv: t[q, b, kv] == 1),
    "batch and head behind": ((N, 2, 3), lambda t: lambda b, h, q, kv: t[q, b, h] == t[kv, b, h]),
    "part of the columns": ((N, N + 20), lambda t: lambda b, h, q, kv: t[:, 20:][q, kv] == 1),
    "every other one": ((2 * N, 2 * N), lambda t: lambda b, h, q, kv: t[::2, 1::2][q, kv] == 1),
    "expanded": ((1, N), lambda t: lambda b, h, q, kv: t.expand(N, N)[q, kv] == 1),
    "three dimensions": ((4, N, 9), lambda t: lambda b, h, q, kv: t.permute(2, 0, 1)[kv % 9, q % 4, kv] == 1),
}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("name", VIEWS)
def test_what_is_written_to_the_base_of_a_view_counts(name: str, dtype: torch.dtype) -> None:
    shape, make = VIEWS[name]
    table = random_bits(*shape).to(dtype)
    mask_mod, heads = make(table), (2, 3) if len(shape) == 3 else (1, 1)
    mask = cm.from_mask_mod(mask_mod, *heads)
    for _ in range(2):
        expected = create_mask(mask_mod, *heads, *SIZE, device="cpu")
        assert torch.equal(mask.dense(*SIZE).expand(expected.shape), expected)
        check_levels(mask, *SIZE)
        q, k, v = random_inputs(*heads, heads[1], *SIZE, 16)
        result, _ = dense_attention(q, k, v, expected)
        assert_close(cm.attention(q, k, v, mask), result, TOLERANCE[torch.float32])
        table.copy_(random_bits(*shape).to(dtype))


def test_indices_that_become_negative_are_refused() -> None:
    labels, places = random_bits(N), torch.randperm(N)
    mask_mod = lambda b, h, q, kv: labels[places[q]] == labels[places[kv]]  # noqa: E731
    mask = cm.from_mask_mod(mask_mod)
    mask.check_lengths(*SIZE)
    places[3] = -2
    with pytest.raises(cm.MaskError, match="places holds negative indices, and did not"):
        cm.attention(*random_inputs(1, 1, 1, *SIZE, 16), mask)
    expected = create_mask(mask_mod, 1, 1, *SIZE, device="cpu")
    assert torch.equal(cm.from_mask_mod(mask_mod).dense(*SIZE), expected)


def test_a_table_with_fewer_entries_than_positions_is_refused() -> None:
    ids, plane = random_bits(100), random_bits(100, 120)
    by_query, by_key = (cm.from_mask_mod(lambda b, h, q, kv, at=at: ids[(q, kv)[at]] == 1) for at in (0, 1))
    by_query.check_lengths(100, 500)
    with pytest.raises(cm.MaskError, match="ids has entries for 100 queries, got 101 queries"):
        by_query.check_lengths(101, 50)
    by_key.check_lengths(500, 100)
    with pytest.raises(cm.MaskError, match="ids has entries for 100 keys, got 101 keys"):
        cm.attention(*random_inputs(1, 1, 1, 50, 101, 16), by_key)
    both = cm.from_mask_mod(lambda b, h, q, kv: plane[q, kv] == 1)
    both.check_lengths(100, 120)
    for queries, keys in ((101, 120), (100, 121)):
        with pytest.raises(cm.MaskError, match="plane has entries for"):
            both.check_lengths(queries, keys)
    with pytest.raises(cm.MaskError, match="ids has entries for 100 queries"):
        cm.compile(by_query).transposed.descriptor(7, 101)


def test_longer_tables_fit_later() -> None:
    ids = random_bits(100)
    compiled = cm.compile(cm.from_mask_mod(lambda b, h, q, kv: ids[q] == ids[kv]))
    with pytest.raises(cm.MaskError, match="ids has entries for 100"):
        compiled.descriptor(200)
    compiled.bind(ids=random_bits(200)).descriptor(200)


def test_a_part_of_the_sequence_needs_its_own_entries() -> None:
    ids = random_bits(100)
    mask = cm.from_mask_mod(lambda b, h, q, kv: ids[q] == ids[kv])
    cm.concatenate([mask, cm.causal()], [0, 100, 200]).check_lengths(200, 200)
    with pytest.raises(cm.MaskError, match="ids has entries for 100"):
        cm.concatenate([cm.causal(), mask], [0, 90, 200]).check_lengths(200, 200)
    mask.place((50, 150), (50, 150)).check_lengths(200, 200)


def test_a_table_in_device_memory_is_asked_for_its_shape_alone() -> None:
    ids = torch.empty(100, dtype=torch.int32, device="meta")
    mask = cm.from_mask_mod(lambda b, h, q, kv: ids[q] == ids[kv])
    mask.check_lengths(100, 100)
    with pytest.raises(cm.MaskError, match="ids has entries for 100"):
        mask.check_lengths(101, 100)


# ---- shifts ----


def test_shifts_multiply_and_divide() -> None:
    for mask_mod in (
        lambda b, h, q, kv: (kv << 24) <= (q << 3) * 65536,
        lambda b, h, q, kv: (kv >> 40) == (q >> 31),
        lambda b, h, q, kv: ((q - kv) >> 35) == -1,
    ):
        mask = cm.from_mask_mod(mask_mod)
        assert torch.equal(mask.dense(100, 100), create_mask(mask_mod, 1, 1, 100, 100, device="cpu"))
        check_levels(mask, 100, 100)


def test_shifts_that_leave_32_bits_are_no_other_mask() -> None:
    solved = lambda b, h, q, kv: (kv << 24) > q  # noqa: E731
    asked = lambda b, h, q, kv: ((kv << 24) ^ q) > 3 * q  # noqa: E731
    q, k, v = random_inputs(1, 1, 1, 50, 200, 16)
    for mask_mod in (solved, asked):
        with pytest.raises(cm.MaskError, match="shli leaves 32 bits"):
            cm.from_mask_mod(mask_mod).dense(50, 200)
    expected, _ = dense_attention(q, k, v, create_mask(solved, 1, 1, 50, 200, device="cpu"))
    assert_close(cm.attention(q, k, v, cm.from_mask_mod(solved)), expected, TOLERANCE[torch.float32])
    with pytest.raises(cm.MaskError, match="shli leaves 32 bits"):
        cm.attention(q, k, v, cm.from_mask_mod(asked))


@pytest.mark.parametrize("amount", [-1, 32, 33])
def test_shifts_by_more_bits_than_there_are(amount: int) -> None:
    with pytest.raises(cm.MaskError, match=f"shifts by {amount} bits"):
        cm.from_mask_mod(lambda b, h, q, kv: (kv << amount) > q)
    with pytest.raises(cm.MaskError, match=f"shifts by {amount} bits"):
        cm.where(lambda q, kv: (kv << amount) > q)
