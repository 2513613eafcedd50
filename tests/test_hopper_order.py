"""The order in which programs of the Hopper kernels take tiles."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from test_hopper_backward_kernel import check as check_gradients
from test_hopper_kernel import check
from xdsl.dialects.builtin import i32

import compilemask as cm
from compilemask.dialects.semantics.triton_gpu import run_kernel
from compilemask.dialects.triton.types import PointerType
from compilemask.lowering.tiling_to_ttg.attention import HopperConfig, Schedule
from compilemask.lowering.tiling_to_ttg.attention_order import Order, folded, long_tiles
from compilemask.lowering.tiling_to_ttg.builder import Arg, GpuKernelBuilder

POINTER = PointerType(i32, 1)


def places(tiles: int, heads: int, together: int, full: list[int] | None = None) -> list[tuple[int, int]]:
    """Rank and head of each position; `full` counts the tiles that those of a rank visit."""
    kb = GpuKernelBuilder("order", [Arg("order", POINTER), Arg("found", POINTER), *(Arg(n, i32) for n in "nht")])
    tiles_of_head = kb.arg("n")
    order = Order(kb.arg("h"), kb.arg("t"), tiles_of_head, long_tiles(kb, tiles_of_head, 4))
    position = kb.program_id(0)
    rank, head = order.place(kb, position)
    kb.store(kb.arg("found") + position * 2, rank)
    kb.store(kb.arg("found") + position * 2 + 1, head)
    records = np.zeros((tiles, 8), np.int32)
    records[:, 4] = 0 if full is None else full
    found = np.full((heads * tiles, 2), -1, np.int32)
    sizes = dict(zip("nht", (tiles, heads, together), strict=True))
    arguments = {"order": records.reshape(-1), "found": found.reshape(-1), **sizes}
    run_kernel(kb.finish(), heads * tiles, arguments, seed=0)
    return [(int(rank), int(head)) for rank, head in found]


def test_groups_of_heads_and_longest_tiles_first() -> None:
    assert places(2, 3, 2) == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)]


@pytest.mark.parametrize(("partial", "full", "expected"), [(1, 31, 8), (2, 9, 4), (0, 15, 8), (0, 14, 4), (64, 0, 8)])
def test_fewer_heads_together_for_sparse_masks(partial: int, full: int, expected: int) -> None:
    """Of 8192 keys; a quarter of them is 160 + 15 / 4 in costs of full tiles of 10."""
    names = ("query_tiles", "keys", "all_heads", "heads_together", "sparse_heads_together")
    kb = GpuKernelBuilder("order", [Arg("order", POINTER), Arg("found", POINTER), *(Arg(name, i32) for name in names)])
    order = Order.of_queries(kb, 4)
    assert not isinstance(order.together, int)
    kb.store(kb.arg("found"), order.together)
    records, found = np.zeros((3, 8), np.int32), np.zeros(1, np.int32)
    records[:, 4] = 64, full, 0
    records[1, 2] = partial
    sizes = dict(zip(names, (3, 8192, 16, 8, 4), strict=True))
    run_kernel(kb.finish(), 1, {"order": records.reshape(-1), "found": found, **sizes}, seed=0)
    assert found[0] == expected


@pytest.mark.parametrize("seed", range(5))
def test_each_tile_once_and_long_ones_first(seed: int) -> None:
    rng = random.Random(seed)
    tiles, heads = rng.randint(1, 70), rng.randint(1, 5)
    long = rng.randint(0, tiles // 3)
    full = sorted([rng.randint(5, 8) for _ in range(tiles - long)] + [90] * long, reverse=True)
    found = places(tiles, heads, rng.randint(1, heads), full)
    assert sorted(found) == [(rank, head) for rank in range(tiles) for head in range(heads)]
    assert found[: heads * long] == [(rank, head) for rank in range(long) for head in range(heads)]


def test_no_more_than_32_long_tiles_are_told_apart() -> None:
    found = places(101, 2, 1, [90] * 40 + [5] * 61)
    assert found[:64] == [(rank, head) for rank in range(32) for head in range(2)]
    assert found[64:66] == [(32, 0), (33, 0)]


@pytest.mark.parametrize("tiles", [1, 2, 7, 8])
def test_long_tiles_are_paired_with_short_ones(tiles: int) -> None:
    kb = GpuKernelBuilder("fold", [Arg("found", POINTER), Arg("n", i32)])
    rank = kb.program_id(0)
    kb.store(kb.arg("found") + rank, folded(kb, rank, kb.arg("n")))
    found = np.full(tiles, -1, np.int32)
    run_kernel(kb.finish(), tiles, {"found": found, "n": tiles}, seed=0)
    half = (tiles + 1) // 2
    assert found.tolist() == [*range(half), *reversed(range(half, tiles))]


def text_before_a_window() -> cm.Mask:
    """The first tile of queries sees all keys, and the first tile of keys is seen by all queries."""
    return cm.window(20, 20) | cm.where(lambda q, kv: (q < 128) | (kv < 128))


def test_attention_with_long_tiles() -> None:
    for schedule in (Schedule.ATOMIC, Schedule.STATIC):
        check(text_before_a_window(), 1500, 1500, heads=(2, 1), config=HopperConfig(stages=2, schedule=schedule))


def test_gradients_with_long_tiles() -> None:
    check_gradients(text_before_a_window(), 1500, 1500, heads=(2, 2), dtype=torch.bfloat16)
